//! Requests of an initiator, as typed values.

use super::reserve::ReservationType;

/// The rules for CDBs: the present state of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Size of the unit in logical blocks.
    pub blocks: u64,
}

/// The direction and length of a transfer, by the CDB alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The command transfers no data.
    None,
    /// Data is sent to the initiator: the exact number of bytes of a read, or the maximum for other data.
    In(u64),
    /// The initiator sends this number of bytes.
    Out(u64),
}

/// The comparison of VERIFY (BYTCHK field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyCheck {
    /// Nothing is compared: the range must be readable.
    Nothing,
    /// The range with data of the same length.
    Data,
    /// Each block of the range is compared with a single block of data.
    Block,
}

/// The requested values of a mode page (PC field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageControl {
    /// The current values of the page are requested.
    Current,
    /// A mask of the bits that can be changed.
    Changeable,
    /// The default values of the page are requested.
    Default,
    /// The saved values are requested, which are not supported.
    Saved,
}

/// Service action of PERSISTENT RESERVE IN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveIn {
    /// READ KEYS: the registered keys.
    Keys,
    /// READ RESERVATION: the holder and the type of the reservation.
    Reservation,
    /// REPORT CAPABILITIES: what the unit supports.
    Capabilities,
    /// READ FULL STATUS: all registrations, with their ports.
    FullStatus,
}

/// Service action of PERSISTENT RESERVE OUT, with its reservation type if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveOut {
    /// REGISTER: registers a key, or removes a registration.
    Register,
    /// RESERVE: makes a reservation.
    Reserve(ReservationType),
    /// RELEASE: ends the reservation.
    Release(ReservationType),
    /// CLEAR: removes the reservation and all registrations.
    Clear,
    /// PREEMPT: removes registrations of other nexuses.
    Preempt(ReservationType),
    /// PREEMPT AND ABORT: as PREEMPT, and aborts the commands of these nexuses.
    PreemptAndAbort(ReservationType),
    /// REGISTER AND IGNORE EXISTING KEY: registers a key whatever the present key is.
    RegisterAndIgnore,
}

/// The commands that REPORT SUPPORTED OPERATION CODES reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpcodeQuery {
    /// All commands are requested.
    All,
    /// One command is requested.
    One {
        /// REPORTING OPTIONS: 1, without service action; 2, with one; 3, either.
        options: u8,
        /// Operation code of the requested command.
        opcode: u8,
        /// Service action of the requested command.
        action: u16,
    },
}

/// A valid command. Offsets and lengths are in bytes, are multiples of [`BLOCK`](super::BLOCK), and are
/// within the unit. `allocation` is the most data that the initiator accepts; `length` is the length of the
/// parameter list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// TEST UNIT READY.
    TestUnitReady,
    /// REQUEST SENSE.
    RequestSense {
        /// Sense data is requested in descriptor format.
        descriptor: bool,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// INQUIRY.
    Inquiry {
        /// The requested page of vital product data; `None` for the standard data.
        page: Option<u8>,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// REPORT LUNS.
    ReportLuns {
        /// SELECT REPORT: 0 and 2 request units, 1 requests well-known units, which are not supported.
        select: u8,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// READ CAPACITY(10).
    ReadCapacity10,
    /// READ CAPACITY(16).
    ReadCapacity16 {
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// READ, at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Read {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
    },
    /// WRITE, at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Write {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The change has to be durable when it is answered (FUA).
        fua: bool,
    },
    /// WRITE AND VERIFY.
    WriteAndVerify {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// Compare the stored data with the sent data.
        compare: bool,
    },
    /// VERIFY. With [`VerifyCheck::Data`] at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Verify {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// How the blocks are compared.
        check: VerifyCheck,
    },
    /// ORWRITE(16).
    OrWrite {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The change has to be durable when it is answered (FUA).
        fua: bool,
    },
    /// COMPARE AND WRITE. The data consists of the expected contents, then the new contents.
    CompareAndWrite {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length in bytes of what is compared, and of what is written.
        len: u32,
        /// The change has to be durable when it is answered (FUA).
        fua: bool,
    },
    /// WRITE SAME, at most [`WRITE_SAME_MAX`](super::WRITE_SAME_MAX).
    WriteSame {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The range may be unmapped if the block is zero.
        unmap: bool,
        /// No data is sent: the block is zero.
        no_data: bool,
    },
    /// UNMAP.
    Unmap {
        /// Bytes of the parameter list.
        length: u32,
    },
    /// GET LBA STATUS.
    GetLbaStatus {
        /// Offset in bytes from which on the status is requested; before the end of the unit.
        offset: u64,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// PRE-FETCH.
    PreFetch {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes. A length of 0 in the CDB, which stands for all blocks up to the end,
        /// is resolved.
        len: u64,
    },
    /// SYNCHRONIZE CACHE. The range is ignored: the command applies to the whole cache.
    SynchronizeCache {
        /// The command is answered before the flush has completed.
        immediate: bool,
    },
    /// START STOP UNIT.
    StartStopUnit {
        /// The unit is to be started, and not stopped or changed in its power condition.
        start: bool,
    },
    /// MODE SENSE.
    ModeSense {
        /// Use the header of the 10-byte command.
        ten: bool,
        /// The long block descriptor is allowed.
        long_descriptor: bool,
        /// Omit the block descriptor.
        no_descriptor: bool,
        /// The values of the page that are requested.
        control: PageControl,
        /// Page code; 3Fh means all pages.
        page: u8,
        /// Subpage code; 00h means only the page, FFh also all its subpages.
        subpage: u8,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// MODE SELECT.
    ModeSelect {
        /// Use the header of the 10-byte command.
        ten: bool,
        /// Bytes of the parameter list.
        length: u32,
    },
    /// PERSISTENT RESERVE IN.
    PersistentReserveIn {
        /// Service action of the command.
        action: ReserveIn,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// PERSISTENT RESERVE OUT.
    PersistentReserveOut {
        /// Service action of the command.
        action: ReserveOut,
        /// Bytes of the parameter list.
        length: u32,
    },
    /// RESERVE (SPC-2).
    Reserve,
    /// RELEASE (SPC-2).
    Release,
    /// EXTENDED COPY(LID1).
    ExtendedCopy {
        /// Bytes of the parameter list.
        length: u32,
    },
    /// RECEIVE COPY STATUS(LID1).
    CopyStatus {
        /// List identifier of the copy.
        list: u8,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// RECEIVE COPY OPERATING PARAMETERS.
    CopyParameters {
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// POPULATE TOKEN.
    PopulateToken {
        /// List identifier.
        list: u32,
        /// Bytes of the parameter list.
        length: u32,
    },
    /// WRITE USING TOKEN.
    WriteUsingToken {
        /// List identifier.
        list: u32,
        /// Bytes of the parameter list.
        length: u32,
    },
    /// RECEIVE ROD TOKEN INFORMATION.
    TokenInformation {
        /// List identifier of the POPULATE TOKEN or WRITE USING TOKEN.
        list: u32,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// REPORT TARGET PORT GROUPS.
    TargetPortGroups {
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// REPORT SUPPORTED OPERATION CODES.
    SupportedOpcodes {
        /// The commands about which the initiator asks.
        query: OpcodeQuery,
        /// Include command timeouts descriptors.
        timeouts: bool,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    SupportedTaskManagement {
        /// Use the long format.
        extended: bool,
        /// Maximum bytes of the response data (ALLOCATION LENGTH).
        allocation: u32,
    },
}
