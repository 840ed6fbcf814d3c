//! Integration tests of the front ends: NBD and SCSI on a pool in memory. `sessions` is a separate binary
//! because it counts the panics of the whole process.

#![allow(clippy::unwrap_used)] // an error fails the test

mod host;
mod nbd;
mod scsi;
