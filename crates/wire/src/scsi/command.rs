//! The table of commands: the supported commands, and the valid bits of their CDBs. Decoding refuses all
//! others, and REPORT SUPPORTED OPERATION CODES reports the table.

use super::{Put, Sense, codes};

/// A command, by the request that its CDB is decoded to; the variants with different CDB lengths have one
/// kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ReportLuns,
    ReadCapacity10,
    ReadCapacity16,
    Read,
    Write,
    WriteAndVerify,
    Verify,
    OrWrite,
    CompareAndWrite,
    WriteSame,
    Unmap,
    GetLbaStatus,
    PreFetch,
    SynchronizeCache,
    StartStopUnit,
    ModeSense,
    ModeSelect,
    PersistentReserveIn,
    PersistentReserveOut,
    Reserve,
    Release,
    ExtendedCopy,
    CopyStatus,
    CopyParameters,
    PopulateToken,
    WriteUsingToken,
    TokenInformation,
    TargetPortGroups,
    SupportedOpcodes,
    SupportedTaskManagement,
}

/// A row of the table.
pub(super) struct Command {
    pub opcode: u8,
    /// Service action, in the low five bits of byte 1.
    pub action: Option<u8>,
    pub kind: Kind,
    /// CDB usage map (SPC-4, "REPORT SUPPORTED OPERATION CODES"), without opcode and service action: only
    /// bits that are set here may be set in a CDB. Its length is that of the CDB.
    pub usage: &'static [u8],
}

/// Bits in the second byte of a CDB that are evaluated, or may be set without effect.
const DPO_FUA: u8 = 0x1a; // DPO, FUA, and FUA_NV, which is obsolete.
const DPO_BYTCHK: u8 = 0x16;
const IMMED: u8 = 0x02;
const IMMED_SYNC_NV: u8 = 0x06;
const UNMAP: u8 = 0x08;
const UNMAP_NDOB: u8 = 0x09;
const PF_SP: u8 = 0x11;
const GROUP: u8 = 0x1f;

/// A CDB with flags, a 21-bit address and a length.
const BLOCKS6: [u8; 6] = [0, 0x1f, 0xff, 0xff, 0xff, 0];

/// CDB usage map of a command of ten bytes with flags, an address, a group number and a length.
const fn blocks10(flags: u8) -> [u8; 10] {
    [0, flags, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff, 0]
}

const fn blocks12(flags: u8) -> [u8; 12] {
    [0, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, GROUP, 0]
}

const fn blocks16(flags: u8) -> [u8; 16] {
    [0, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, GROUP, 0]
}

/// The usage map of a CDB of 12 bytes with a length field at its end; `second` is the map of byte 2.
const fn length12(second: u8) -> [u8; 12] {
    [0, 0, second, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]
}

/// PERSISTENT RESERVE IN and OUT.
const RESERVE_IN: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
const RESERVE_OUT: [u8; 10] = [0, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];
/// Third-party copies: without list identifier, with one of one byte, with one of four bytes; and copies by
/// token.
const COPY: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0];
const COPY_LID1: [u8; 16] = [0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0];
const COPY_LID4: [u8; 16] = [0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0];
const TOKEN: [u8; 16] = [0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, GROUP, 0];

macro_rules! commands {
    ($($opcode:literal $(/ $action:literal)?, $kind:ident, $usage:expr;)*) => {
        [$(Command {
            opcode: $opcode,
            action: commands!(@action $($action)?),
            kind: Kind::$kind,
            usage: &$usage,
        }),*]
    };
    (@action) => { None };
    (@action $action:literal) => { Some($action) };
}

