//! Tests of the SCSI device server: nexuses on units of a pool in memory.

mod aborts;
mod attention;
mod blocks;
mod copies;
mod lost;
mod read_only;
mod reservations;
mod support;
mod units;
