//! The server and its command line.
//!
//! In the order in which a command meets them: the command line that a person types, the configuration of
//! `serve`, the running server and its engine thread, the HTTP/JSON API, the control plane that the API and
//! everything later shares, and the readers of disk image files.
//!
//! Nothing here decides what a disk is or when a write is durable: that is the engine's. The control plane
//! runs on threads of its own and can never delay a guest.

pub mod api;
pub mod cli;
mod clock;
pub mod config;
pub mod control;
#[doc(hidden)]
pub mod fuzzing;
pub mod import;
pub mod iscsi;
mod modes;
pub mod nbd;
pub mod plane;
pub mod scsi;
pub mod serve;
pub mod size;
pub mod targets;
mod text;
mod throttle;
