//! The headers of what a target sends (RFC 7143, 11.4 to 11.19).
//!
//! Each function makes one header of 48 bytes; [`super::Digests::append`] puts it and its data into a stream.

use super::NO_TAG;
use super::pdu::BHS;
use super::request::Lun;

/// The numbers that every PDU of a target carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Number of this status, or of the next one where the PDU has none.
    pub stat_sn: u32,
    /// The command that is expected next.
    pub exp_cmd_sn: u32,
    /// The last command that there is room for.
    pub max_cmd_sn: u32,
}

/// What was not transferred, or what there was no room for (11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// All was transferred.
    #[default]
    None,
    /// So many bytes fewer than expected.
    Under(u32),
    /// So many bytes more than expected.
    Over(u32),
}

impl Residual {
    /// What comes of expecting `expected` bytes where there are `actual`.
    pub fn of(expected: u64, actual: u64) -> Residual {
        let bytes = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match actual {
            _ if actual < expected => Residual::Under(bytes(expected - actual)),
            _ if actual > expected => Residual::Over(bytes(actual - expected)),
            _ => Residual::None,
        }
    }

    fn flags_and_count(self) -> (u8, u32) {
        match self {
            Residual::None => (0, 0),
            Residual::Under(n) => (0x02, n),
            Residual::Over(n) => (0x04, n),
        }
    }
}

/// Why a PDU is rejected (11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Its data has a wrong digest.
    DataDigest = 0x02,
    /// It needs what was not negotiated.
    Snack = 0x03,
    /// It breaks the protocol.
    Protocol = 0x04,
    /// It is not supported.
    NotSupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediate = 0x06,
    /// A field is not what it can be.
    InvalidField = 0x09,
}

/// Why a login does not go on (11.13.5): class and detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum LoginStatus {
    /// It goes on.
    Success = 0x0000,
    /// The initiator made an error.
    InitiatorError = 0x0200,
    /// It did not prove who it is.
    AuthenticationFailed = 0x0201,
    /// There is no such target, or not for this initiator.
    NotFound = 0x0203,
    /// No common version.
    UnsupportedVersion = 0x0205,
    /// No further connection in this session.
    TooManyConnections = 0x0206,
    /// A key is missing.
    MissingParameter = 0x0207,
    /// A session of this type is not offered.
    SessionType = 0x0209,
    /// There is no such session.
    NoSession = 0x020a,
    /// Something that the target did not expect.
    InvalidRequest = 0x020b,
    /// The target cannot now.
    OutOfResources = 0x0302,
}

fn header(opcode: u8, flags: u8, data_len: usize, tag: u32, numbers: &Numbers) -> [u8; BHS] {
    let mut h = [0; BHS];
    h[0] = opcode;
    h[1] = flags;
    h[4..8].copy_from_slice(&(data_len as u32 & 0xff_ffff).to_be_bytes());
    put(&mut h, 16, tag);
    put(&mut h, 24, numbers.stat_sn);
    put(&mut h, 28, numbers.exp_cmd_sn);
    put(&mut h, 32, numbers.max_cmd_sn);
    h
}

