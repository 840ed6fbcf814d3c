//! Integration tests of the server: the API, imports, the binary, and NBD and SCSI on a pool in memory.
//! `sessions` is a separate binary because it counts the panics of the whole process.

#![allow(clippy::unwrap_used)] // an error fails the test

mod access;
mod api;
mod common;
mod dashboard;
mod fleet;
mod formats;
mod host;
mod hostile;
mod idle;
mod import;
mod monitoring;
mod nbd;
mod openapi;
mod operate;
mod process;
mod scsi;
mod targets;
mod watch;
