//! Basic header segments (RFC 7143, 11.2): the layout of the segments that an initiator sends, and the fields
//! of the segments that it receives.

/// Bytes of a basic header segment.
pub const BHS: usize = 48;
/// The reserved value for no tag.
pub const NO_TAG: u32 = u32::MAX;

/// Operation codes of PDUs.
pub mod opcode {
    pub const NOP_OUT: u8 = 0x00;
    pub const COMMAND: u8 = 0x01;
    pub const LOGIN: u8 = 0x03;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const NOP_IN: u8 = 0x20;
    pub const RESPONSE: u8 = 0x21;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The opcode bit of requests that do not consume a command number.
const IMMEDIATE: u8 = 0x40;
/// The last PDU of a sequence; in a login, the request to enter the next stage.
pub const FINAL: u8 = 0x80;
/// Flags of a command.
pub const READ: u8 = 0x40;
pub const WRITE: u8 = 0x20;
const SIMPLE: u8 = 0x01;

/// The initiator's sequence numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Number of this command, or of the next command.
    pub cmd_sn: u32,
    /// The next expected status number.
    pub exp_stat_sn: u32,
}

/// Bytes of padding after a data segment.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

struct Layout([u8; BHS]);

impl Layout {
    fn new(opcode: u8, flags: u8, tag: u32) -> Layout {
        let mut h = [0; BHS];
        (h[0], h[1]) = (opcode, flags);
        Layout(h).u32(16, tag)
    }
    fn bytes(mut self, at: usize, bytes: &[u8]) -> Layout {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
    fn u32(self, at: usize, v: u32) -> Layout {
        self.bytes(at, &v.to_be_bytes())
    }
    fn data_len(self, len: usize) -> Layout {
        self.bytes(5, &(len as u32).to_be_bytes()[1..])
    }
    fn numbers(self, n: Numbers) -> Layout {
        self.u32(24, n.cmd_sn).u32(28, n.exp_stat_sn)
    }
    /// Peripheral device addressing (SAM-5, 4.7): the number is in the second byte.
    fn lun(mut self, lun: u8) -> Layout {
        self.0[9] = lun;
        self
    }
}

/// A SCSI command: `flags` of [`FINAL`], [`READ`] and [`WRITE`], `expected` bytes of data in either
/// direction, of which `immediate` are in this PDU.
pub fn command(
    flags: u8,
    lun: u8,
    tag: u32,
    numbers: Numbers,
    expected: u32,
    immediate: usize,
    cdb: &[u8; 16],
) -> [u8; BHS] {
    Layout::new(opcode::COMMAND, flags | SIMPLE, tag)
        .lun(lun)
        .data_len(immediate)
        .u32(20, expected)
        .numbers(numbers)
        .bytes(32, cdb)
        .0
}

/// Data for a command, unsolicited with a `transfer_tag` of [`NO_TAG`].
pub struct DataOut {
    pub last: bool,
    pub lun: u8,
    pub tag: u32,
    pub transfer_tag: u32,
    pub exp_stat_sn: u32,
    pub data_sn: u32,
    pub offset: usize,
    pub len: usize,
}

impl DataOut {
    pub fn header(&self) -> [u8; BHS] {
        Layout::new(opcode::DATA_OUT, if self.last { FINAL } else { 0 }, self.tag)
            .lun(self.lun)
            .data_len(self.len)
            .u32(20, self.transfer_tag)
            .u32(28, self.exp_stat_sn)
            .u32(36, self.data_sn)
            .u32(40, self.offset as u32)
            .0
    }
}

/// The answer to a NOP-In that requires one; `lun` is bytes 8 to 16 of that NOP-In.
pub fn nop_out(lun: &[u8], transfer_tag: u32, numbers: Numbers) -> [u8; BHS] {
    Layout::new(opcode::NOP_OUT | IMMEDIATE, FINAL, NO_TAG)
        .bytes(8, lun)
        .u32(20, transfer_tag)
        .numbers(numbers)
        .0
}

/// Encodes a login request: `stages` are the current and the next stage.
pub fn login(stages: (u8, u8), isid: &[u8; 6], numbers: Numbers, len: usize) -> [u8; BHS] {
    Layout::new(opcode::LOGIN | IMMEDIATE, FINAL | stages.0 << 2 | stages.1, 0)
        .bytes(8, isid)
        .data_len(len)
        .numbers(numbers)
        .0
}

/// A logout that closes the session.
pub fn logout(tag: u32, numbers: Numbers) -> [u8; BHS] {
    Layout::new(opcode::LOGOUT | IMMEDIATE, FINAL, tag).numbers(numbers).0
}

/// A header received from the target.
#[derive(Debug, Clone, Copy)]
pub struct Reply(pub [u8; BHS]);

impl Reply {
    fn u32(&self, at: usize) -> u32 {
        let b = &self.0[at..at + 4];
        u32::from_be_bytes([b[0], b[1], b[2], b[3]])
    }
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }
    pub fn flag(&self, bit: u8) -> bool {
        self.0[1] & bit != 0
    }
    /// Bytes of additional header segments.
    pub fn additional(&self) -> usize {
        usize::from(self.0[4]) * 4
    }
    pub fn data_len(&self) -> usize {
        (self.u32(4) & 0xff_ffff) as usize
    }
    pub fn lun(&self) -> &[u8] {
        &self.0[8..16]
    }
    pub fn tag(&self) -> u32 {
        self.u32(16)
    }
    pub fn transfer_tag(&self) -> u32 {
        self.u32(20)
    }
    pub fn stat_sn(&self) -> u32 {
        self.u32(24)
    }
    pub fn max_cmd_sn(&self) -> u32 {
        self.u32(32)
    }
    /// DataSN of a Data-In, or R2TSN of an R2T.
    pub fn sn(&self) -> u32 {
        self.u32(36)
    }
    pub fn offset(&self) -> u32 {
        self.u32(40)
    }
    /// Bytes that an R2T requests.
    pub fn desired(&self) -> u32 {
        self.u32(44)
    }
    /// Event of an asynchronous message.
    pub fn async_event(&self) -> u8 {
        self.0[36]
    }
    /// Response or login stages, and the SCSI status.
    pub fn response(&self) -> (u8, u8) {
        (self.0[2], self.0[3])
    }
    /// Expected bytes that were not transferred.
    pub fn underflow(&self) -> u32 {
        if self.flag(0x02) { self.u32(44) } else { 0 }
    }
    /// Status class and detail of a login response.
    pub fn login_status(&self) -> u16 {
        u16::from_be_bytes([self.0[36], self.0[37]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_layout_of_the_standard() {
        let numbers = Numbers { cmd_sn: 0x0102_0304, exp_stat_sn: 0x0506_0708 };
        let mut cdb = [0; 16];
        cdb[0] = 0x2a;
        let h = command(FINAL | WRITE, 7, 0xaabb_ccdd, numbers, 8192, 4096, &cdb);
        assert_eq!(h[..8], [0x01, 0xa1, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(h[8..16], [0, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(h[16..32], [0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0x20, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(h[32..], cdb);

        let data = DataOut {
            last: true,
            lun: 1,
            tag: 2,
            transfer_tag: 3,
            exp_stat_sn: 4,
            data_sn: 5,
            offset: 0x1000,
            len: 0x0203,
        };
        let h = data.header();
        assert_eq!(h[..8], [0x05, 0x80, 0, 0, 0, 0, 2, 3]);
        assert_eq!(h[9], 1);
        assert_eq!(h[16..24], [0, 0, 0, 2, 0, 0, 0, 3]);
        assert_eq!(h[24..48], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x10, 0, 0, 0, 0, 0]);

        let h = login((1, 3), &[0x80, 1, 2, 3, 4, 5], numbers, 9);
        assert_eq!(h[..14], [0x43, 0x87, 0, 0, 0, 0, 0, 9, 0x80, 1, 2, 3, 4, 5]);
        let h = nop_out(&[9; 8], 77, numbers);
        assert_eq!(h[..2], [0x40, 0x80]);
        assert_eq!(h[8..24], [9, 9, 9, 9, 9, 9, 9, 9, 255, 255, 255, 255, 0, 0, 0, 77]);
        assert_eq!(logout(5, numbers)[..2], [0x46, 0x80]);
    }

    #[test]
    fn replies_are_parsed_with_the_layout_of_the_standard() {
        let mut h = [0; BHS];
        for (i, b) in h.iter_mut().enumerate() {
            *b = i as u8;
        }
        (h[0], h[1], h[4]) = (0x71, 0x82, 2);
        let r = Reply(h);
        assert_eq!((r.opcode(), r.flag(FINAL), r.flag(0x01), r.additional()), (opcode::R2T, true, false, 8));
        assert_eq!((r.data_len(), r.response(), r.lun()[1]), (0x0005_0607, (2, 3), 9));
        assert_eq!((r.tag(), r.transfer_tag(), r.stat_sn()), (0x1011_1213, 0x1415_1617, 0x1819_1a1b));
        assert_eq!((r.max_cmd_sn(), r.sn(), r.offset()), (0x2021_2223, 0x2425_2627, 0x2829_2a2b));
        assert_eq!((r.desired(), r.underflow(), r.login_status()), (0x2c2d_2e2f, 0x2c2d_2e2f, 0x2425));
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }
}