fn put(h: &mut [u8; BHS], at: usize, word: u32) {
    h[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

/// A SCSI response (11.4), whose data segment holds `sense_len` bytes: the length of the sense data and that.
pub fn scsi_response(
    tag: u32,
    numbers: &Numbers,
    status: u8,
    residual: Residual,
    exp_data_sn: u32,
    data_len: usize,
) -> [u8; BHS] {
    let (flags, count) = residual.flags_and_count();
    let mut h = header(0x21, 0x80 | flags, data_len, tag, numbers);
    h[3] = status;
    put(&mut h, 36, exp_data_sn);
    put(&mut h, 44, count);
    h
}

/// Data of a read (11.7). `last` ends a sequence.
pub fn data_in(tag: u32, numbers: &Numbers, data_sn: u32, offset: u32, len: usize, last: bool) -> [u8; BHS] {
    let mut h = header(0x25, if last { 0x80 } else { 0 }, len, tag, numbers);
    put(&mut h, 20, NO_TAG);
    // Without status, there is no number of one.
    put(&mut h, 24, 0);
    put(&mut h, 36, data_sn);
    put(&mut h, 40, offset);
    h
}

/// The last data of a read together with the status GOOD (11.7.3): no response follows.
pub fn data_in_with_status(
    tag: u32,
    numbers: &Numbers,
    data_sn: u32,
    offset: u32,
    len: usize,
    residual: Residual,
) -> [u8; BHS] {
    let (flags, count) = residual.flags_and_count();
    let mut h = header(0x25, 0x81 | flags, len, tag, numbers);
    put(&mut h, 20, NO_TAG);
    put(&mut h, 36, data_sn);
    put(&mut h, 40, offset);
    put(&mut h, 44, count);
    h
}

/// Asks for data of a write (11.8).
pub fn r2t(
    lun: Lun,
    tag: u32,
    transfer_tag: u32,
    numbers: &Numbers,
    r2t_sn: u32,
    offset: u32,
    len: u32,
) -> [u8; BHS] {
    let mut h = header(0x31, 0x80, 0, tag, numbers);
    h[8..16].copy_from_slice(&lun.0);
    put(&mut h, 20, transfer_tag);
    put(&mut h, 36, r2t_sn);
    put(&mut h, 40, offset);
    put(&mut h, 44, len);
    h
}

/// What became of task management (11.6.1).
pub fn task_management(tag: u32, numbers: &Numbers, response: u8) -> [u8; BHS] {
    let mut h = header(0x22, 0x80, 0, tag, numbers);
    h[2] = response;
    h
}

/// The answer to a ping (11.19), or with [`NO_TAG`] as `tag`, a ping.
pub fn nop_in(tag: u32, transfer_tag: u32, numbers: &Numbers, len: usize) -> [u8; BHS] {
    let mut h = header(0x20, 0x80, len, tag, numbers);
    put(&mut h, 20, transfer_tag);
    h
}

/// Text (11.11). With `transfer_tag` it asks for a request that goes on: for the rest of the answer or, where it has
/// no text itself, with the rest of the question.
pub fn text(tag: u32, numbers: &Numbers, transfer_tag: Option<u32>, len: usize) -> [u8; BHS] {
    let flags = match transfer_tag {
        None => 0x80,
        Some(_) if len > 0 => 0x40,
        Some(_) => 0,
    };
    let mut h = header(0x24, flags, len, tag, numbers);
    put(&mut h, 20, transfer_tag.unwrap_or(NO_TAG));
    h
}

/// A login response (11.13).
pub struct Login {
    /// Goes to the next stage.
    pub transit: bool,
    /// The text goes on.
    pub continues: bool,
    /// Stage, and the next one.
    pub stages: (u8, u8),
    /// Initiator session identifier, as it came.
    pub isid: [u8; 6],
    /// The session's handle, in the last response.
    pub tsih: u16,
    /// What became of it.
    pub status: LoginStatus,
}

impl Login {
    /// Its header.
    pub fn header(&self, tag: u32, numbers: &Numbers, len: usize) -> [u8; BHS] {
        let (current, next) = self.stages;
        let mut flags = current << 2;
        if self.transit {
            flags |= 0x80 | next;
        }
        if self.continues {
            flags |= 0x40;
        }
        let mut h = header(0x23, flags, len, tag, numbers);
        h[8..14].copy_from_slice(&self.isid);
        h[14..16].copy_from_slice(&self.tsih.to_be_bytes());
        h[36..38].copy_from_slice(&(self.status as u16).to_be_bytes());
        h
    }
}

/// The end of a connection (11.15).
pub fn logout(tag: u32, numbers: &Numbers, response: u8) -> [u8; BHS] {
    let mut h = header(0x26, 0x80, 0, tag, numbers);
    h[2] = response;
    h
}

/// A PDU that is not taken (11.17); its header is the data.
pub fn reject(numbers: &Numbers, reason: Reason) -> [u8; BHS] {
    let mut h = header(0x3f, 0x80, BHS, NO_TAG, numbers);
    h[2] = reason as u8;
    h
}

/// Something that nobody asked about (11.9): 1 asks for a logout, 3 says that all connections end.
pub fn asynchronous(numbers: &Numbers, event: u8, parameters: [u16; 3]) -> [u8; BHS] {
    let mut h = header(0x32, 0x80, 0, NO_TAG, numbers);
    h[36] = event;
    for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
        h[at..at + 2].copy_from_slice(&parameter.to_be_bytes());
    }
    h
}
