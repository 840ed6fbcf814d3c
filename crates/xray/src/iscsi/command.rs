//! SCSI commands and their results.

use std::fmt;

/// Bytes of a logical block, as on disks for virtual machines.
pub const SECTOR: u64 = 512;

/// Direction and length of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The command transfers no data.
    None,
    /// The target sends this many bytes.
    In(u32),
    /// The initiator sends this many bytes.
    Out(u32),
}

/// A SCSI command, with its CDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Name of the command for messages.
    pub name: &'static str,
    pub(super) cdb: [u8; 16],
    pub(super) transfer: Transfer,
}

impl Command {
    fn new(name: &'static str, transfer: Transfer, cdb: &[u8]) -> Command {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        Command { name, cdb: padded, transfer }
    }

    /// TEST UNIT READY.
    pub fn test_unit_ready() -> Command {
        Command::new("TEST UNIT READY", Transfer::None, &[0x00; 6])
    }

    /// INQUIRY of the standard data.
    pub fn inquiry() -> Command {
        const LEN: u8 = 96;
        Command::new("INQUIRY", Transfer::In(LEN.into()), &[0x12, 0, 0, 0, LEN, 0])
    }

    /// READ CAPACITY(16).
    pub fn read_capacity() -> Command {
        const LEN: u8 = 32;
        Command::new(
            "READ CAPACITY",
            Transfer::In(LEN.into()),
            &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, LEN],
        )
    }

    /// RESERVE(6) of the whole unit.
    pub fn reserve() -> Command {
        Command::new("RESERVE", Transfer::None, &[0x16, 0, 0, 0, 0, 0])
    }

    /// RELEASE(6).
    pub fn release() -> Command {
        Command::new("RELEASE", Transfer::None, &[0x17, 0, 0, 0, 0, 0])
    }

    /// SYNCHRONIZE CACHE(10) of the whole unit.
    pub fn synchronize_cache() -> Command {
        Command::new("SYNCHRONIZE CACHE", Transfer::None, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    /// READ of `len` bytes at `offset`; both are multiples of 512, in all commands.
    pub fn read(offset: u64, len: u32) -> Command {
        Command::new("READ", Transfer::In(len), &block_cdb(0x28, 0x88, offset, len))
    }

    /// WRITE of `len` bytes at `offset`.
    pub fn write(offset: u64, len: u32) -> Command {
        Command::new("WRITE", Transfer::Out(len), &block_cdb(0x2a, 0x8a, offset, len))
    }

    /// Makes the WRITE durable when it is answered (FUA).
    pub fn durable(mut self) -> Command {
        self.cdb[1] |= 0x08;
        self
    }

    /// Bytes that the target sends.
    pub fn incoming(&self) -> u32 {
        if let Transfer::In(len) = self.transfer { len } else { 0 }
    }

    /// COMPARE AND WRITE of `len` bytes at `offset`, below 256 sectors; its data is the expected content
    /// followed by the new content.
    pub fn compare_and_write(offset: u64, len: u32) -> Command {
        let mut cdb = [0; 16];
        cdb[0] = 0x89;
        cdb[2..10].copy_from_slice(&(offset / SECTOR).to_be_bytes());
        cdb[13] = (u64::from(len) / SECTOR) as u8;
        Command::new("COMPARE AND WRITE", Transfer::Out(2 * len), &cdb)
    }
}

/// The 10-byte CDB if range and length fit into it, otherwise the 16-byte CDB, as initiators choose.
fn block_cdb(ten: u8, sixteen: u8, offset: u64, len: u32) -> [u8; 16] {
    let (block, blocks) = (offset / SECTOR, u64::from(len) / SECTOR);
    let mut cdb = [0; 16];
    if let (Ok(block), Ok(blocks)) = (u32::try_from(block), u16::try_from(blocks)) {
        cdb[0] = ten;
        cdb[2..6].copy_from_slice(&block.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    } else {
        cdb[0] = sixteen;
        cdb[2..10].copy_from_slice(&block.to_be_bytes());
        cdb[10..14].copy_from_slice(&(blocks as u32).to_be_bytes());
    }
    cdb
}

/// The reason for a failed command: sense key, additional sense code and qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Sense key of the response.
    pub key: u8,
    /// Additional sense code and qualifier of the response.
    pub code: (u8, u8),
}

impl Sense {
    /// Parses sense data in either format (SPC-4, 4.5).
    pub(super) fn parse(data: &[u8]) -> Option<Sense> {
        let at = |i: usize| data.get(i).copied();
        match at(0)? & 0x7f {
            0x70 | 0x71 => Some(Sense { key: at(2)? & 0xf, code: (at(12)?, at(13)?) }),
            0x72 | 0x73 => Some(Sense { key: at(1)? & 0xf, code: (at(2)?, at(3)?) }),
            _ => None,
        }
    }
}

/// The result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// GOOD.
    Good,
    /// CHECK CONDITION.
    Check(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
    /// Any other status.
    Other(u8),
}

impl Status {
    pub(super) fn of(status: u8, sense: &[u8]) -> Status {
        match status {
            0x00 => Status::Good,
            0x02 => Sense::parse(sense).map_or(Status::Other(status), Status::Check),
            0x18 => Status::Conflict,
            other => Status::Other(other),
        }
    }

    /// Whether it is a UNIT ATTENTION, which reports an earlier event; the command was not executed and can
    /// be sent again.
    pub fn is_attention(self) -> bool {
        matches!(self, Status::Check(Sense { key: 0x6, .. }))
    }

    /// Whether COMPARE AND WRITE found different content.
    pub fn is_miscompare(self) -> bool {
        matches!(self, Status::Check(Sense { key: 0xe, .. }))
    }

    /// A number for reports: sense key, code and qualifier, or the status.
    pub fn number(self) -> u32 {
        match self {
            Status::Good => 0,
            Status::Check(s) => u32::from_be_bytes([0, s.key, s.code.0, s.code.1]),
            Status::Conflict => 0x18,
            Status::Other(status) => status.into(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Good => write!(f, "GOOD"),
            Status::Check(s) => {
                write!(f, "CHECK CONDITION, sense {:x}/{:02x}/{:02x}", s.key, s.code.0, s.code.1)
            }
            Status::Conflict => write!(f, "RESERVATION CONFLICT"),
            Status::Other(status) => write!(f, "status {status:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_cdb_is_used_if_range_and_length_fit() {
        let read = Command::read(512 * 0x0102_0304, 4096);
        assert_eq!(read.cdb[..10], [0x28, 0, 1, 2, 3, 4, 0, 0, 8, 0]);
        assert_eq!(read.transfer, Transfer::In(4096));
        let far = Command::write(512 << 32, 512);
        assert_eq!(far.cdb, [0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        let long = Command::read(0, 512 << 16);
        assert_eq!(long.cdb, [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn compare_and_write_transfers_expected_and_new_data() {
        let c = Command::compare_and_write(512 * 5, 1024);
        assert_eq!(c.cdb, [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]);
        assert_eq!(c.transfer, Transfer::Out(2048));
    }

    #[test]
    fn sense_data_of_both_formats_is_parsed() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0xf0, 0x06, 0x29, 0x01);
        assert_eq!(Sense::parse(&fixed), Some(Sense { key: 6, code: (0x29, 1) }));
        assert!(Status::of(2, &fixed).is_attention());
        let descriptor = [0x72, 0x0e, 0x1d, 0x00, 0, 0, 0, 0];
        assert!(Status::of(2, &descriptor).is_miscompare());
        assert_eq!(Status::of(2, &descriptor).number(), 0x000e_1d00);
        assert_eq!(Status::of(2, &[]), Status::Other(2));
        assert_eq!(Status::of(0x18, &[]), Status::Conflict);
        assert_eq!(Status::of(0x28, &[]).to_string(), "status 0x28");
    }
}
