//! The response to a command.

use forebay_wire::scsi::{Sense, Status};

/// The response to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// SCSI status of the command.
    pub status: Status,
    /// Encoded sense data; empty unless the status is CHECK CONDITION.
    pub sense: Vec<u8>,
    /// Data for the initiator, cut to its allocation length.
    pub data_in: Vec<u8>,
    /// Some of the data was not in RAM, but only in the store.
    pub is_from_store: bool,
}

impl Response {
    /// Returns a response of success without data.
    pub fn good() -> Response {
        Response { status: Status::Good, sense: Vec::new(), data_in: Vec::new(), is_from_store: false }
    }

    /// Success with data, cut to an allocation length.
    pub fn data(mut data_in: Vec<u8>, allocation: u32) -> Response {
        data_in.truncate(allocation as usize);
        Response { data_in, ..Response::good() }
    }

    /// The response RESERVATION CONFLICT.
    pub fn conflict() -> Response {
        Response { status: Status::ReservationConflict, ..Response::good() }
    }

    /// The response BUSY, which requests the initiator to retry later.
    pub fn busy() -> Response {
        Response { status: Status::Busy, ..Response::good() }
    }

    /// The response CHECK CONDITION, in one of the two formats of sense data.
    pub fn check(sense: &Sense, descriptor: bool) -> Response {
        Response { status: Status::CheckCondition, sense: sense.encode(descriptor), ..Response::good() }
    }
}
