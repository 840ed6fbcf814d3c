//! What peers say, as typed values: bytes in, requests out; replies in, bytes out.
//!
//! No sockets, no tasks, no allocation that a peer can size. Everything a peer sends is bounded and checked
//! here, once; the code behind takes a request as valid.

pub mod fuzzing;
pub mod iscsi;
pub mod nbd;
pub mod scsi;
