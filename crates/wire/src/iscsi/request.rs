//! Requests of an initiator (RFC 7143, 11.3 to 11.16), decoded from the header of their PDU.

use super::pdu::{BHS, Header, Pdu, ProtocolError};

const NOP_OUT: u8 = 0x00;
const SCSI_COMMAND: u8 = 0x01;
const TASK_MANAGEMENT: u8 = 0x02;
const LOGIN: u8 = 0x03;
const TEXT: u8 = 0x04;
const DATA_OUT: u8 = 0x05;
const LOGOUT: u8 = 0x06;
const SNACK: u8 = 0x10;

/// A logical unit number of eight bytes (SAM-5, 4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lun(pub [u8; 8]);

impl Lun {
    /// The number, in peripheral device addressing on bus 0 or in flat space addressing of one level.
    pub fn number(self) -> Option<u16> {
        let [a, b, rest @ ..] = self.0;
        if rest != [0; 6] {
            return None;
        }
        match a >> 6 {
            0 if a == 0 => Some(b.into()),
            1 => Some(u16::from(a & 0x3f) << 8 | u16::from(b)),
            _ => None,
        }
    }
}

/// The position of a PDU in its session's command sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// Immediate delivery: it does not advance the command sequence.
    pub immediate: bool,
    /// Command sequence number.
    pub cmd_sn: u32,
    /// Number of the next status that the initiator expects; all earlier statuses have arrived.
    pub exp_stat_sn: u32,
}

/// A SCSI command (11.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// The logical unit to which the command is addressed.
    pub lun: Lun,
    /// Initiator task tag.
    pub tag: u32,
    /// Position of the request in the command sequence.
    pub numbering: Numbering,
    /// No unsolicited data follows.
    pub is_final: bool,
    /// The initiator expects data from the target.
    pub read: bool,
    /// The initiator sends data to the target.
    pub write: bool,
    /// Bytes that the initiator expects to be transferred.
    pub expected: u32,
    /// The CDB of the command, or its first 16 bytes.
    pub cdb: [u8; 16],
    /// Immediate data of the command.
    pub data: &'a [u8],
}

/// Data of a command (11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut<'a> {
    /// Initiator task tag of the command.
    pub tag: u32,
    /// Target transfer tag of the R2T that requested it, or [`super::NO_TAG`].
    pub transfer_tag: u32,
    /// Position of the PDU in its data sequence (DataSN).
    pub data_sn: u32,
    /// Offset of the data in the command's data.
    pub offset: u32,
    /// Whether the PDU is the last PDU of its data sequence.
    pub is_final: bool,
    /// The data in the PDU.
    pub data: &'a [u8],
}

/// A login request (11.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    /// The initiator requests the transition to the next stage.
    pub transit: bool,
    /// The text continues in the next request.
    pub continues: bool,
    /// Current and next stage: 0 security, 1 operational, 3 full feature phase.
    pub stages: (u8, u8),
    /// The lowest version that the initiator supports.
    pub version_min: u8,
    /// Initiator session identifier.
    pub isid: [u8; 6],
    /// Target session identifying handle; 0 for a new session.
    pub tsih: u16,
    /// Initiator task tag.
    pub tag: u32,
    /// First command sequence number of the session.
    pub cmd_sn: u32,
    /// Text of the request.
    pub text: &'a [u8],
}

/// Task management functions (11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFunction {
    /// Abort one task.
    AbortTask,
    /// Abort all tasks of this session on the unit.
    AbortTaskSet,
    /// Abort all tasks of all sessions on the unit.
    ClearTaskSet,
    /// Reset the unit.
    LogicalUnitReset,
    /// Reset all units of the target.
    TargetWarmReset,
    /// Reset the target, and end its sessions.
    TargetColdReset,
    /// Continue a task on another connection.
    TaskReassign,
    /// Any other task management function.
    Other(u8),
}

