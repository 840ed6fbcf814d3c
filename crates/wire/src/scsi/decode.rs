//! Decoding of CDBs into [`Request`]s.

use super::command::{Kind, find};
use super::request::*;
use super::reserve::ReservationType;
use super::{BLOCK, Get, PARAMETERS_MAX, Sense, TRANSFER_MAX, WRITE_SAME_MAX, codes};

/// Flags in the second byte of a CDB.
const FUA: u8 = 0x08;
const UNMAP: u8 = 0x08;
const NDOB: u8 = 0x01;
const IMMED: u8 = 0x02;
const DBD: u8 = 0x08;
const LLBAA: u8 = 0x10;
const PF: u8 = 0x10;
const SP: u8 = 0x01;

impl Request {
    /// Decodes a CDB; bytes after it, with which transports pad their field, are ignored.
    ///
    /// # Errors
    /// The sense data to return: an unsupported command, an invalid or unsupported field, or a range that
    /// ends beyond the unit.
    #[inline]
    pub fn decode(cdb: &[u8], rules: &Rules) -> Result<Request, Sense> {
        let (command, cdb) = find(cdb)?;
        let fua = cdb[1] & FUA != 0;
        match command.kind {
            Kind::Read => {
                let (offset, len) = transfer(cdb, rules)?;
                Ok(Request::Read { offset, len })
            }
            Kind::Write => {
                let (offset, len) = transfer(cdb, rules)?;
                // In the six-byte command, this bit of byte 1 belongs to the address.
                Ok(Request::Write { offset, len, fua: fua && cdb.len() > 6 })
            }
            Kind::WriteAndVerify => {
                let (offset, len) = transfer(cdb, rules)?;
                let compare = match cdb[1] >> 1 & 3 {
                    0 => false,
                    1 => true,
                    _ => return Err(Sense::cdb_bit(1, 2)),
                };
                Ok(Request::WriteAndVerify { offset, len, compare })
            }
            Kind::OrWrite => {
                let (offset, len) = transfer(cdb, rules)?;
                Ok(Request::OrWrite { offset, len, fua })
            }
            Kind::CompareAndWrite => {
                let (lba, blocks) = (cdb.get64(2), u64::from(cdb[13]));
                let offset = within(lba, blocks, rules)?;
                Ok(Request::CompareAndWrite { offset, len: blocks as u32 * BLOCK, fua })
            }
            Kind::Verify => verify(cdb, rules),
            Kind::WriteSame => write_same(cdb, rules),
            Kind::PreFetch => {
                let (lba, blocks) = range(cdb);
                let offset = within(lba, blocks, rules)?;
                let blocks = if blocks == 0 { rules.blocks - lba } else { blocks };
                Ok(Request::PreFetch { offset, len: blocks * u64::from(BLOCK) })
            }
            Kind::SynchronizeCache => {
                let (lba, blocks) = range(cdb);
                within(lba, blocks, rules)?;
                Ok(Request::SynchronizeCache { immediate: cdb[1] & IMMED != 0 })
            }
            Kind::GetLbaStatus => {
                let lba = cdb.get64(2);
                if lba >= rules.blocks {
                    return Err(Sense::illegal(codes::LBA_OUT_OF_RANGE));
                }
                Ok(Request::GetLbaStatus { offset: lba * u64::from(BLOCK), allocation: cdb.get32(10) })
            }
            Kind::Unmap => Ok(Request::Unmap { length: cdb.get16(7).into() }),
            _ => without_range(command.kind, cdb),
        }
    }
}

