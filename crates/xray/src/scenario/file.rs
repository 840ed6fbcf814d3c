//! The contents of a scenario file, format 1. Names that refer to other parts keep their position, so that a
//! mistake is reported with its line.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::quantity::{Size, Span};

/// The version of the format that this program reads.
pub const FORMAT: u32 = 1;

/// A scenario, as its file describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Version of the format.
    pub format: Spanned<u32>,
    /// Short name: lower-case letters, digits and dashes.
    pub name: Spanned<String>,
    /// The title of the report.
    pub title: String,
    /// What the scenario shows, in a few sentences.
    pub about: String,
    /// The source of the scenario's figures.
    #[serde(default)]
    pub source: Option<String>,
    /// The disks of the scenario, by their kinds.
    #[serde(rename = "disk")]
    pub disks: Vec<Disk>,
    /// The loads that phases can use.
    #[serde(rename = "load")]
    pub loads: Vec<Load>,
    /// The phases, in this order.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    /// What happens during the phases.
    #[serde(rename = "event", default)]
    pub events: Vec<Spanned<Event>>,
    /// What the report judges.
    #[serde(rename = "check", default)]
    pub checks: Vec<Spanned<Check>>,
}

/// Disks of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Name of this kind of disks.
    pub name: Spanned<String>,
    /// Number of disks of this kind.
    #[serde(default = "one")]
    pub count: u32,
    /// Size of each disk; for clones, the size of the origin.
    #[serde(default)]
    pub size: Option<Size>,
    /// Each disk is a linked clone of the first disk of this kind.
    #[serde(default)]
    pub clone_of: Option<Spanned<String>>,
    /// The disks are written from end to end before the first phase; reads are verified from then on.
    #[serde(default)]
    pub prefill: bool,
    /// The disks are filled with the image of a desktop, which scripts need.
    #[serde(default)]
    pub desktop_image: bool,
}

/// A load: a stream of requests on each disk of a kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Name of the load.
    pub name: Spanned<String>,
    /// The kind of disks.
    pub disk: Spanned<String>,
    /// A part of a desktop's day, instead of the fields below.
    #[serde(default)]
    pub script: Option<Script>,
    /// Share of requests at a random position; the others continue where the last one ended.
    #[serde(default)]
    pub random_percent: Percent,
    /// Share of reads among the requests.
    #[serde(default)]
    pub read_percent: Percent,
    /// Block sizes and their weights.
    #[serde(default)]
    pub blocks: BTreeMap<Size, u32>,
    /// Requests per second on each disk, as a Poisson process (open loop).
    #[serde(default)]
    pub rate: Option<f64>,
    /// Requests in flight on each disk: at most, with a rate; always, without (closed loop).
    #[serde(default = "one")]
    pub depth: u32,
    /// First byte of the range.
    #[serde(default)]
    pub offset: Option<Size>,
    /// Bytes of the range; to the end of the disk by default.
    #[serde(default)]
    pub size: Option<Size>,
    /// Interval between flushes of the load.
    #[serde(default)]
    pub flush: Option<Span>,
    /// Each write is durable when it is answered (FUA).
    #[serde(default)]
    pub durable: bool,
    /// The load ends after one pass over the range.
    #[serde(default)]
    pub once: bool,
    /// Share of zeroes in each block, which compress.
    #[serde(default)]
    pub compressible_percent: Percent,
    /// Share of blocks that are equal to one of 1,024.
    #[serde(default)]
    pub duplicate_percent: Percent,
}

/// A part of a desktop's day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Script {
    /// From power on to the logon screen.
    Boot,
    /// The user logs on.
    Logon,
    /// Office work of a user who is logged on.
    Steady,
}