/// Sorted by operation code and service action.
pub(super) static COMMANDS: [Command; 59] = commands! {
    0x00, TestUnitReady, [0, 0, 0, 0, 0, 0];
    0x03, RequestSense, [0, 0x01, 0, 0, 0xff, 0];
    0x08, Read, BLOCKS6;
    0x0a, Write, BLOCKS6;
    0x12, Inquiry, [0, 0x01, 0xff, 0xff, 0xff, 0];
    0x15, ModeSelect, [0, PF_SP, 0, 0, 0xff, 0];
    0x16, Reserve, [0, 0, 0, 0, 0, 0];
    0x17, Release, [0, 0, 0, 0, 0, 0];
    0x1a, ModeSense, [0, 0x08, 0xff, 0xff, 0xff, 0];
    0x1b, StartStopUnit, [0, 0x01, 0, 0x0f, 0xf5, 0];
    0x25, ReadCapacity10, [0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0];
    0x28, Read, blocks10(DPO_FUA);
    0x2a, Write, blocks10(DPO_FUA);
    0x2e, WriteAndVerify, blocks10(DPO_BYTCHK);
    0x2f, Verify, blocks10(DPO_BYTCHK);
    0x34, PreFetch, blocks10(IMMED);
    0x35, SynchronizeCache, blocks10(IMMED_SYNC_NV);
    0x41, WriteSame, blocks10(UNMAP);
    0x42, Unmap, [0, 0, 0, 0, 0, 0, GROUP, 0xff, 0xff, 0];
    0x55, ModeSelect, [0, PF_SP, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
    0x56, Reserve, [0; 10];
    0x57, Release, [0; 10];
    0x5a, ModeSense, [0, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0];
    0x5e / 0x00, PersistentReserveIn, RESERVE_IN;
    0x5e / 0x01, PersistentReserveIn, RESERVE_IN;
    0x5e / 0x02, PersistentReserveIn, RESERVE_IN;
    0x5e / 0x03, PersistentReserveIn, RESERVE_IN;
    0x5f / 0x00, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x01, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x02, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x03, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x04, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x05, PersistentReserveOut, RESERVE_OUT;
    0x5f / 0x06, PersistentReserveOut, RESERVE_OUT;
    0x83 / 0x00, ExtendedCopy, COPY;
    0x83 / 0x10, PopulateToken, TOKEN;
    0x83 / 0x11, WriteUsingToken, TOKEN;
    0x84 / 0x00, CopyStatus, COPY_LID1;
    0x84 / 0x03, CopyParameters, COPY_LID1;
    0x84 / 0x07, TokenInformation, COPY_LID4;
    0x88, Read, blocks16(DPO_FUA);
    0x89, CompareAndWrite, [0, DPO_FUA, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, GROUP, 0];
    0x8a, Write, blocks16(DPO_FUA);
    0x8b, OrWrite, blocks16(DPO_FUA);
    0x8e, WriteAndVerify, blocks16(DPO_BYTCHK);
    0x8f, Verify, blocks16(DPO_BYTCHK);
    0x90, PreFetch, blocks16(IMMED);
    0x91, SynchronizeCache, blocks16(IMMED_SYNC_NV);
    0x93, WriteSame, blocks16(UNMAP_NDOB);
    0x9e / 0x10, ReadCapacity16, [0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 0];
    0x9e / 0x12, GetLbaStatus, [0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0];
    0xa0, ReportLuns, length12(0xff);
    0xa3 / 0x0a, TargetPortGroups, length12(0);
    0xa3 / 0x0c, SupportedOpcodes, [0, 0, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
    0xa3 / 0x0d, SupportedTaskManagement, length12(0x80);
    0xa8, Read, blocks12(DPO_FUA);
    0xaa, Write, blocks12(DPO_FUA);
    0xae, WriteAndVerify, blocks12(DPO_BYTCHK);
    0xaf, Verify, blocks12(DPO_BYTCHK);
};

/// Index of the first row of each operation code in [`COMMANDS`]; `u8::MAX` for unsupported codes.
static FIRST: [u8; 256] = first_rows();

const fn first_rows() -> [u8; 256] {
    let mut first = [u8::MAX; 256];
    let mut row = COMMANDS.len();
    while row > 0 {
        row -= 1;
        first[COMMANDS[row].opcode as usize] = row as u8;
    }
    first
}

/// The rows of an operation code.
fn rows(opcode: u8) -> impl Iterator<Item = &'static Command> {
    let first = usize::from(FIRST[usize::from(opcode)]);
    COMMANDS.get(first..).unwrap_or(&[]).iter().take_while(move |c| c.opcode == opcode)
}

/// The command of a CDB, and the CDB truncated to its length; an error if any invalid bit is set.
#[inline]
pub(super) fn find(cdb: &[u8]) -> Result<(&'static Command, &[u8]), Sense> {
    let Some(&opcode) = cdb.first() else { return Err(Sense::illegal(codes::INVALID_OPERATION_CODE)) };
    let Some(first) = COMMANDS.get(usize::from(FIRST[usize::from(opcode)])) else {
        return Err(Sense::illegal(codes::INVALID_OPERATION_CODE));
    };
    let command = match first.action {
        None => first,
        Some(_) => {
            let action = cdb.get(1).map(|b| b & 0x1f);
            rows(opcode).find(|c| c.action == action).ok_or(Sense::cdb_bit(1, 4))?
        }
    };
    let cdb = cdb.get(..command.usage.len()).ok_or(Sense::cdb(0))?;
    for (byte, (&set, &may)) in cdb.iter().zip(command.usage).enumerate().skip(1) {
        let may = if byte == 1 && command.action.is_some() { may | 0x1f } else { may };
        let bad = set & !may;
        if bad != 0 {
            return Err(Sense::cdb_bit(byte as u16, 7 - bad.leading_zeros() as u8));
        }
    }
    Ok((command, cdb))
}

impl Command {
    /// Appends a descriptor for the list of all commands.
    fn describe(&self, timeouts: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.opcode, 0]);
        out.put16(self.action.unwrap_or(0).into());
        out.extend_from_slice(&[0, u8::from(timeouts) << 1 | u8::from(self.action.is_some())]);
        out.put16(self.usage.len() as u16);
        if timeouts {
            put_timeouts(out);
        }
    }
}

