//! iSCSI, target side (RFC 7143): decodes the PDUs of an initiator into typed requests, and encodes replies.
//!
//! [`decode`] finds the PDUs in a stream, and checks their digests; [`Request::parse`] decodes one. [`text`]
//! is the `key=value` format of logins and texts, [`Negotiator`] answers the operational keys. [`reply`]
//! builds the headers of a target's PDUs, and [`Digests`] frames them.

mod negotiate;
mod pdu;
pub mod reply;
mod request;
pub mod text;

pub use crate::crc::crc32c;
pub use negotiate::{Negotiator, Offer, Parameters};
pub use pdu::{BHS, Digests, Header, Pdu, ProtocolError, Step, decode, padding};
pub use request::{Command, DataOut, Login, Lun, Numbering, Request, TaskFunction};

/// The reserved tag that means no tag (RFC 7143, 11.2.1.8 and 11.7.4).
pub const NO_TAG: u32 = 0xffff_ffff;

/// Whether `a` precedes `b` in a sequence of numbers that wraps (RFC 1982, 32 bits).
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