/// A phase: loads that run together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Name of the phase.
    pub name: Spanned<String>,
    /// Names of the loads that run in the phase.
    pub loads: Vec<Spanned<String>>,
    /// Measured time; without it, the phase ends with its loads.
    #[serde(default)]
    pub duration: Option<Span>,
    /// Maximum time before the measured time.
    #[serde(default)]
    pub warm_up: Option<Span>,
    /// The warm-up ends early when the rates of two windows differ by at most this.
    #[serde(default)]
    pub steady_percent: Option<f64>,
    /// The phase runs once for each of these depths, which replace the depths of the loads.
    #[serde(default)]
    pub depths: Vec<u32>,
}

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Takes a snapshot of each disk of a kind.
    Snapshot,
    /// Makes linked clones of the first disk of a kind.
    Clone,
    /// Ends the server with SIGKILL, and starts it again.
    Kill,
    /// Stops the server with SIGSTOP, and continues it.
    Pause,
    /// Ends the server in order, and starts it again.
    Restart,
    /// Replaces the running server by another process.
    Upgrade,
    /// Writes a disk from end to end.
    Fill,
    /// Ends an OSD of the Ceph cluster with SIGKILL, and starts it again.
    OsdKill,
    /// Ends the server that has the pool with SIGKILL; another one takes the pool over.
    NodeKill,
    /// Starts the node that was killed.
    NodeStart,
    /// Moves the pool to another server.
    Handover,
    /// Replaces all servers, one after the other.
    RollingUpgrade,
    /// Another host changes metadata on the first disk of a kind, each time under RESERVE.
    Reserve,
    /// Updates of metadata under COMPARE AND WRITE.
    CompareAndWrite,
}

/// An event during a phase.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Name of the phase in which the event happens.
    pub phase: Spanned<String>,
    /// Time since the start of the measured time.
    pub at: Span,
    /// What happens in the event.
    #[serde(rename = "do")]
    pub action: Action,
    /// The kind of disks.
    #[serde(default)]
    pub disk: Option<Spanned<String>>,
    /// Number of clones that the event creates.
    #[serde(default = "one")]
    pub clones: u32,
    /// How often the event happens.
    #[serde(default = "one")]
    pub times: u32,
    /// Interval between the times.
    #[serde(default)]
    pub every: Option<Span>,
    /// How long the server or OSD is away, or the other host works.
    #[serde(rename = "for", default)]
    pub length: Option<Span>,
    /// Number of the OSD.
    #[serde(default)]
    pub osd: u32,
}

/// The kinds of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// The rate is within the band that is expected of its arrivals.
    Band,
    /// A percentile of the latency is below a bound.
    Latency,
    /// Rate and latency at the end must be those of the start.
    NoTrend,
    /// No request must fail.
    Errors,
    /// The content that was read must be the content that was written.
    Verified,
    /// No request waited longer for the server during an event.
    Back,
    /// The rate must be that of an earlier phase.
    SameRate,
    /// The events of a phase succeeded, each in time.
    Events,
    /// All loads that have an end must reach it.
    Complete,
}

/// A check of the results.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What the check judges.
    pub is: Judge,
    /// The phase that is judged; all phases by default.
    #[serde(default)]
    pub phase: Option<Spanned<String>>,
    /// The load; all loads of the phase by default.
    #[serde(default)]
    pub load: Option<Spanned<String>>,
    /// The percentile that is judged.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Bound of the percentile.
    #[serde(default)]
    pub below: Option<Span>,
    /// Maximum time of an event, or of a wait.
    #[serde(default)]
    pub within: Option<Span>,
    /// Maximum difference in percent.
    #[serde(default)]
    pub within_percent: Option<f64>,
    /// The earlier phase with which the rate is compared.
    #[serde(default)]
    pub as_phase: Option<Spanned<String>>,
}

/// A share in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Percent(pub u8);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Percent, D::Error> {
        let n = i64::deserialize(d)?;
        match u8::try_from(n) {
            Ok(n) if n <= 100 => Ok(Percent(n)),
            _ => Err(serde::de::Error::custom(format!("{n} is not a percentage: use 0 to 100"))),
        }
    }
}

fn one() -> u32 {
    1
}