/// A command timeouts descriptor without recommendations.
fn put_timeouts(out: &mut Vec<u8>) {
    out.put16(0x0a);
    out.zeroes(10);
}

/// All commands (REPORTING OPTIONS 000b).
pub fn opcodes_all(timeouts: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    COMMANDS.iter().for_each(|c| c.describe(timeouts, &mut out));
    super::set_length(&mut out, 0, 4);
    out
}

/// One command (REPORTING OPTIONS 001b to 011b): `options` is that field.
///
/// # Errors
/// A service action for a command without one, or none for a command with one.
pub fn opcodes_one(options: u8, opcode: u8, action: u16, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let first = rows(opcode).next();
    let has_actions = first.is_some_and(|c| c.action.is_some());
    match (options, first) {
        (1, Some(_)) if has_actions => return Err(Sense::cdb_bit(2, 2)),
        (2, Some(_)) if !has_actions => return Err(Sense::cdb_bit(2, 2)),
        _ => {}
    }
    let found = if has_actions {
        rows(opcode).find(|c| c.action.map(u16::from) == Some(action))
    } else {
        first.filter(|_| options != 3 || action == 0)
    };
    let Some(command) = found else { return Ok(vec![0, 1, 0, 0]) };
    let mut out = vec![0, u8::from(timeouts) << 7 | 3];
    out.put16(command.usage.len() as u16);
    out.extend_from_slice(command.usage);
    out[4] = command.opcode;
    out[5] |= command.action.unwrap_or(0);
    if timeouts {
        put_timeouts(&mut out);
    }
    Ok(out)
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS data: the functions of iSCSI on tasks, a unit or a target.
pub fn task_management_functions(extended: bool) -> Vec<u8> {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET.
    let mut out = vec![0xd8, 0, 0, 0];
    if extended {
        out[3] = 12;
        out.zeroes(12);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_complete() {
        let order: Vec<_> = COMMANDS.iter().map(|c| (c.opcode, c.action)).collect();
        assert!(order.is_sorted_by(|a, b| a < b), "`rows` needs the table to be sorted by operation code");
        for command in &COMMANDS {
            // SPC-4, "Operation code": the upper three bits determine the length of the CDB.
            let len = match command.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                _ => 12,
            };
            assert_eq!(command.usage.len(), len, "{:#x}", command.opcode);
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (command.opcode, command.action.unwrap_or(0));
            let (found, bytes) = find(&cdb).unwrap();
            assert!(std::ptr::eq(found, command) && bytes.len() == len);
        }
    }

    #[test]
    fn every_invalid_bit_is_reported_by_the_field_pointer() {
        for command in &COMMANDS {
            let actions = if command.action.is_some() { 0x1f } else { 0 };
            for byte in 1..command.usage.len() {
                let may = command.usage[byte] | if byte == 1 { actions } else { 0 };
                for bit in (0..8).filter(|bit| may >> bit & 1 == 0) {
                    let mut cdb = vec![0; command.usage.len()];
                    (cdb[0], cdb[1]) = (command.opcode, command.action.unwrap_or(0));
                    cdb[byte] |= 1 << bit;
                    assert_eq!(find(&cdb).err(), Some(Sense::cdb_bit(byte as u16, bit)));
                }
            }
        }
    }

    #[test]
    fn all_commands_are_reported_in_the_list_and_individually() {
        for timeouts in [false, true] {
            let all = opcodes_all(timeouts);
            let size = if timeouts { 20 } else { 8 };
            assert_eq!(all.len(), 4 + size * COMMANDS.len());
            assert_eq!(all[..4], ((all.len() - 4) as u32).to_be_bytes());
            for descriptor in all[4..].chunks(size) {
                let (opcode, action) = (descriptor[0], u16::from_be_bytes([descriptor[2], descriptor[3]]));
                let has_actions = descriptor[5] & 1 != 0;
                assert_eq!(descriptor[5] & 2 != 0, timeouts);
                let (right, wrong) = if has_actions { (2, 1) } else { (1, 2) };
                assert!(opcodes_one(wrong, opcode, action, timeouts).is_err());
                let one = opcodes_one(right, opcode, action, timeouts).unwrap();
                assert_eq!(one, opcodes_one(3, opcode, action, timeouts).unwrap());
                assert_eq!((one[1] & 7, one[4]), (3, opcode));
                assert_eq!(one[2..4], descriptor[6..8]);
            }
        }
        assert_eq!(opcodes_one(1, 0xff, 0, true).unwrap(), [0, 1, 0, 0]);
        assert_eq!(opcodes_one(2, 0x5e, 9, false).unwrap(), [0, 1, 0, 0]);
        assert_eq!(opcodes_one(3, 0x28, 1, false).unwrap(), [0, 1, 0, 0]);
    }
}
