//! Properties of a request for transports and units: its transfer, its reservation conflicts, its changes.

use super::{BLOCK, Request, Sense, Transfer, VerifyCheck, codes};

/// The class of a command for reservation conflicts (SPC-4, "Commands that are allowed in the presence of
/// various reservations"; SBC-3, "Reservations"; SPC-2, "Reservations").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The command never conflicts.
    Always,
    /// The command conflicts only with RESERVE.
    Status,
    /// The command reads: it conflicts with exclusive access.
    Read,
    /// Changes the unit, or prepares a change: conflicts with exclusive writing, too.
    Write,
    /// RESERVE: conflicts with registrations, and with the RESERVE of another nexus.
    Reserve,
    /// RELEASE: conflicts with registrations.
    Release,
}

impl Request {
    /// The transfer length by its CDB. Except for a read, the data returned may be shorter, and residuals are
    /// then counted from its actual length.
    pub fn transfer(&self) -> Transfer {
        use Request::*;
        let bytes = match *self {
            TestUnitReady
            | SynchronizeCache { .. }
            | StartStopUnit { .. }
            | PreFetch { .. }
            | Reserve
            | Release => Transfer::None,
            Read { len, .. } => Transfer::In(len.into()),
            ReadCapacity10 => Transfer::In(8),
            RequestSense { allocation, .. }
            | Inquiry { allocation, .. }
            | ReportLuns { allocation, .. }
            | ReadCapacity16 { allocation }
            | GetLbaStatus { allocation, .. }
            | ModeSense { allocation, .. }
            | PersistentReserveIn { allocation, .. }
            | CopyStatus { allocation, .. }
            | CopyParameters { allocation }
            | TokenInformation { allocation, .. }
            | TargetPortGroups { allocation }
            | SupportedOpcodes { allocation, .. }
            | SupportedTaskManagement { allocation, .. } => Transfer::In(allocation.into()),
            Write { len, .. } | WriteAndVerify { len, .. } | OrWrite { len, .. } => Transfer::Out(len.into()),
            Verify { len, check, .. } => match check {
                VerifyCheck::Nothing => Transfer::None,
                VerifyCheck::Data => Transfer::Out(len),
                VerifyCheck::Block => Transfer::Out(if len == 0 { 0 } else { BLOCK.into() }),
            },
            CompareAndWrite { len, .. } => Transfer::Out(2 * u64::from(len)),
            WriteSame { no_data, .. } => Transfer::Out(if no_data { 0 } else { BLOCK.into() }),
            Unmap { length }
            | ModeSelect { length, .. }
            | PersistentReserveOut { length, .. }
            | ExtendedCopy { length }
            | PopulateToken { length, .. }
            | WriteUsingToken { length, .. } => Transfer::Out(length.into()),
        };
        match bytes {
            Transfer::In(0) | Transfer::Out(0) => Transfer::None,
            other => other,
        }
    }

    /// Checks that the command can be executed with `bytes` bytes from the initiator, which for a transport
    /// is the expected data transfer length: known before any data arrives.
    ///
    /// With fewer bytes a write writes fewer blocks, and with more the rest is ignored (both are reported as
    /// residuals). Commands to which data of another length would give another meaning require the exact
    /// length.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, PARAMETER LIST LENGTH ERROR, or INVALID FIELD IN COMMAND INFORMATION UNIT.
    pub fn accepts(&self, bytes: u64) -> Result<(), Sense> {
        use Request::*;
        let out = match self.transfer() {
            Transfer::Out(out) => out,
            _ => 0,
        };
        match self {
            CompareAndWrite { .. } if bytes != out => Err(Sense::cdb(13)),
            // With UNMAP some initiators send no block, because unmapped blocks are zero in any case.
            WriteSame { unmap: true, .. } if bytes == 0 => Ok(()),
            WriteSame { .. } if bytes != out => Err(Sense::illegal(codes::INVALID_FIELD_IN_INFORMATION_UNIT)),
            Write { .. } | WriteAndVerify { .. } if bytes.is_multiple_of(BLOCK.into()) => Ok(()),
            Unmap { .. }
            | ModeSelect { .. }
            | PersistentReserveOut { .. }
            | ExtendedCopy { .. }
            | PopulateToken { .. }
            | WriteUsingToken { .. }
                if bytes < out =>
            {
                Err(Sense::length())
            }
            _ if bytes < out => Err(Sense::illegal(codes::INVALID_FIELD_IN_INFORMATION_UNIT)),
            _ => Ok(()),
        }
    }

    /// Class of the command for reservation conflicts. PERSISTENT RESERVE OUT checks conflicts when it is
    /// executed.
    pub fn access(&self) -> Access {
        use Request::*;
        match self {
            Inquiry { .. }
            | ReportLuns { .. }
            | RequestSense { .. }
            | ReadCapacity10
            | ReadCapacity16 { .. }
            | TargetPortGroups { .. }
            | StartStopUnit { start: true } => Access::Always,
            TestUnitReady
            | PersistentReserveIn { .. }
            | PersistentReserveOut { .. }
            | SupportedOpcodes { .. }
            | SupportedTaskManagement { .. } => Access::Status,
            Read { .. } | Verify { .. } | PreFetch { .. } | GetLbaStatus { .. } | ModeSense { .. } => {
                Access::Read
            }
            Write { .. }
            | WriteAndVerify { .. }
            | OrWrite { .. }
            | CompareAndWrite { .. }
            | WriteSame { .. }
            | Unmap { .. }
            | SynchronizeCache { .. }
            | StartStopUnit { start: false }
            | ModeSelect { .. }
            | ExtendedCopy { .. }
            | CopyStatus { .. }
            | CopyParameters { .. }
            | PopulateToken { .. }
            | WriteUsingToken { .. }
            | TokenInformation { .. } => Access::Write,
            Reserve => Access::Reserve,
            Release => Access::Release,
        }
    }

    /// Whether it changes the contents of the unit. False for EXTENDED COPY, which may change another unit.
    pub fn changes(&self) -> bool {
        use Request::*;
        matches!(
            self,
            Write { .. }
                | WriteAndVerify { .. }
                | OrWrite { .. }
                | CompareAndWrite { .. }
                | WriteSame { .. }
                | Unmap { .. }
                | WriteUsingToken { .. }
        )
    }

    /// Whether the command only reads blocks, so that it can be abandoned at any time.
    pub fn only_reads(&self) -> bool {
        use Request::*;
        matches!(self, Read { .. } | Verify { .. } | PreFetch { .. } | GetLbaStatus { .. })
    }

    /// The range that the command changes, as offset and length in bytes, if the CDB states the range.
    pub fn changed_range(&self) -> Option<(u64, u64)> {
        use Request::*;
        match *self {
            Write { offset, len, .. }
            | WriteAndVerify { offset, len, .. }
            | OrWrite { offset, len, .. }
            | CompareAndWrite { offset, len, .. }
            | WriteSame { offset, len, .. } => Some((offset, len.into())),
            _ => None,
        }
    }
}
