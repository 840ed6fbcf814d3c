//! The SCSI device server: nexuses on units of a pool in memory.

#![allow(clippy::unwrap_used)]

mod aborts;
mod attention;
mod blocks;
mod copies;
mod read_only;
mod reservations;
mod support;
mod units;

#[path = "../common/host.rs"]
mod host;
