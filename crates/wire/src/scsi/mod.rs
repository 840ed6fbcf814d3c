//! SCSI block commands, device server side: decodes CDBs and parameter lists into typed values, and encodes
//! the returned data.
//!
//! Follows SPC-4 (INCITS 513), SBC-3 (INCITS 514) and, for RESERVE and RELEASE, SPC-2; comments cite their
//! clause names.
//!
//! [`Request::decode`] decodes a CDB: the single table of commands (`command`) lists the supported commands
//! and the valid bits of their CDBs, and the same table answers REPORT SUPPORTED OPERATION CODES. A decoded
//! [`Request`] has only supported fields, and its range is within the unit; callers need not check again. An
//! invalid CDB becomes a [`Sense`]. Parameter lists (`mode`, `reserve`, `copy`, `token`, `unmap`) are decoded
//! in the same way, into lists whose length is bounded by the limits in this file.

mod command;
mod copy;
mod data;
mod decode;
mod inquiry;
mod mode;
mod properties;
mod request;
mod reserve;
mod sense;
mod token;
mod vpd;

pub use command::{opcodes_all, opcodes_one, task_management_functions};
pub use copy::{
    COPY_DESCRIPTORS_MAX, COPY_SEGMENT_BLOCKS_MAX, COPY_SEGMENTS_MAX, COPY_TARGETS_MAX, CopyList,
    CopyOutcome, CopySegment, Designator, copy_parameters, copy_status,
};
pub use data::{
    AccessState, BlockRange, LbaStatus, PortGroup, capacity10, capacity16, lba_status, report_luns,
    target_port_groups, unmap_list,
};
pub use inquiry::standard_inquiry;
pub use mode::{ModeState, mode_select, mode_sense, reports_cache};
pub use properties::Access;
pub use request::{OpcodeQuery, PageControl, Request, ReserveIn, ReserveOut, Rules, Transfer, VerifyCheck};
pub use reserve::{
    FullStatus, ReservationType, ReserveParameters, full_status, keys, reservation, reservation_capabilities,
};
pub use sense::{Code, Field, Sense, SenseKey, codes};
pub use token::{
    PopulateList, ROD_TYPE_CHANGE_VULNERABLE, ROD_TYPE_ZERO, TOKEN, Token, TokenOutcome, WriteList,
    token_information,
};
pub use vpd::{Identity, PortIdentity, VpdPage, vpd_page};

/// Bytes of a logical block.
pub const BLOCK: u32 = 512;
/// Logical blocks per physical block, as a power of two (READ CAPACITY(16), LOGICAL BLOCKS PER PHYSICAL BLOCK
/// EXPONENT): the engine maps 4096 bytes.
pub const PHYSICAL_EXPONENT: u8 = 3;

/// Maximum length of a read or write, in blocks (MAXIMUM TRANSFER LENGTH): 16 MiB.
pub const TRANSFER_MAX: u32 = 32768;
/// Optimal read or write, in blocks (OPTIMAL TRANSFER LENGTH): 1 MiB.
pub const TRANSFER_OPTIMAL: u32 = 2048;
/// Maximum length of a WRITE SAME, in blocks (MAXIMUM WRITE SAME LENGTH).
pub const WRITE_SAME_MAX: u32 = TRANSFER_MAX;
/// Maximum length of a COMPARE AND WRITE, in blocks (MAXIMUM COMPARE AND WRITE LENGTH): the maximum of its
/// CDB field.
pub const COMPARE_MAX: u8 = 255;
/// Maximum number of descriptors of an UNMAP (MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT).
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Maximum length of a parameter list, in bytes: the limits of the individual lists are all far below.
pub const PARAMETERS_MAX: u32 = 64 << 10;
/// Maximum number of descriptors in GET LBA STATUS data; an initiator requests further descriptors
/// separately.
pub const STATUS_DESCRIPTORS_MAX: u32 = 1024;
/// Maximum number of ranges of a POPULATE TOKEN or WRITE USING TOKEN (MAXIMUM RANGE DESCRIPTORS).
pub const TOKEN_RANGES_MAX: u16 = 64;
/// Maximum blocks that a token represents, or that one WRITE USING TOKEN writes (MAXIMUM TOKEN TRANSFER
/// SIZE): 4 GiB.
pub const TOKEN_BLOCKS_MAX: u64 = 8 << 20;
/// Default inactivity timeout of a token, in seconds.
pub const TOKEN_TIMEOUT: u32 = 60;
/// Maximum inactivity timeout that can be requested, in seconds.
pub const TOKEN_TIMEOUT_MAX: u32 = 300;

/// Status of a command (SAM-5, "Status codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The command succeeded.
    Good = 0x00,
    /// Sense data is available.
    CheckCondition = 0x02,
    /// The server is out of resources for the command.
    Busy = 0x08,
    /// Another nexus has reserved the unit.
    ReservationConflict = 0x18,
    /// The initiator has too many commands under way.
    TaskSetFull = 0x28,
    /// Another nexus has aborted the command.
    TaskAborted = 0x40,
}

/// Appends big-endian integers, the format of all SCSI fields.
trait Put {
    fn put16(&mut self, value: u16);
    fn put32(&mut self, value: u32);
    fn put64(&mut self, value: u64);
    fn zeroes(&mut self, count: usize);
}

impl Put for Vec<u8> {
    fn put16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn zeroes(&mut self, count: usize) {
        self.resize(self.len() + count, 0);
    }
}

/// Reads big-endian integers at an offset; 0 if the bytes end before.
trait Get {
    fn get16(&self, at: usize) -> u16;
    fn get32(&self, at: usize) -> u32;
    fn get64(&self, at: usize) -> u64;
}

impl Get for [u8] {
    #[inline]
    fn get16(&self, at: usize) -> u16 {
        array(self, at).map_or(0, u16::from_be_bytes)
    }
    #[inline]
    fn get32(&self, at: usize) -> u32 {
        array(self, at).map_or(0, u32::from_be_bytes)
    }
    #[inline]
    fn get64(&self, at: usize) -> u64 {
        array(self, at).map_or(0, u64::from_be_bytes)
    }
}

/// The `N` bytes at `at`, if they exist.
#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// Sets the length field of `size` bytes at `at` to the number of bytes after it.
fn set_length(data: &mut [u8], at: usize, size: usize) {
    let len = ((data.len() - at - size) as u64).to_be_bytes();
    data[at..at + size].copy_from_slice(&len[8 - size..]);
}
