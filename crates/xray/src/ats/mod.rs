//! Volumes that hosts share over iSCSI: the cost of locks for other hosts, and throughput compared with
//! `tgtd`.
//!
//! `servers` runs both targets, `throughput` loads them in turns, `scenes` runs a host that changes metadata
//! under a lock, or snapshots, concurrently with a host that reads, `report` and `plot` format the results.

mod control;
mod perf;
mod plot;
mod report;
mod scenes;
mod servers;
#[cfg(test)]
mod tests;
mod throughput;

use std::time::Duration;

use serde::Serialize;

pub use scenes::{Moment, Scene};

use crate::bench::{Options, pick};
use crate::error::{Error, Result};
use crate::report::{Begun, BenchReport, Details};
use crate::targets::servers::{WorkDir, version};
use servers::Ours;

/// Parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Throughput compared with `tgtd`.
    Throughput,
    /// Two hosts on one volume, and snapshots.
    Shared,
}

/// Durations and sizes of a run.
struct Pace {
    rounds: u32,
    perf_rounds: u32,
    load: Duration,
    scene_rounds: u32,
    scene: Duration,
    /// Bytes of each volume.
    size: u64,
}

impl Pace {
    fn of(quick: bool) -> Pace {
        let seconds = |short, full| Duration::from_secs_f64(pick(quick, short, full));
        Pace {
            rounds: pick(quick, 2, 5),
            perf_rounds: pick(quick, 1, 3),
            load: seconds(0.3, 2.0),
            // Many short rounds, so that figures that are compared are measured close together in time.
            scene_rounds: pick(quick, 3, 25),
            scene: seconds(0.3, 0.6),
            size: pick(quick, 256 << 20, 1 << 30),
        }
    }
}

/// Prints progress to standard error.
fn say(what: &str) {
    eprintln!("ats: {what}");
}

/// Two hosts on one volume, and snapshots.
#[derive(Debug, Serialize)]
pub struct Scenes {
    /// The scenes in which A has a rate, then the scenes in which A is not limited.
    pub scenes: Vec<Scene>,
}

impl Details for Scenes {
    fn tables(&self) -> Vec<String> {
        if self.scenes.is_empty() { Vec::new() } else { vec![report::scene_table(&self.scenes)] }
    }

    fn plot(&self) -> Option<String> {
        (!self.scenes.is_empty()).then(|| plot::svg(&self.scenes))
    }
}

/// Runs the selected parts.
pub fn run(options: &Options<Part>) -> Result<BenchReport<Scenes>> {
    measure(options, &Pace::of(options.quick))
}

fn measure(options: &Options<Part>, pace: &Pace) -> Result<BenchReport<Scenes>> {
    let begun = Begun::now();
    let peers = vec![format!("tgtd {}", version("tgtd", "tgt")?)];
    if std::process::Command::new("iscsi-perf").arg("--version").output().is_err() {
        return Err(Error::Missing { program: "iscsi-perf", package: "libiscsi-bin" });
    }
    let dir = WorkDir::create(&options.parent)?;
    let stderr = "a forebay binary is necessary".to_owned();
    let missing = Error::Command { command: "ats".to_owned(), stderr };
    let ours = Ours::start(&dir, options.forebay.as_ref().ok_or(missing)?, pace.size)?;
    let (scenes, mut rows) =
        if options.wants(Part::Shared) { scenes::run(&ours, pace)? } else { (Vec::new(), Vec::new()) };
    if options.wants(Part::Throughput) {
        let tgtd = servers::tgtd(&dir, pace.size)?;
        rows.extend(throughput::rows(&ours, &tgtd, pace)?);
    }
    // The servers end here, so that their CPU time counts as this process's.
    drop(ours);
    Ok(begun.report(options.quick, peers, rows, Scenes { scenes }))
}