/// Commands without a block range.
fn without_range(kind: Kind, cdb: &[u8]) -> Result<Request, Sense> {
    Ok(match kind {
        Kind::TestUnitReady => Request::TestUnitReady,
        Kind::RequestSense => {
            Request::RequestSense { descriptor: cdb[1] & 1 != 0, allocation: cdb[4].into() }
        }
        Kind::Inquiry => inquiry(cdb)?,
        Kind::ReportLuns => match cdb[2] {
            select @ 0..=2 => Request::ReportLuns { select, allocation: cdb.get32(6) },
            _ => return Err(Sense::cdb(2)),
        },
        Kind::ReadCapacity10 => Request::ReadCapacity10,
        Kind::ReadCapacity16 => Request::ReadCapacity16 { allocation: cdb.get32(10) },
        // With a power condition, the START bit is ignored.
        Kind::StartStopUnit => Request::StartStopUnit { start: cdb[4] & 0xf1 == 1 },
        Kind::ModeSense => mode_sense(cdb),
        Kind::ModeSelect => mode_select(cdb)?,
        Kind::PersistentReserveIn => {
            let action = match cdb[1] & 0x1f {
                0 => ReserveIn::Keys,
                1 => ReserveIn::Reservation,
                2 => ReserveIn::Capabilities,
                _ => ReserveIn::FullStatus,
            };
            Request::PersistentReserveIn { action, allocation: cdb.get16(7).into() }
        }
        Kind::PersistentReserveOut => {
            Request::PersistentReserveOut { action: reserve_out(cdb)?, length: parameters(cdb.get32(5), 5)? }
        }
        Kind::Reserve => Request::Reserve,
        Kind::Release => Request::Release,
        Kind::ExtendedCopy => Request::ExtendedCopy { length: parameters(cdb.get32(10), 10)? },
        Kind::CopyStatus => Request::CopyStatus { list: cdb[2], allocation: cdb.get32(10) },
        Kind::CopyParameters => Request::CopyParameters { allocation: cdb.get32(10) },
        Kind::PopulateToken => {
            Request::PopulateToken { list: cdb.get32(6), length: parameters(cdb.get32(10), 10)? }
        }
        Kind::WriteUsingToken => {
            Request::WriteUsingToken { list: cdb.get32(6), length: parameters(cdb.get32(10), 10)? }
        }
        Kind::TokenInformation => Request::TokenInformation { list: cdb.get32(2), allocation: cdb.get32(10) },
        Kind::TargetPortGroups => Request::TargetPortGroups { allocation: cdb.get32(6) },
        Kind::SupportedOpcodes => supported_opcodes(cdb)?,
        Kind::SupportedTaskManagement => {
            Request::SupportedTaskManagement { extended: cdb[2] & 0x80 != 0, allocation: cdb.get32(6) }
        }
        _ => return Err(Sense::illegal(codes::INVALID_OPERATION_CODE)),
    })
}

/// Address and number of blocks, depending on the length of the CDB.
#[inline]
fn range(cdb: &[u8]) -> (u64, u64) {
    match cdb.len() {
        6 => {
            let lba = u64::from(cdb.get32(0) & 0x1f_ffff);
            // Only here, zero means 256 blocks (SBC-3, "READ (6) command").
            (lba, if cdb[4] == 0 { 256 } else { cdb[4].into() })
        }
        10 => (cdb.get32(2).into(), cdb.get16(7).into()),
        12 => (cdb.get32(2).into(), cdb.get32(6).into()),
        _ => (cdb.get64(2), cdb.get32(10).into()),
    }
}

/// The byte offset of a range, if it is within the unit.
#[inline]
fn within(lba: u64, blocks: u64, rules: &Rules) -> Result<u64, Sense> {
    match lba.checked_add(blocks) {
        Some(end) if end <= rules.blocks => Ok(lba * u64::from(BLOCK)),
        _ => Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)),
    }
}

/// First byte of the field with the number of blocks.
fn count_field(cdb: &[u8]) -> u16 {
    match cdb.len() {
        6 => 4,
        10 => 7,
        12 => 6,
        _ => 10,
    }
}

/// The byte range of a command that transfers data of the same length.
#[inline]
fn transfer(cdb: &[u8], rules: &Rules) -> Result<(u64, u32), Sense> {
    let (lba, blocks) = range(cdb);
    let offset = within(lba, blocks, rules)?;
    if blocks > u64::from(TRANSFER_MAX) {
        return Err(Sense::cdb(count_field(cdb)));
    }
    Ok((offset, blocks as u32 * BLOCK))
}

