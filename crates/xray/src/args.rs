//! The command line.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_xray::device::Endpoint;
use forebay_xray::iscsi::Address;

use forebay_xray::load::{Access, Rate, Spec, Stop};
use forebay_xray::nbd::Uri;
use forebay_xray::nvme::Namespace;
use forebay_xray::scenario::{QuantityError, Size, Span};
use forebay_xray::vdi::{self, Cache, Phase};
use forebay_xray::{ats, bench};

use crate::run_command::{CompareCommand, RunCommand};
use crate::scenario_command::ScenarioCommand;

/// Loads and benchmarks for NBD servers and iSCSI targets.
#[derive(Debug, Parser)]
#[command(name = "forebay-xray", version)]
pub struct Cli {
    /// The action.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load one export of an NBD server and report rates and latencies
    NbdLoad(NbdLoad),
    /// Load one logical unit of an iSCSI target and report rates and latencies
    IscsiLoad(IscsiLoad),
    /// Load one namespace of an NVMe/TCP subsystem and report rates and latencies
    NvmeLoad(NvmeLoad),
    /// Measure Forebay's promises, next to its peers, in one run
    Bench(Bench<bench::Part>),
    /// Replay fleets of virtual desktops, and compare their store I/O with published figures
    Vdi(Vdi),
    /// Measure volumes shared over iSCSI: locks, snapshots, and throughput compared with tgtd
    Ats(Bench<ats::Part>),
    /// Run a scenario on targets, and write a report
    Run(RunCommand),
    /// Compare two reports of one scenario
    Compare(CompareCommand),
    /// List, show and check scenarios
    #[command(subcommand)]
    Scenario(ScenarioCommand),
}

/// A benchmark that consists of parts.
#[derive(Debug, Args)]
pub struct Bench<P: ValueEnum + Clone + Send + Sync + 'static> {
    /// The forebay binary [default: in this program's directory]; with "none", bench measures only the peers
    #[arg(long)]
    pub forebay: Option<PathBuf>,
    /// Directory for data and the report; must be on the disk to be measured [default: target/COMMAND]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Run shorter loads on less data
    #[arg(long)]
    pub quick: bool,
    /// Measure only this part; can be repeated
    #[arg(long, value_enum)]
    pub only: Vec<P>,
}

/// Fleets of desktops.
#[derive(Debug, Args)]
pub struct Vdi {
    /// Sizes of the fleets [default: 1,11,50,150; with --quick: 1,4]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=900))]
    pub desktops: Vec<u32>,
    /// Phases, in this order; those with a profile only in fleets of at most 11 [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub phases: Vec<Phase>,
    /// State of the read cache [default: all, in this order]
    #[arg(long, value_enum)]
    pub cache: Option<Cache>,
    /// Factor by which time runs faster; the operations stay the same [default: 60; with --quick: 300]
    #[arg(long, value_parser = factor)]
    pub speedup: Option<f64>,
    /// RAM for the writes of each desktop
    #[arg(long, default_value = "256M", value_parser = size)]
    pub write_cache: u64,
    /// RAM for the writes of all desktops together
    #[arg(long, default_value = "8G", value_parser = size)]
    pub desktop_memory: u64,
    /// The server's read cache
    #[arg(long, default_value = "3G", value_parser = size)]
    pub read_cache: u64,
    /// The forebay binary [default: in this program's directory]
    #[arg(long)]
    pub forebay: Option<PathBuf>,
    /// Directory for data and for the report vdi.json; must be on the disk to be measured
    #[arg(long, default_value = "target/vdi")]
    pub dir: PathBuf,
    /// Few desktops, on an image with little data that no phase reads
    #[arg(long)]
    pub quick: bool,
}

impl Vdi {
    /// The options of a run against this server.
    pub fn options(&self, forebay: PathBuf) -> vdi::Options {
        let defaults = vdi::Options::new(forebay, &self.dir);
        let fleets = if self.quick { vec![1, 4] } else { defaults.fleets };
        vdi::Options {
            fleets: if self.desktops.is_empty() { fleets } else { self.desktops.clone() },
            phases: if self.phases.is_empty() { defaults.phases } else { self.phases.clone() },
            caches: self.cache.map_or(defaults.caches, |cache| vec![cache]),
            speedup: self.speedup.unwrap_or(if self.quick { 300.0 } else { 60.0 }),
            write_cache: self.write_cache,
            desktop_memory: self.desktop_memory,
            read_cache: self.read_cache,
            image_data: if self.quick { 0 } else { defaults.image_data },
            quick: self.quick,
            ..vdi::Options::new(defaults.forebay, &self.dir)
        }
    }
}

