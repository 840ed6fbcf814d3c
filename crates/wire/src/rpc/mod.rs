//! ONC RPC version 2 over TCP, server side (RFC 5531), with data in XDR (RFC 4506).
//!
//! [`next_record`] finds the records in a stream, [`Call`] is the header of a call with its arguments, and
//! [`Reply`] frames replies. Names of fields follow the RFC; comments cite its sections.

mod call;
mod record;
mod reply;
mod xdr;

pub use call::{AuthError, AuthSys, Call, CallError, Credential};
pub use record::{FRAGMENTS_MAX, Record, RecordError, next_record};
pub use reply::Reply;
pub use xdr::{Decoder, Encoder, Garbage};

/// Bytes of the mark in front of each fragment (section 11).
pub const MARK: usize = 4;
