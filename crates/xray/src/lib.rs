//! Workloads and reports: a load generator for NBD servers, and the benchmarks of what Forebay promises.
//!
//! `nbd` is a client written from the protocol document, `load` drives it at depth and checks what comes back,
//! `iscsi` is the same for iSCSI targets. `bench` runs loads against Forebay and its peers in turns and prints the
//! promises beside what was measured, `ats` does so for volumes that hosts share over iSCSI, `vdi` replays fleets of
//! virtual desktops and compares with what was published of others.
pub mod ats;
pub mod bench;
pub mod iscsi;
pub mod load;
pub mod nbd;
mod rng;
pub mod vdi;
