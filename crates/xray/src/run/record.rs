//! The results of a run, as the report's JSON has them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::scenario::Scale;
use crate::targets::servers::StoreOps;

/// The version of this format.
pub const FORMAT: u32 = 1;

/// A run: one scenario, one or more targets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of the format.
    pub format: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// Title of the scenario.
    pub title: String,
    /// What the scenario shows.
    pub about: String,
    /// The source of the scenario's figures.
    pub source: Option<String>,
    /// Text of the scenario's file.
    pub text: String,
    /// The factors by which the scenario was scaled.
    pub scale: Scale,
    /// What scaling changed in the scenario.
    pub changes: Vec<String>,
    /// Seed of all random values.
    pub seed: u64,
    /// The machine, in one line.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// Whether all targets ran to their ends, apart from those that do not support the scenario.
    pub complete: bool,
    /// The targets, in the order of their runs.
    pub targets: Vec<TargetRecord>,
}

/// How far a target got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "reason")]
pub enum State {
    /// The target ran to the end.
    Complete,
    /// The user interrupted the target.
    Interrupted,
    /// The run of the target failed, for this reason.
    Failed(String),
    /// The scenario needs what the target does not support.
    NotSupported(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Complete => write!(f, "complete"),
            State::Interrupted => write!(f, "interrupted, partial results"),
            State::Failed(reason) => write!(f, "failed, partial results: {reason}"),
            State::NotSupported(reason) => write!(f, "not run: {reason}"),
        }
    }
}

/// The results of a target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Name of the target.
    pub name: String,
    /// Program and version of the target.
    pub version: String,
    /// How far the target got.
    pub state: State,
    /// The phases that ran; the last one is partial if the state is not complete.
    pub phases: Vec<PhaseRecord>,
    /// The judgement of each check.
    pub verdicts: Vec<Verdict>,
}

/// The results of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Name of the phase.
    pub name: String,
    /// The depth of a sweep.
    pub depth: Option<u32>,
    /// Seconds of each point of a series.
    pub interval_s: f64,
    /// Seconds before the measured time.
    pub warm_up_s: f64,
    /// Whether the rate was steady at the end of the warm-up; `None` if that was not requested.
    pub steady: Option<bool>,
    /// Duration of the measured time in seconds.
    pub measured_s: f64,
    /// Whether the phase ran to its end.
    pub complete: bool,
    /// The loads of the phase.
    pub loads: Vec<LoadRecord>,
    /// The events of the phase.
    pub events: Vec<EventRecord>,
    /// CPU and memory over time.
    pub samples: Vec<Sample>,
    /// CPU seconds of the server's processes; `None` if they are not known.
    pub server_cpu_s: Option<f64>,
    /// CPU seconds of this program.
    pub client_cpu_s: f64,
    /// Share of the machine's CPU that other processes used.
    pub others_percent: f64,
    /// Operations of the store in the phase, warm-up included, where they are known.
    pub store: Option<StoreOps>,
}

impl PhaseRecord {
    /// ", depth N" of a sweep over depths, for names.
    pub fn at_depth(&self) -> String {
        self.depth.map_or_else(String::new, |depth| format!(", depth {depth}"))
    }
}

/// Percentiles of the latency, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean of the latencies.
    pub mean: f64,
    /// Median of the latencies.
    pub p50: f64,
    /// 95th percentile of the latencies.
    pub p95: f64,
    /// 99th percentile of the latencies.
    pub p99: f64,
    /// 99.9th percentile of the latencies.
    pub p999: f64,
    /// The longest latency.
    pub max: f64,
}

/// The results of a load, all its disks together, in the measured time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Name of the load.
    pub name: String,
    /// Number of disks that the load uses.
    pub disks: u32,
    /// Requests per second of all disks together, if the load has a rate.
    pub target_rate: Option<f64>,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Bytes of reads and writes.
    pub bytes: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Requests per second.
    pub iops: f64,
    /// MiB per second.
    pub mib_s: f64,
    /// Latency: with a rate from the intended time on, otherwise from the time of sending.
    pub latency: Latency,
    /// Further percentiles that a check needs, each with its latency.
    pub percentiles: Vec<(f64, f64)>,
    /// Requests that were due and found no room by the end. They are in the latency with the time until the
    /// end.
    pub unsent: u64,
    /// Requests that failed, in the whole phase.
    pub errors: u64,
    /// The first error, as a number of the protocol.
    pub first_error: Option<u32>,
    /// Requests that were never answered.
    pub unanswered: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// Requests that met a reservation of another host, and were sent again.
    #[serde(default)]
    pub conflicts: u64,
    /// Blocks that were verified, in the whole phase.
    pub verified: u64,
    /// Verified blocks with wrong content.
    pub wrong: u64,
    /// Disk and offset of the first block with wrong content.
    pub first_wrong: Option<String>,
    /// Blocks whose last write was answered and not flushed when the server ended, and is lost.
    pub lost_unflushed: u64,
    /// Whether all disks of a load that ends reached their ends.
    pub ended: Option<bool>,
    /// Figures over time; the measured time starts at 0.
    pub series: Vec<Point>,
}

/// One interval of a load.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    /// Start of the interval, in seconds since the start of the measured time.
    pub t: f64,
    /// Number of requests that were answered in the interval.
    pub ops: u64,
    /// Bytes of the answered requests.
    pub bytes: u64,
    /// Median latency in milliseconds.
    pub p50: f64,
    /// 95th percentile of the latency in milliseconds.
    pub p95: f64,
    /// 99th percentile of the latency in milliseconds.
    pub p99: f64,
    /// The longest latency in milliseconds.
    pub max: f64,
}

/// An event that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventRecord {
    /// The action of the event.
    pub action: String,
    /// When the event began, in seconds since the start of the measured time.
    pub start_s: f64,
    /// When the event was complete, in seconds since the start of the measured time.
    pub end_s: f64,
    /// Why the event failed; `None` if it succeeded.
    pub error: Option<String>,
    /// What the event did, in figures.
    #[serde(default)]
    pub figures: Option<String>,
}

/// Processes at a moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the measured time.
    pub t: f64,
    /// Cores that the server's processes used since the sample before.
    pub server_cores: f64,
    /// Cores that this program used.
    pub client_cores: f64,
    /// Resident memory of the server's processes.
    pub server_bytes: u64,
}

/// The judgement of a check.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// What the check judged.
    pub what: String,
    /// Whether the check passed; `None` if it could not be judged.
    pub pass: Option<bool>,
    /// The figures on which the judgement rests.
    pub reason: String,
}

impl Verdict {
    /// The judgement in a word.
    pub fn word(&self) -> &'static str {
        match self.pass {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "open",
        }
    }
}
