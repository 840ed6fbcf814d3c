//! Reasons why a connection ends, and the statuses of commands that a unit refused.

use forebay_wire::nvme::{FatalError, Status};
use forebay_wire::scsi;

use crate::plane::Cut;
use crate::scsi::Response;

/// Why a connection ended, unless the host ended it.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Fatal(#[from] FatalError),
    #[error("{0}")]
    Cut(#[from] Cut),
    #[error("a Connect was refused: {0}")]
    Refused(&'static str),
    #[error("{0}")]
    Ended(&'static str),
}

/// The key and the code of sense data, in either format.
fn sense(bytes: &[u8]) -> Option<(u8, (u8, u8))> {
    let byte = |at: usize| bytes.get(at).copied();
    match byte(0)? & 0x7f {
        0x72 => Some((byte(1)? & 0xf, (byte(2)?, byte(3)?))),
        _ => Some((byte(2)? & 0xf, (byte(12)?, byte(13)?))),
    }
}

/// The only table of the NVMe statuses for responses of the device server (NVM 3.1.1; the reverse of the
/// NVM Express SCSI translation).
pub(super) fn status_of(response: &Response) -> Status {
    match response.status {
        scsi::Status::Good => return Status::SUCCESS,
        scsi::Status::ReservationConflict => return Status::RESERVATION_CONFLICT,
        scsi::Status::Busy | scsi::Status::TaskSetFull => return Status::COMMAND_INTERRUPTED,
        scsi::Status::TaskAborted => return Status::ABORTED_BY_REQUEST,
        scsi::Status::CheckCondition => {}
    }
    match sense(&response.sense) {
        Some((0x02, (0x04, 0x03))) => Status::NAMESPACE_NEEDS_ATTENTION,
        Some((0x02, _)) => Status::NAMESPACE_NOT_READY,
        Some((0x03, _)) => Status::READ_ERROR,
        Some((0x05, (0x21, _))) => Status::LBA_OUT_OF_RANGE,
        Some((0x05, (0x25, _))) => Status::INVALID_NAMESPACE,
        Some((0x05, _)) => Status::INVALID_FIELD,
        Some((0x07, (0x27, 0x07))) => Status::CAPACITY_EXCEEDED,
        Some((0x07, _)) => Status::NAMESPACE_PROTECTED,
        Some((0x0b, _)) => Status::COMMAND_INTERRUPTED,
        Some((0x0e, _)) => Status::COMPARE_FAILURE,
        _ => Status::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::Error;
    use forebay_wire::scsi::{Sense, SenseKey, codes};

    use super::*;
    use crate::scsi::sense_of;

    #[test]
    fn each_failure_has_its_status_in_both_formats_of_sense_data() {
        let miscompare = Sense::new(SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY).at(1 << 40);
        let cleared = Sense::new(SenseKey::AbortedCommand, codes::COMMANDS_CLEARED_BY_SERVER);
        for (sense, status) in [
            (sense_of(&Error::OutOfRange), Status::LBA_OUT_OF_RANGE),
            (sense_of(&Error::NoSpace), Status::CAPACITY_EXCEEDED),
            (sense_of(&Error::ReadOnly("a".into())), Status::NAMESPACE_PROTECTED),
            (sense_of(&Error::Damaged("a".into())), Status::READ_ERROR),
            (sense_of(&Error::Latched("a".into())), Status::INTERNAL_ERROR),
            (sense_of(&Error::Closed), Status::NAMESPACE_NOT_READY),
            (
                sense_of(&Error::MemoryLost { name: "a".into(), remedy: "resume" }),
                Status::NAMESPACE_NEEDS_ATTENTION,
            ),
            (miscompare, Status::COMPARE_FAILURE),
            (cleared, Status::COMMAND_INTERRUPTED),
        ] {
            for descriptor in [false, true] {
                assert_eq!(status_of(&Response::check(&sense, descriptor)), status, "{sense:?}");
            }
        }
        assert_eq!(status_of(&Response::conflict()), Status::RESERVATION_CONFLICT);
        assert_eq!(status_of(&Response::good()), Status::SUCCESS);
    }
}
