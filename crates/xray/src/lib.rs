//! Workloads and reports: load generators for NBD servers, iSCSI targets and NVMe/TCP subsystems, scenarios,
//! and benchmarks of Forebay's promises.
//!
//! **Engine.** `nbd`, `iscsi` and `nvme` are clients written from the protocol documents; they share no code
//! with the server, so they are an oracle for it. `device` makes disks of them, and of files, all with the
//! same interface. `load` drives one disk from each thread at depth; `run` and `vdi` drive many disks from
//! each thread.
//!
//! **Launcher.** `targets::servers` starts Forebay and its peers. A disk of a running server has an endpoint
//! for loads, and the process whose CPU time they cost.
//!
//! **Report.** `report` has tables for the terminal and for pages, rows with promises, and the files of runs
//! and benchmarks.
//!
//! On these, `bench` measures Forebay and its peers in turns and compares the figures with the promises,
//! `ats` does so for volumes that hosts share over iSCSI, `vdi` replays fleets of virtual desktops and
//! compares with published figures, and `run` runs a `scenario` on `targets`.
pub mod ats;
pub mod bench;
pub mod device;
mod error;
mod files;
pub mod iscsi;
pub mod load;
mod machine;
pub mod nbd;
pub mod nvme;
pub mod report;
mod rng;
pub mod run;
pub mod scenario;
mod socket;
pub mod targets;
pub mod vdi;

pub use error::{Error, Result};
