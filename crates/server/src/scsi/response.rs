//! The response to a command.

use forebay_wire::scsi::{Request, Rules, Sense, Status, codes, report_luns, standard_inquiry};

/// Revision in INQUIRY data, a field of four characters.
pub(super) const REVISION: &str =
    concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// The response to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status.
    pub status: Status,
    /// Encoded sense data; empty unless the status is CHECK CONDITION.
    pub sense: Vec<u8>,
    /// Data for the initiator, cut to its allocation length.
    pub data_in: Vec<u8>,
    /// Some of the data was in the store only.
    pub is_from_store: bool,
}

impl Response {
    /// Success without data.
    pub fn good() -> Response {
        Response { status: Status::Good, sense: Vec::new(), data_in: Vec::new(), is_from_store: false }
    }

    /// Success with data, cut to an allocation length.
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

/// The response to a command for a LUN without a unit. `luns` are the LUNs that the initiator can use.
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
