//! How a command ended, and what the engine's errors are in SCSI's words.

use forebay_engine::Error;
use forebay_wire::scsi::{Request, Rules, Sense, SenseKey, Status, codes, report_luns, standard_inquiry};

/// Revision in INQUIRY data, which has room for four characters.
pub(super) const REVISION: &str =
    concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status.
    pub status: Status,
    /// Sense data as it is sent; empty unless the status is CHECK CONDITION.
    pub sense: Vec<u8>,
    /// Data for the initiator, no longer than it takes.
    pub data_in: Vec<u8>,
}

impl Response {
    /// Success without data.
    pub fn good() -> Response {
        Response { status: Status::Good, sense: Vec::new(), data_in: Vec::new() }
    }

    /// Success with data, of which the initiator takes `allocation` bytes.
    pub fn data(mut data_in: Vec<u8>, allocation: u32) -> Response {
        data_in.truncate(allocation as usize);
        Response { data_in, ..Response::good() }
    }

    /// RESERVATION CONFLICT.
    pub fn conflict() -> Response {
        Response { status: Status::ReservationConflict, ..Response::good() }
    }

    /// CHECK CONDITION, in one of the two formats of sense data.
    pub fn check(sense: &Sense, descriptor: bool) -> Response {
        Response { status: Status::CheckCondition, sense: sense.encode(descriptor), ..Response::good() }
    }
}

/// What an initiator is told of an error of the engine's.
pub fn sense_of(error: &Error) -> Sense {
    match error {
        Error::OutOfRange => Sense::illegal(codes::LBA_OUT_OF_RANGE),
        // Both ranges of a copy are in its parameters.
        Error::Overlap => Sense::illegal(codes::INVALID_FIELD_IN_PARAMETER_LIST),
        Error::ReadOnly(_) => Sense::new(SenseKey::DataProtect, codes::WRITE_PROTECTED),
        Error::NoSpace => Sense::new(SenseKey::DataProtect, codes::SPACE_ALLOCATION_FAILED),
        Error::Damaged(_) | Error::MapDamaged(_) | Error::MapsDamaged { .. } | Error::Format(_) => {
            Sense::new(SenseKey::MediumError, codes::UNRECOVERED_READ_ERROR)
        }
        Error::Closed => Sense::new(SenseKey::NotReady, codes::NOT_READY),
        _ => Sense::new(SenseKey::HardwareError, codes::INTERNAL_TARGET_FAILURE),
    }
}

/// Answers a command to a unit that is not there; `luns` are those that the initiator may use.
pub fn absent(cdb: &[u8], luns: &[u16]) -> Response {
    let missing = Sense::illegal(codes::LOGICAL_UNIT_NOT_SUPPORTED);
    match Request::decode(cdb, &Rules { blocks: 0 }) {
        Ok(Request::Inquiry { page: None, allocation }) => {
            Response::data(standard_inquiry(false, REVISION), allocation)
        }
        Ok(Request::ReportLuns { select, allocation }) => {
            Response::data(report_luns(if select == 1 { &[] } else { luns }), allocation)
        }
        Ok(Request::RequestSense { descriptor, allocation }) => {
            Response::data(missing.encode(descriptor), allocation)
        }
        _ => Response::check(&missing, false),
    }
}
