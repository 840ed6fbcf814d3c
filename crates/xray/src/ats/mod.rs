//! Volumes that hosts share over iSCSI: the cost of locks for other hosts, and throughput compared with
//! `tgtd`.
//!
//! `servers` runs both targets, `throughput` loads them in turns, `updates` is a host that changes metadata
//! under a lock, `scenes` runs it, or snapshots, concurrently with a host that reads, `report` and `plot`
//! format the results.

mod control;
mod perf;
mod plot;
mod report;
mod scenes;
pub(crate) mod servers;
#[cfg(test)]
mod tests;
mod throughput;
pub(crate) mod updates;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use plot::svg;
pub use report::AtsReport;
pub use scenes::{Moment, Scene};
pub use updates::METADATA_BYTES;

use crate::bench::Result;
use crate::bench::error::{BenchError, During};
use crate::bench::machine::{CpuTimes, Machine};
use crate::bench::servers::version;
use crate::bench::workdir::WorkDir;
use servers::{Ours, Tgtd};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `forebay` binary.
    pub forebay: PathBuf,
    /// Directory for data.
    pub parent: PathBuf,
    /// Shorter, with less data.
    pub quick: bool,
    /// Only these parts; all parts if empty.
    pub only: Vec<Part>,
}

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
        let seconds = Duration::from_secs_f64;
        if quick {
            Pace {
                rounds: 2,
                perf_rounds: 1,
                load: seconds(0.3),
                scene_rounds: 3,
                scene: seconds(0.3),
                size: 256 << 20,
            }
        } else {
            Pace {
                rounds: 5,
                perf_rounds: 3,
                load: seconds(2.0),
                // Many short rounds, so that figures that are compared are measured close together in time.
                scene_rounds: 25,
                scene: seconds(0.6),
                size: 1 << 30,
            }
        }
    }
}

/// Prints progress to standard error.
fn say(what: &str) {
    eprintln!("ats: {what}");
}

/// Runs the selected parts.
pub fn run(options: &Options) -> Result<AtsReport> {
    measure(options, &Pace::of(options.quick))
}

fn measure(options: &Options, pace: &Pace) -> Result<AtsReport> {
    let begun = Instant::now();
    let (machine, cpu) = (Machine::here(), CpuTimes::now());
    let peers = vec![format!("tgtd {}", version("tgtd", "tgt")?)];
    if std::process::Command::new("iscsi-perf").arg("--version").output().is_err() {
        return Err(BenchError::Missing { program: "iscsi-perf", package: "libiscsi-bin" });
    }
    let parent = std::path::absolute(&options.parent);
    let dir = WorkDir::create(&parent.during(|| format!("cannot resolve {}", options.parent.display()))?)?;
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let mut rows = Vec::new();
    let ours = Ours::start(&dir, &options.forebay, pace.size)?;
    let mut scenes = Vec::new();
    if wants(Part::Shared) {
        let shared = scenes::run(&ours, pace)?;
        (scenes, rows) = (shared.scenes, shared.rows);
    }
    if wants(Part::Throughput) {
        let tgtd = Tgtd::start(&dir, pace.size)?;
        rows.extend(throughput::rows(&ours, &tgtd, pace)?);
    }
    // The servers end here, so that their CPU time counts as this process's.
    drop(ours);
    let (seconds, others_percent) = (begun.elapsed().as_secs_f64(), cpu.others_percent());
    Ok(AtsReport { machine, peers, quick: options.quick, seconds, others_percent, scenes, rows })
}