/// Requests of the full feature phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// A ping, or the answer to a ping.
    NopOut {
        /// Initiator task tag; [`super::NO_TAG`] if no answer is requested.
        tag: u32,
        /// The target's tag, if it answers a ping of the target.
        transfer_tag: u32,
        /// Position of the request in the command sequence.
        numbering: Numbering,
        /// Ping data, which the answer returns.
        data: &'a [u8],
    },
    /// The request is a SCSI command.
    Command(Command<'a>),
    /// The request is a task management function.
    TaskManagement {
        /// The function that is requested.
        function: TaskFunction,
        /// The logical unit to which the function applies.
        lun: Lun,
        /// Initiator task tag.
        tag: u32,
        /// Position of the request in the command sequence.
        numbering: Numbering,
        /// Initiator task tag of the task to abort.
        referenced_tag: u32,
    },
    /// The request is a text request.
    Text {
        /// Initiator task tag.
        tag: u32,
        /// The target's tag, if it requests the rest of an answer.
        transfer_tag: u32,
        /// Position of the request in the command sequence.
        numbering: Numbering,
        /// The text continues in the next request.
        continues: bool,
        /// The text in the PDU.
        text: &'a [u8],
    },
    /// Data of a command.
    DataOut(DataOut<'a>),
    /// The end of the session or connection.
    Logout {
        /// Initiator task tag.
        tag: u32,
        /// Position of the request in the command sequence.
        numbering: Numbering,
        /// 0 closes the session, 1 the connection, 2 removes the connection for recovery.
        reason: u8,
    },
    /// A request to retransmit lost PDUs, which needs a higher error recovery level.
    Snack,
    /// A PDU that an initiator must not send.
    Unknown(u8),
}

fn numbering(header: Header<'_>) -> Numbering {
    Numbering { immediate: header.immediate(), cmd_sn: header.word(24), exp_stat_sn: header.word(28) }
}

impl<'a> Login<'a> {
    /// Decodes a login request.
    pub fn parse(pdu: &Pdu<'a>) -> Result<Login<'a>, ProtocolError> {
        let h = pdu.header;
        if h.opcode() != LOGIN {
            return Err(ProtocolError::OutOfPlace(h.opcode()));
        }
        let flags = h.flags();
        Ok(Login {
            transit: flags & 0x80 != 0,
            continues: flags & 0x40 != 0,
            stages: (flags >> 2 & 3, flags & 3),
            version_min: h.byte(3),
            isid: h.bytes(8),
            tsih: h.half(14),
            tag: h.task_tag(),
            cmd_sn: h.word(24),
            text: pdu.data,
        })
    }
}

impl<'a> Request<'a> {
    /// Decodes a request.
    pub fn parse(pdu: &Pdu<'a>) -> Request<'a> {
        let h = pdu.header;
        let (tag, lun, data) = (h.task_tag(), Lun(h.bytes(8)), pdu.data);
        match h.opcode() {
            NOP_OUT => Request::NopOut { tag, transfer_tag: h.word(20), numbering: numbering(h), data },
            SCSI_COMMAND => Request::Command(Command {
                lun,
                tag,
                numbering: numbering(h),
                is_final: h.is_final(),
                read: h.flags() & 0x40 != 0,
                write: h.flags() & 0x20 != 0,
                expected: h.word(20),
                cdb: h.bytes(32),
                data,
            }),
            TASK_MANAGEMENT => Request::TaskManagement {
                function: match h.flags() & 0x7f {
                    1 => TaskFunction::AbortTask,
                    2 => TaskFunction::AbortTaskSet,
                    4 => TaskFunction::ClearTaskSet,
                    5 => TaskFunction::LogicalUnitReset,
                    6 => TaskFunction::TargetWarmReset,
                    7 => TaskFunction::TargetColdReset,
                    8 => TaskFunction::TaskReassign,
                    other => TaskFunction::Other(other),
                },
                lun,
                tag,
                numbering: numbering(h),
                referenced_tag: h.word(20),
            },
            TEXT => Request::Text {
                tag,
                transfer_tag: h.word(20),
                numbering: numbering(h),
                continues: h.flags() & 0x40 != 0,
                text: data,
            },
            DATA_OUT => Request::DataOut(DataOut {
                tag,
                transfer_tag: h.word(20),
                data_sn: h.word(36),
                offset: h.word(40),
                is_final: h.is_final(),
                data,
            }),
            LOGOUT => Request::Logout { tag, numbering: numbering(h), reason: h.flags() & 0x7f },
            SNACK => Request::Snack,
            other => Request::Unknown(other),
        }
    }

    /// Position of the request in the command sequence; `None` if it has no position.
    pub fn numbering(&self) -> Option<Numbering> {
        match self {
            Request::NopOut { numbering, .. }
            | Request::TaskManagement { numbering, .. }
            | Request::Text { numbering, .. }
            | Request::Logout { numbering, .. } => Some(*numbering),
            Request::Command(command) => Some(command.numbering),
            Request::DataOut(_) | Request::Snack | Request::Unknown(_) => None,
        }
    }
}

const _: () = assert!(BHS == 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logical_unit_numbers() {
        let lun = |a, b| Lun([a, b, 0, 0, 0, 0, 0, 0]).number();
        assert_eq!(lun(0, 7), Some(7));
        assert_eq!(lun(0x40, 7), Some(7));
        assert_eq!(lun(0x41, 2), Some(258));
        assert_eq!(lun(1, 7), None, "another bus");
        assert_eq!(lun(0xc1, 0), None, "a well known logical unit");
        assert_eq!(Lun([0, 1, 0, 1, 0, 0, 0, 0]).number(), None, "a second level");
    }
}
