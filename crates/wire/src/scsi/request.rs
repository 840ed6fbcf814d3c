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
    /// No data.
    None,
    /// To the initiator: the exact number of bytes of a read; the maximum for other data.
    In(u64),
    /// From the initiator, in bytes.
    Out(u64),
}

/// The comparison of VERIFY (BYTCHK field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyCheck {
    /// No comparison: the range must be readable.
    Nothing,
    /// The range with data of the same length.
    Data,
    /// Each block of the range with a single block of data.
    Block,
}

/// The requested values of a mode page (PC field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageControl {
    /// Current values.
    Current,
    /// A mask of the bits that can be changed.
    Changeable,
    /// Default values.
    Default,
    /// Saved values, which are not supported.
    Saved,
}

/// Service action of PERSISTENT RESERVE IN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveIn {
    /// READ KEYS.
    Keys,
    /// READ RESERVATION.
    Reservation,
    /// REPORT CAPABILITIES.
    Capabilities,
    /// READ FULL STATUS.
    FullStatus,
}

/// Service action of PERSISTENT RESERVE OUT, with its reservation type if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveOut {
    /// REGISTER.
    Register,
    /// RESERVE.
    Reserve(ReservationType),
    /// RELEASE.
    Release(ReservationType),
    /// CLEAR.
    Clear,
    /// PREEMPT.
    Preempt(ReservationType),
    /// PREEMPT AND ABORT.
    PreemptAndAbort(ReservationType),
    /// REGISTER AND IGNORE EXISTING KEY.
    RegisterAndIgnore,
}

/// The commands that REPORT SUPPORTED OPERATION CODES reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpcodeQuery {
    /// All.
    All,
    /// One.
    One {
        /// REPORTING OPTIONS: 1, without service action; 2, with one; 3, either.
        options: u8,
        /// Its operation code.
        opcode: u8,
        /// Its service action.
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
        /// In descriptor format.
        descriptor: bool,
        /// Most data.
        allocation: u32,
    },
    /// INQUIRY.
    Inquiry {
        /// A page of vital product data; otherwise the standard data.
        page: Option<u8>,
        /// Most data.
        allocation: u32,
    },
    /// REPORT LUNS.
    ReportLuns {
        /// SELECT REPORT: 0 and 2 request units, 1 well-known ones, which are not supported.
        select: u8,
        /// Most data.
        allocation: u32,
    },
    /// READ CAPACITY(10).
    ReadCapacity10,
    /// READ CAPACITY(16).
    ReadCapacity16 {
        /// Most data.
        allocation: u32,
    },
    /// READ, at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Read {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// WRITE, at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Write {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// WRITE AND VERIFY.
    WriteAndVerify {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
        /// Compare the stored data with the sent data.
        compare: bool,
    },
    /// VERIFY. With [`VerifyCheck::Data`] at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Verify {
        /// Start.
        offset: u64,
        /// Length.
        len: u64,
        /// The comparison.
        check: VerifyCheck,
    },
    /// ORWRITE(16).
    OrWrite {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// COMPARE AND WRITE. The data consists of the expected contents, then the new contents.
    CompareAndWrite {
        /// Start.
        offset: u64,
        /// Length that is compared, and written.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// WRITE SAME, at most [`WRITE_SAME_MAX`](super::WRITE_SAME_MAX).
    WriteSame {
        /// Start.
        offset: u64,
        /// Length.
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
        /// Start; before the end of the unit.
        offset: u64,
        /// Most data.
        allocation: u32,
    },
    /// PRE-FETCH.
    PreFetch {
        /// Start.
        offset: u64,
        /// Length; a length of 0 in the CDB, the rest of the unit, is resolved here.
        len: u64,
    },
    /// SYNCHRONIZE CACHE; applies to the whole cache, whatever the range.
    SynchronizeCache {
        /// Answer before the flush has completed.
        immediate: bool,
    },
    /// START STOP UNIT.
    StartStopUnit {
        /// Start, instead of stop or a change of the power condition.
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
        /// The requested values.
        control: PageControl,
        /// Page code; 3Fh means all pages.
        page: u8,
        /// Subpage code; 00h means only the page, FFh also all its subpages.
        subpage: u8,
        /// Most data.
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
        /// Service action.
        action: ReserveIn,
        /// Most data.
        allocation: u32,
    },
    /// PERSISTENT RESERVE OUT.
    PersistentReserveOut {
        /// Service action.
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
        /// Most data.
        allocation: u32,
    },
    /// RECEIVE COPY OPERATING PARAMETERS.
    CopyParameters {
        /// Most data.
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
        /// Most data.
        allocation: u32,
    },
    /// REPORT TARGET PORT GROUPS.
    TargetPortGroups {
        /// Most data.
        allocation: u32,
    },
    /// REPORT SUPPORTED OPERATION CODES.
    SupportedOpcodes {
        /// The requested commands.
        query: OpcodeQuery,
        /// Include command timeouts descriptors.
        timeouts: bool,
        /// Most data.
        allocation: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    SupportedTaskManagement {
        /// Use the long format.
        extended: bool,
        /// Most data.
        allocation: u32,
    },
}