/// A load over NBD.
#[derive(Debug, Args)]
pub struct NbdLoad {
    /// Server: unix:PATH, HOST:PORT, or an NBD URI with the export
    #[arg(long)]
    uri: Uri,
    /// Export [default: that of the URI]
    #[arg(long)]
    export: Option<String>,
    /// Connections; the range is divided between them
    #[arg(long, default_value_t = 1)]
    connections: u16,
    /// Request simple replies, as the Linux kernel's client does, instead of structured ones
    #[arg(long)]
    simple_replies: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// A load over iSCSI.
#[derive(Debug, Args)]
pub struct IscsiLoad {
    /// Portal: HOST:PORT
    #[arg(long)]
    portal: String,
    /// Name of the target
    #[arg(long)]
    target: String,
    /// Logical unit
    #[arg(long, default_value_t = 0)]
    lun: u8,
    /// Initiators, each with a session; the range is divided between them
    #[arg(long, default_value_t = 1)]
    initiators: u16,
    #[command(flatten)]
    load: LoadArgs,
}

/// A load over NVMe/TCP.
#[derive(Debug, Args)]
pub struct NvmeLoad {
    /// Controller: HOST:PORT
    #[arg(long)]
    portal: String,
    /// Name of the subsystem
    #[arg(long)]
    subsystem: String,
    /// Identifier of the namespace
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// Hosts, each with a controller that has one I/O queue; the range is divided between them
    #[arg(long, default_value_t = 1)]
    hosts: u16,
    #[command(flatten)]
    load: LoadArgs,
}

/// What all loads have in common.
#[derive(Debug, Args)]
struct LoadArgs {
    /// Access pattern
    #[arg(long, value_enum, default_value_t = Rw::Randread)]
    rw: Rw,
    /// Share of reads of a mix, in percent
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(PER_CENT))]
    read_percent: u8,
    /// Bytes of each request, such as 4k or 1m
    #[arg(long, default_value = "4k", value_parser = size)]
    bs: u64,
    /// Requests in progress on each connection
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Duration in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Stop after this number of requests on each connection instead
    #[arg(long, conflicts_with = "seconds")]
    requests: Option<u64>,
    /// Stop after as many requests as the range has blocks instead
    #[arg(long, conflicts_with_all = ["seconds", "requests"])]
    once: bool,
    /// Flush at this interval and at the end, such as 1s or 100ms
    #[arg(long, value_parser = duration)]
    flush_each: Option<Duration>,
    /// Make each write durable before it is answered (FUA)
    #[arg(long)]
    fua: bool,
    /// Requests per second on each connection, as a Poisson process
    #[arg(long)]
    rate: Option<f64>,
    /// First byte of the range
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
    /// Bytes of the range [default: to the end of the disk]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Seed of offsets, mix, arrivals and content [default: the time, so that no run repeats content]
    #[arg(long)]
    seed: Option<u64>,
    /// Verify reads against the writes of this run; read all written blocks at the end
    #[arg(long)]
    verify: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

const PER_CENT: RangeInclusive<i64> = 0..=100;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rw {
    Randread,
    Randwrite,
    Mix,
    Read,
    Write,
}

impl NbdLoad {
    /// The load with these options.
    pub fn spec(&self) -> Spec {
        let export = self.export.as_ref().or(self.uri.export.as_ref());
        let endpoint = Endpoint::Nbd(self.uri.target.clone(), export.cloned().unwrap_or_default());
        Spec { simple_replies: self.simple_replies, ..self.load.spec(endpoint, self.connections) }
    }

    /// Whether the report is printed as JSON.
    pub fn json(&self) -> bool {
        self.load.json
    }
}

impl IscsiLoad {
    /// The load with these options.
    pub fn spec(&self) -> Spec {
        let (portal, target) = (self.portal.clone(), self.target.clone());
        let endpoint = Endpoint::Iscsi(Address { portal, target, lun: self.lun });
        self.load.spec(endpoint, self.initiators)
    }

    /// Whether the report is printed as JSON.
    pub fn json(&self) -> bool {
        self.load.json
    }
}

impl NvmeLoad {
    /// The load with these options.
    pub fn spec(&self) -> Spec {
        let (portal, subsystem) = (self.portal.clone(), self.subsystem.clone());
        let endpoint = Endpoint::Nvme(Namespace { portal, subsystem, number: self.namespace });
        self.load.spec(endpoint, self.hosts)
    }

    /// Whether the report is printed as JSON.
    pub fn json(&self) -> bool {
        self.load.json
    }
}

impl LoadArgs {
    fn spec(&self, endpoint: Endpoint, connections: u16) -> Spec {
        let (access, read_percent) = match self.rw {
            Rw::Randread => (Access::Random, 100),
            Rw::Randwrite => (Access::Random, 0),
            Rw::Mix => (Access::Random, self.read_percent),
            Rw::Read => (Access::Sequential, 100),
            Rw::Write => (Access::Sequential, 0),
        };
        let stop = match self.requests {
            _ if self.once => Stop::OncePerBlock,
            Some(n) => Stop::Requests(n),
            None => Stop::After(Duration::try_from_secs_f64(self.seconds).unwrap_or_default()),
        };
        let end = self.size.map_or(u64::MAX, |size| self.offset.saturating_add(size));
        Spec {
            access,
            read_percent,
            block_bytes: u32::try_from(self.bs).unwrap_or(u32::MAX),
            depth: self.depth,
            connections,
            stop,
            flush_each: self.flush_each,
            fua: self.fua,
            rate: self.rate.map(Rate::Poisson),
            range: Some(self.offset..end),
            seed: seed_or_time(self.seed),
            verify: self.verify,
            ..Spec::new(endpoint)
        }
    }
}

/// A seed. The default differs between runs: with the seed of an earlier run, a load writes what is stored
/// already, and a server with deduplication stores references.
fn seed_or_time(seed: Option<u64>) -> u64 {
    let time = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    seed.unwrap_or_else(time)
}

/// Parses a size; 0 is one too.
fn size(text: &str) -> Result<u64, QuantityError> {
    if text == "0" { Ok(0) } else { text.parse().map(|Size(bytes)| bytes) }
}

/// Parses a factor: a number above 0.
fn factor(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|f: &f64| *f > 0.0 && f.is_finite()).ok_or("use a number above 0")
}

/// Parses a time above 0.
fn duration(text: &str) -> Result<Duration, QuantityError> {
    let Span(time) = text.parse()?;
    if time.is_zero() { Err(QuantityError::Span(text.to_owned())) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_times_are_parsed() {
        assert_eq!(["4k", "1MiB", "512", "0"].map(size), [4096, 1 << 20, 512, 0].map(Ok));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "1", "0s", "-1s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
