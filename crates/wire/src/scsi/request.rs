//! What an initiator asks for, as typed values.

use super::reserve::ReservationType;

/// What CDBs are checked against: the unit as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Size of the unit in logical blocks.
    pub blocks: u64,
}

/// How much a command transfers, and which way, by its CDB alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Nothing.
    None,
    /// To the initiator: so many bytes of a read; at most so many of other data, which is as long as it is.
    In(u64),
    /// From the initiator, in bytes.
    Out(u64),
}

/// What VERIFY compares (BYTCHK field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyCheck {
    /// Nothing: the range has to be readable.
    Nothing,
    /// The range with as much data.
    Data,
    /// Each block of the range with one block of data.
    Block,
}

/// Which values of a mode page are asked for (PC field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageControl {
    /// As they are.
    Current,
    /// Which bits can be changed.
    Changeable,
    /// As they are at first.
    Default,
    /// As they are saved: they are not.
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

/// Service action of PERSISTENT RESERVE OUT, with the type of those that have one.
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

/// Which commands REPORT SUPPORTED OPERATION CODES is to tell of.
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

/// A command that can be carried out. Offsets and lengths are in bytes, are multiples of
/// [`BLOCK`](super::BLOCK), and lie within the unit. `allocation` is the most data that the initiator takes;
/// `length` is that of the parameter list.
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
        /// A page of vital product data; else the standard data.
        page: Option<u8>,
        /// Most data.
        allocation: u32,
    },
    /// REPORT LUNS.
    ReportLuns {
        /// SELECT REPORT: 0 and 2 ask for units, 1 for well-known ones, of which there are none.
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
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
    },
    /// WRITE, at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Write {
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// WRITE AND VERIFY.
    WriteAndVerify {
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
        /// Compares what is stored with what was sent.
        compare: bool,
    },
    /// VERIFY. With [`VerifyCheck::Data`] at most [`TRANSFER_MAX`](super::TRANSFER_MAX).
    Verify {
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// What is compared.
        check: VerifyCheck,
    },
    /// ORWRITE(16).
    OrWrite {
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// COMPARE AND WRITE. The data is what is to be there, then what is to be written.
    CompareAndWrite {
        /// Where.
        offset: u64,
        /// How much is compared, and written.
        len: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// WRITE SAME, at most [`WRITE_SAME_MAX`](super::WRITE_SAME_MAX).
    WriteSame {
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
        /// It may be unmapped, if the block is zero.
        unmap: bool,
        /// There is no data: the block is zero.
        no_data: bool,
    },
    /// UNMAP.
    Unmap {
        /// Bytes of the parameter list.
        length: u32,
    },
    /// GET LBA STATUS.
    GetLbaStatus {
        /// From where; before the end of the unit.
        offset: u64,
        /// Most data.
        allocation: u32,
    },
    /// PRE-FETCH.
    PreFetch {
        /// Where.
        offset: u64,
        /// How much; 0 is the rest of the unit, which has been made the length here.
        len: u64,
    },
    /// SYNCHRONIZE CACHE; the whole cache, whatever the range.
    SynchronizeCache {
        /// Answer first.
        immediate: bool,
    },
    /// START STOP UNIT.
    StartStopUnit {
        /// Start, rather than stop or change the power condition.
        start: bool,
    },
    /// MODE SENSE.
    ModeSense {
        /// With the header of the 10-byte command.
        ten: bool,
        /// The block descriptor may be the long one.
        long_descriptor: bool,
        /// No block descriptor.
        no_descriptor: bool,
        /// Which values.
        control: PageControl,
        /// Page code; 3Fh is all.
        page: u8,
        /// Subpage code; 00h is the page itself, FFh it and all its subpages.
        subpage: u8,
        /// Most data.
        allocation: u32,
    },
    /// MODE SELECT.
    ModeSelect {
        /// With the header of the 10-byte command.
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
        /// Of which commands.
        query: OpcodeQuery,
        /// With command timeouts descriptors.
        timeouts: bool,
        /// Most data.
        allocation: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    SupportedTaskManagement {
        /// The long form.
        extended: bool,
        /// Most data.
        allocation: u32,
    },
}
