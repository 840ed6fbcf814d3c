//! The systems under test: what each can do, and how it is started and disturbed.
//!
//! [`TargetSpec`] selects one, by a word of the command line or by a description in TOML;
//! [`TargetSpec::start`] makes it run. `forebay` with its `node`s, `qemu` (also librbd) and `raw`
//! (`nbdkit` and `tgtd`, on raw files) start servers, `given` uses a disk that exists already. Each declares
//! what it supports: what is not declared is never tried, and never pretended.
//!
//! `servers` launches all servers. The benchmarks use it directly, since they need particular
//! configurations.

mod ceph;
mod forebay;
mod given;
mod node;
mod qemu;
mod raw;
pub(crate) mod servers;
mod spec;

use std::path::{Path, PathBuf};

pub use spec::{ForebayKind, Kind, SpecError, TargetSpec, Transport, parse_file};

use crate::device::{Device, DeviceError, Endpoint, Needs};
use crate::error::{During, Error};
use crate::scenario::Action;
use servers::{Process, StoreOps};

/// Where a disk is on a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The disk or device.
    pub endpoint: Endpoint,
    /// Other servers that may serve the disk, if the first server does not.
    pub others: Vec<Endpoint>,
    /// Offset of the disk's first byte on the endpoint.
    pub base: u64,
}

impl Place {
    /// A disk that is on one server, from its first byte.
    pub fn of(endpoint: Endpoint) -> Place {
        Place { endpoint, others: Vec::new(), base: 0 }
    }

    /// Opens the disk where it is served. The error is that of the first endpoint.
    pub fn open(&self, needs: Needs) -> Result<Box<dyn Device>, DeviceError> {
        self.endpoint.open(needs).or_else(|first| {
            let found = self.others.iter().find_map(|other| other.open(needs).ok());
            found.ok_or(first)
        })
    }
}

/// One step of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Creates a snapshot of each disk of a kind. The strings are the kind and the name of the snapshots.
    Snapshot(String, String),
    /// Clones of the first disk of a kind, with this name.
    Clone(String, String, u32),
    /// Sends SIGKILL to the server.
    Kill,
    /// Starts what was killed.
    Start,
    /// Pauses the server with SIGSTOP.
    Pause,
    /// Continues the server with SIGCONT.
    Continue,
    /// The servers end in order, and start again.
    Restart,
    /// Replaces the process of the server.
    Upgrade,
    /// Sends SIGKILL to an OSD.
    OsdKill(u32),
    /// Starts an OSD that was killed.
    OsdStart(u32),
    /// Sends SIGKILL to the node that serves; the step ends when another node serves.
    NodeKill,
    /// Starts the node that was killed.
    NodeStart,
    /// Moves the disks to the other node.
    Handover,
    /// Replaces the processes of all nodes, one after the other.
    RollingUpgrade,
}

/// Disks of a kind to be created.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Name of the kind of disks.
    pub kind: String,
    /// Number of disks to create.
    pub count: u32,
    /// Size of each disk in bytes.
    pub size: u64,
}

/// A target whose servers run.
pub trait System: Send {
    /// Program and version of the target.
    fn version(&self) -> &str;
    /// Whether an action is possible; `Action::Clone` is also needed for disks that are clones.
    fn supports(&self, action: Action) -> bool;
    /// The target's server processes that run.
    fn servers(&mut self) -> Vec<&mut Process> {
        Vec::new()
    }
    /// Starts the servers that do not run.
    fn start(&mut self) -> Result<(), TargetError> {
        Ok(())
    }
    /// Drops the servers, which have ended.
    fn forget(&mut self) {}
    /// Returns the process numbers of the target's servers.
    fn pids(&mut self) -> Vec<u32> {
        self.servers().iter().map(|process| process.id()).collect()
    }
    /// Creates empty disks.
    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError>;
    /// Makes linked clones of the first disk of `origin`, which no load uses.
    fn clones(&mut self, origin: &str, kind: &str, count: u32) -> Result<(), TargetError>;
    /// Where a disk is.
    fn place(&self, kind: &str, number: u32) -> Result<Place, TargetError>;
    /// Does one step of an event.
    fn act(&mut self, act: &Act) -> Result<(), TargetError> {
        let each: fn(&mut Process) -> Result<(), Error> = match act {
            Act::Start => return self.start(),
            Act::Kill => Process::kill,
            Act::Restart => Process::stop,
            Act::Pause => |process| process.pause(),
            Act::Continue => |process| process.resume(),
            act => return self.special(act),
        };
        let servers = self.servers();
        if servers.is_empty() {
            return Err(TargetError::Unsupported("this event while the server is killed"));
        }
        servers.into_iter().try_for_each(each)?;
        if matches!(act, Act::Kill | Act::Restart) {
            self.forget();
        }
        if *act == Act::Restart { self.start() } else { Ok(()) }
    }
    /// Executes a step of an event that concerns more than the server processes.
    fn special(&mut self, _act: &Act) -> Result<(), TargetError> {
        Err(TargetError::Unsupported("this event"))
    }
    /// The target's counters of its store; `None` if it has none.
    fn store(&self) -> Option<StoreOps> {
        None
    }
}

/// What targets need to start.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Directory for data, on the disk to be measured.
    pub parent: PathBuf,
    /// The `forebay` binary.
    pub forebay: PathBuf,
    /// The script that starts a Ceph cluster for tests.
    pub ceph_script: PathBuf,
    /// Whether data on given disks may be overwritten.
    pub overwrite: bool,
}

impl TargetSpec {
    /// Starts the target.
    pub fn start(&self, around: &Surroundings) -> Result<Box<dyn System>, TargetError> {
        Ok(match &self.kind {
            Kind::Forebay(kind) => Box::new(forebay::ForebaySystem::start(around, kind)?),
            Kind::QemuNbd => Box::new(qemu::QemuSystem::qcow2(around)?),
            Kind::Librbd => Box::new(qemu::QemuSystem::librbd(around)?),
            Kind::Nbdkit => Box::new(raw::RawSystem::nbdkit(around)?),
            Kind::Tgtd => Box::new(raw::RawSystem::tgtd(around)?),
            Kind::Given(endpoint) => Box::new(given::Given::open(endpoint.clone(), around.overwrite)?),
        })
    }
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// A server could not be started or controlled.
    #[error(transparent)]
    Server(#[from] Error),
    /// A disk of the target cannot be used.
    #[error("cannot use {endpoint}: {source}")]
    Device {
        /// Address of the disk.
        endpoint: String,
        /// Why the disk cannot be used.
        source: DeviceError,
    },
    /// Data on the disk would be overwritten.
    #[error("{0} may contain data: give --overwrite to lose it")]
    HasData(String),
    /// The disk is too small.
    #[error("{endpoint} has {have} bytes, the scenario needs {need}: use a smaller --scale-size")]
    TooSmall {
        /// Address of the disk.
        endpoint: String,
        /// Size of the disk in bytes.
        have: u64,
        /// Size of all disks of the scenario.
        need: u64,
    },
    /// What a scenario needs is not supported.
    #[error("{0} is not supported by this target")]
    Unsupported(&'static str),
    /// Programs that the target needs are missing.
    #[error("{0}")]
    Unavailable(String),
}

/// The name of a disk on a target.
fn disk_name(kind: &str, number: u32) -> String {
    format!("{kind}-{number}")
}

/// Creates an empty file of a size.
fn empty_file(path: &Path, size: u64) -> Result<(), TargetError> {
    let file = std::fs::File::create(path).and_then(|file| file.set_len(size));
    Ok(file.during(|| format!("cannot create {}", path.display()))?)
}
