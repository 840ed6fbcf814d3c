//! The headers of a target's PDUs (RFC 7143, 11.4 to 11.19).
//!
//! Each function builds one header of 48 bytes; [`super::Digests::append`] appends it and its data to a
//! stream.

use super::NO_TAG;
use super::pdu::BHS;
use super::request::Lun;

/// The sequence numbers in every PDU of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Status number of this PDU; the next status number if the PDU has no status.
    pub stat_sn: u32,
    /// The next expected command.
    pub exp_cmd_sn: u32,
    /// The last command that can be accepted.
    pub max_cmd_sn: u32,
}

/// The difference between the expected and the actual transfer length (11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// The transfer has the expected length.
    #[default]
    None,
    /// The transfer is this number of bytes shorter than expected.
    Under(u32),
    /// The transfer is this number of bytes longer than expected.
    Over(u32),
}

impl Residual {
    /// The residual of `actual` bytes where `expected` bytes were expected.
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

/// Reasons for rejecting a PDU (11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The data of the PDU has a wrong digest.
    DataDigest = 0x02,
    /// The PDU requires a feature that was not negotiated.
    Snack = 0x03,
    /// The PDU violates the protocol.
    Protocol = 0x04,
    /// The PDU is not supported.
    NotSupported = 0x05,
    /// There are too many immediate commands.
    TooManyImmediate = 0x06,
    /// A field has an invalid value.
    InvalidField = 0x09,
}

/// Status of a login (11.13.5): class and detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum LoginStatus {
    /// The login proceeds.
    Success = 0x0000,
    /// The initiator has to log in at another address, for now.
    TargetMoved = 0x0101,
    /// An error of the initiator.
    InitiatorError = 0x0200,
    /// Authentication failed.
    AuthenticationFailed = 0x0201,
    /// The target does not exist, or the initiator has no access to it.
    NotFound = 0x0203,
    /// Initiator and target have no version in common.
    UnsupportedVersion = 0x0205,
    /// The session does not accept another connection.
    TooManyConnections = 0x0206,
    /// A required key is missing.
    MissingParameter = 0x0207,
    /// This type of session is not supported.
    SessionType = 0x0209,
    /// The session does not exist.
    NoSession = 0x020a,
    /// A request that is not valid in this stage.
    InvalidRequest = 0x020b,
    /// The target is not operational at present.
    ServiceUnavailable = 0x0301,
    /// The target is out of resources.
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

/// A SCSI response (11.4), whose data segment has `data_len` bytes: the length of the sense data, and the
/// sense data.
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
    // Without a status, the PDU has no status number.
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

/// A request for data of a write (11.8).
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

/// The result of task management (11.6.1).
pub fn task_management(tag: u32, numbers: &Numbers, response: u8) -> [u8; BHS] {
    let mut h = header(0x22, 0x80, 0, tag, numbers);
    h[2] = response;
    h
}

/// The answer to a ping (11.19), or, with [`NO_TAG`] as `tag`, a ping.
pub fn nop_in(tag: u32, transfer_tag: u32, numbers: &Numbers, len: usize) -> [u8; BHS] {
    let mut h = header(0x20, 0x80, len, tag, numbers);
    put(&mut h, 20, transfer_tag);
    h
}

/// Text (11.11). With `transfer_tag` it requests continuation: the rest of the answer or, if it has no text,
/// the rest of the initiator's text.
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
    /// Transition to the next stage.
    pub transit: bool,
    /// The text continues in the next response.
    pub continues: bool,
    /// Current and next stage.
    pub stages: (u8, u8),
    /// Initiator session identifier of the request.
    pub isid: [u8; 6],
    /// The session's handle, in the last response.
    pub tsih: u16,
    /// The result of the login.
    pub status: LoginStatus,
}

impl Login {
    /// Header of the login response.
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

/// A response that ends a connection (11.15).
pub fn logout(tag: u32, numbers: &Numbers, response: u8) -> [u8; BHS] {
    let mut h = header(0x26, 0x80, 0, tag, numbers);
    h[2] = response;
    h
}

/// The rejection of a PDU (11.17), whose header is the data.
pub fn reject(numbers: &Numbers, reason: Reason) -> [u8; BHS] {
    let mut h = header(0x3f, 0x80, BHS, NO_TAG, numbers);
    h[2] = reason as u8;
    h
}

/// An asynchronous message (11.9): event 1 requests a logout, 3 announces that all connections end.
pub fn asynchronous(numbers: &Numbers, event: u8, parameters: [u16; 3]) -> [u8; BHS] {
    let mut h = header(0x32, 0x80, 0, NO_TAG, numbers);
    h[36] = event;
    for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
        h[at..at + 2].copy_from_slice(&parameter.to_be_bytes());
    }
    h
}