fn verify(cdb: &[u8], rules: &Rules) -> Result<Request, Sense> {
    let (lba, blocks) = range(cdb);
    let offset = within(lba, blocks, rules)?;
    let check = match cdb[1] >> 1 & 3 {
        0 => VerifyCheck::Nothing,
        1 => VerifyCheck::Data,
        3 => VerifyCheck::Block,
        _ => return Err(Sense::cdb_bit(1, 2)),
    };
    if check == VerifyCheck::Data && blocks > u64::from(TRANSFER_MAX) {
        return Err(Sense::cdb(count_field(cdb)));
    }
    Ok(Request::Verify { offset, len: blocks * u64::from(BLOCK), check })
}

fn write_same(cdb: &[u8], rules: &Rules) -> Result<Request, Sense> {
    let (lba, blocks) = range(cdb);
    let offset = within(lba, blocks, rules)?;
    // Zero blocks would mean the rest of the unit, which is refused because it may exceed the limit (WSNZ is
    // 1).
    if blocks == 0 || blocks > u64::from(WRITE_SAME_MAX) {
        return Err(Sense::cdb(count_field(cdb)));
    }
    let no_data = cdb.len() == 16 && cdb[1] & NDOB != 0;
    Ok(Request::WriteSame { offset, len: blocks as u32 * BLOCK, unmap: cdb[1] & UNMAP != 0, no_data })
}

fn inquiry(cdb: &[u8]) -> Result<Request, Sense> {
    let page = if cdb[1] & 1 != 0 {
        Some(cdb[2])
    } else if cdb[2] == 0 {
        None
    } else {
        return Err(Sense::cdb(2));
    };
    Ok(Request::Inquiry { page, allocation: cdb.get16(3).into() })
}

fn mode_sense(cdb: &[u8]) -> Request {
    let ten = cdb.len() == 10;
    let control = match cdb[2] >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    Request::ModeSense {
        ten,
        long_descriptor: ten && cdb[1] & LLBAA != 0,
        no_descriptor: cdb[1] & DBD != 0,
        control,
        page: cdb[2] & 0x3f,
        subpage: cdb[3],
        allocation: if ten { cdb.get16(7).into() } else { cdb[4].into() },
    }
}

fn mode_select(cdb: &[u8]) -> Result<Request, Sense> {
    let ten = cdb.len() == 10;
    let length = if ten { cdb.get16(7).into() } else { cdb[4].into() };
    if cdb[1] & SP != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    if cdb[1] & PF == 0 && length > 0 {
        return Err(Sense::cdb_bit(1, 4));
    }
    Ok(Request::ModeSelect { ten, length })
}

fn reserve_out(cdb: &[u8]) -> Result<ReserveOut, Sense> {
    let kind = || {
        if cdb[2] >> 4 != 0 {
            return Err(Sense::cdb_bit(2, 7));
        }
        ReservationType::decode(cdb[2] & 0x0f).ok_or(Sense::cdb_bit(2, 3))
    };
    Ok(match cdb[1] & 0x1f {
        0 => ReserveOut::Register,
        1 => ReserveOut::Reserve(kind()?),
        2 => ReserveOut::Release(kind()?),
        3 => ReserveOut::Clear,
        4 => ReserveOut::Preempt(kind()?),
        5 => ReserveOut::PreemptAndAbort(kind()?),
        _ => ReserveOut::RegisterAndIgnore,
    })
}

fn supported_opcodes(cdb: &[u8]) -> Result<Request, Sense> {
    let query = match cdb[2] & 7 {
        0 => OpcodeQuery::All,
        options @ 1..=3 => OpcodeQuery::One { options, opcode: cdb[3], action: cdb.get16(4) },
        _ => return Err(Sense::cdb_bit(2, 2)),
    };
    Ok(Request::SupportedOpcodes { query, timeouts: cdb[2] & 0x80 != 0, allocation: cdb.get32(6) })
}

/// Checks the length of a parameter list; `byte` is the first byte of its field.
fn parameters(length: u32, byte: u16) -> Result<u32, Sense> {
    if length > PARAMETERS_MAX { Err(Sense::cdb(byte)) } else { Ok(length) }
}
