//! Workloads and reports: load generators for NBD servers and iSCSI targets, and benchmarks of Forebay's
//! promises.
//!
//! `nbd` is a client written from the protocol document, `load` drives it at depth and verifies the data that
//! it reads, `iscsi` is the same for iSCSI targets. `bench` runs loads against Forebay and its peers in turns
//! and compares the figures with the promises, `ats` does so for volumes that hosts share over iSCSI, `vdi`
//! replays fleets of virtual desktops and compares with published figures.
//!
//! `run` runs a `scenario` on `targets` over `device`s, which are disks of any protocol, and `report` shows
//! the results of all targets in one page.
pub mod ats;
pub mod bench;
pub mod device;
mod error;
mod files;
pub mod iscsi;
pub mod load;
mod machine;
pub mod nbd;
pub mod report;
mod rng;
pub mod run;
pub mod scenario;
mod socket;
pub mod targets;
pub mod vdi;
