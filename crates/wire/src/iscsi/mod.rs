//! iSCSI, the target's side (RFC 7143): PDUs of an initiator in, typed requests out; replies in, bytes out.
//!
//! [`decode`] finds the PDUs in a stream, and checks their digests; [`Request::parse`] says what one asks for.
//! [`text`] is the `key=value` form of logins and texts, [`Negotiator`] answers the operational keys. [`reply`]
//! builds the headers of what a target sends, and [`Digests`] frames them.

mod crc;
mod negotiate;
mod pdu;
pub mod reply;
mod request;
pub mod text;

pub use crc::crc32c;
pub use negotiate::{Negotiator, Offer, Parameters};
pub use pdu::{BHS, Digests, Header, Pdu, ProtocolError, Step, decode, padding};
pub use request::{Command, DataOut, Login, Lun, Numbering, Request, TaskFunction};

/// A tag that stands for none (RFC 7143, 11.2.1.8 and 11.7.4).
pub const NO_TAG: u32 = 0xffff_ffff;

/// Where a number is in the sequence, which wraps (RFC 1982, 32 bits): `a` before `b`.
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
