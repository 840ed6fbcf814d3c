//! The server and its command line.
//!
//! A command passes through the command line, the configuration of `serve`, the running server and its engine
//! thread, the HTTP/JSON API, the control plane, and the readers of disk image files. The front ends `nbd`
//! and `iscsi` share the data plane (`plane`); `scsi` has the logical units of iSCSI targets.
//!
//! Disks and the durability of writes are the engine's responsibility, not this crate's. The control plane
//! runs on separate threads and cannot delay a guest.

pub mod access;
pub mod api;
pub mod cli;
mod clock;
pub mod config;
pub mod control;
mod dashboard;
mod document;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod import;
pub mod iscsi;
pub mod limits;
pub mod log;
pub mod metrics;
mod modes;
pub mod nbd;
mod peer;
mod pem;
pub mod plane;
pub mod registry;
pub mod scsi;
pub mod serve;
mod shares;
pub mod size;
pub mod sizing;
mod socket_option;
pub mod targets;
mod text;
mod throttle;
