//! Protocol messages as typed values: decodes the requests of peers, and encodes the replies.
//!
//! The crate contains no sockets, no tasks, and no allocation whose size a peer controls. All input of a peer
//! is bounded and checked here, once; callers can rely on decoded requests being valid.

// The input is untrusted: nothing that decodes it may panic.
#![deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used)]

mod crc;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod iscsi;
pub mod nbd;
pub mod nfs;
pub mod nvme;
pub mod rpc;
pub mod scsi;

pub use crc::crc32;
