//! The control plane: how administrative operations run on the pool.
//!
//! Each request of the API that looks at the pool or changes the pool is an `Operation`, which the file of
//! its resource declares in one place (`resources`). `client.rs` checks what the client may do, and `run.rs`
//! executes the operation.
//!
//! **An operation that has begun** runs to its end even if the client disconnects: it runs in a separate
//! task, and a shutdown waits for the task. The same holds for a reclaim, which also reports progress
//! ([`Control::reclaim`]). An import is not an operation: it is cancelled when its connection closes.

mod client;
mod cluster_images;
mod cluster_names;
mod disks;
mod error;
mod events;
mod gc;
mod health;
mod jobs;
mod lists;
mod observed;
mod operation;
mod replacements;
mod run;
mod scans;
mod stretches;
pub(crate) mod transfer;
mod upgrade;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_api::JobKind;
use forebay_cluster::owned::OwnedNames;
use forebay_cluster::owned_images::OwnedImages;
use forebay_engine::Pool;
use forebay_files::Files;
use forebay_frontend::nbd::ServedListener;
use forebay_frontend::plane::Gate;
use forebay_frontend::registry::Registry;
use forebay_frontend::scsi::Units;
use forebay_frontend::targets::Targets;
use parking_lot::RwLock;
use tokio::sync::{OwnedMutexGuard, Semaphore, watch};

use crate::fetch_policy::FetchPolicy;
use crate::limits::LimitTable;
pub(crate) use client::{Client, Failure};
pub use cluster_images::ImagesOfShard;
pub use cluster_names::DisksOfShard;
pub(crate) use disks::shown;
pub use error::{ControlError, ForeignName, NameOwner, Result};
pub use events::{Delivery, Event, EventDisk, Events, Subscription, Topic};
pub use jobs::{Job, Jobs, NewJob};
pub(crate) use lists::Names;
pub use lists::{DiskList, DiskStretches};
pub use observed::{Held, Observed, VolumeSeries};
pub(crate) use operation::{Change, Changes, Disks, Done, MAX_LOGGED, Operation, Reply, counted};
use scans::Scans;
pub use stretches::STRETCH;
use transfer::Receives;
pub use upgrade::ServerRequest;

/// Maximum number of jobs that run at the same time; further jobs wait.
const MAX_RUNNING: u32 = 64;

/// Information about the server.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Name of the host.
    pub host: String,
    /// The data directory.
    pub data: PathBuf,
    /// Location of the pool: the data directory, or an address in Ceph.
    pub pool: String,
    /// Addresses on which NBD clients are served.
    pub nbd: Vec<ServedListener>,
    /// Addresses on which iSCSI initiators are served.
    pub iscsi: Vec<String>,
    /// Addresses on which NVMe hosts are served.
    pub nvme: Vec<String>,
    /// Addresses on which NFS clients are served.
    pub nfs: Vec<String>,
    /// Address of the API over TCP.
    pub http: Option<String>,
    /// Policy for imports from URLs.
    pub imports: FetchPolicy,
    /// When the server became ready.
    pub started: Instant,
}

/// Runs operations. Clones share their state.
#[derive(Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    targets: Arc<Targets>,
    units: Arc<Units>,
    limits: Arc<LimitTable>,
    info: ServerInfo,
    running: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    scans: Scans,
    /// The clients of the exports that run.
    exports: Registry<String>,
    receives: Receives,
    jobs: Jobs,
    events: Events,
    replacements: replacements::Replacements,
    /// Locked while a token with a limited number of disks creates disks.
    creations: Arc<tokio::sync::Mutex<()>>,
    upgrades: upgrade::Upgrades,
    /// Gate that is open while the server is certain to own the pool.
    gate: OnceLock<Gate>,
    /// The files that are served over NFS.
    files: OnceLock<Arc<Files>>,
    /// The names of the cluster, if the pool is a shard of one.
    names: OnceLock<Arc<OwnedNames>>,
    /// The images of the cluster, if the pool is a shard of one.
    images: OnceLock<Arc<OwnedImages>>,
    observed: RwLock<Observed>,
    noticed: health::Noticed,
}

impl Control {
    /// Creates the control plane of an open pool, its targets and their logical units, and its limits.
    pub fn new(
        pool: Arc<Pool>,
        targets: Arc<Targets>,
        units: Arc<Units>,
        limits: Arc<LimitTable>,
        info: ServerInfo,
    ) -> Control {
        let running = Arc::new(Semaphore::new(MAX_RUNNING as usize));
        let inner = Inner {
            pool,
            targets,
            units,
            limits,
            info,
            running,
            stopping: watch::Sender::new(false),
            scans: Scans::default(),
            exports: Registry::default(),
            receives: Receives::default(),
            jobs: Jobs::default(),
            events: Events::default(),
            replacements: Default::default(),
            creations: Default::default(),
            upgrades: Default::default(),
            gate: OnceLock::new(),
            files: OnceLock::new(),
            names: OnceLock::new(),
            images: OnceLock::new(),
            observed: RwLock::default(),
            noticed: Default::default(),
        };
        Control { inner: Arc::new(inner) }
    }

    /// Queries are answered only while this gate is open.
    pub fn set_gate(&self, gate: Gate) {
        // The gate is set once, before the API is served.
        let _ = self.inner.gate.set(gate);
    }

    /// Sets the files that are served over NFS.
    pub fn set_files(&self, files: Arc<Files>) {
        // The files are set once, before the API is served.
        let _ = self.inner.files.set(files);
    }

    /// The files that are served over NFS, if any.
    pub fn files(&self) -> Option<&Arc<Files>> {
        self.inner.files.get()
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Returns the iSCSI targets.
    pub fn targets(&self) -> &Arc<Targets> {
        &self.inner.targets
    }

    /// Returns the logical units of the targets.
    pub(crate) fn units(&self) -> &Arc<Units> {
        &self.inner.units
    }

    /// Returns the limits of disks and tenants.
    pub(crate) fn limits(&self) -> &LimitTable {
        &self.inner.limits
    }

    /// What metrics report in addition to the pool.
    pub(crate) fn observed(&self) -> Observed {
        self.inner.observed.read().clone()
    }

    /// Sets what metrics report in addition to the pool.
    pub fn observe(&self, change: impl FnOnce(&mut Observed)) {
        change(&mut self.inner.observed.write());
    }

    /// Sets the volumes with separate metrics.
    pub fn set_volume_series(&self, series: VolumeSeries) {
        self.observe(|observed| observed.series = series);
    }

    /// Returns the jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    /// The clients of the exports that run.
    pub(crate) fn exports(&self) -> &Registry<String> {
        &self.inner.exports
    }

    /// The streams that clients send.
    pub(crate) fn receives(&self) -> &Receives {
        &self.inner.receives
    }

    /// Returns the events.
    pub fn events(&self) -> &Events {
        &self.inner.events
    }

    /// Waits until no other client replaces the resource with this path.
    pub(crate) async fn replacing(&self, path: &str) -> OwnedMutexGuard<()> {
        self.inner.replacements.begin(path).await
    }

    /// Waits until no other token with a limited number of disks creates disks: the scopes of several tokens
    /// may overlap.
    pub(crate) async fn creating(&self) -> OwnedMutexGuard<()> {
        self.inner.creations.clone().lock_owned().await
    }

    /// Begins a job.
    pub(crate) fn begin_job(&self, kind: JobKind, disk: Option<&str>, owner: &str, cancellable: bool) -> Job {
        let disk = disk.map(|name| self.event_disk(name));
        self.inner.jobs.begin(&self.inner.events, NewJob { kind, disk, owner, cancellable })
    }

    fn event_disk(&self, name: &str) -> EventDisk {
        EventDisk { name: name.to_owned(), tenant: self.tenant_of(name) }
    }

    /// The tenant of a disk; for a snapshot, the tenant of its volume.
    pub fn tenant_of(&self, disk: &str) -> Option<String> {
        let volume = disk.split_once('@').map_or(disk, |(volume, _)| volume);
        self.pool().limits(volume).ok()?.tenant
    }

    /// Returns information about the server.
    pub fn info(&self) -> &ServerInfo {
        &self.inner.info
    }

    /// Returns a flag that becomes true when the server begins to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.inner.stopping.subscribe()
    }

    /// Waits for a job permit. [`Control::stop`] waits until all permits are dropped.
    pub async fn job_permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.inner.running).acquire_owned().await;
        permit.map_err(|_| self.ended())
    }

    /// Refuses new jobs and connections of the API, while no job is running, for an upgrade.
    pub fn end(&self) {
        self.inner.upgrades.set_begun();
        self.inner.stopping.send_replace(true);
        self.inner.running.close();
    }

    /// The reason for which a job cannot begin any more.
    pub fn ended(&self) -> ControlError {
        if self.is_upgrading() { ControlError::upgrading() } else { ControlError::closed() }
    }

    /// Whether another process is taking over.
    pub fn is_upgrading(&self) -> bool {
        self.inner.upgrades.has_begun()
    }

    /// Waits until the server begins to stop.
    pub async fn stopped(&self) {
        // The sender is in `self`.
        let _ = self.inner.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Refuses new jobs, cancels long jobs, and waits for running jobs; `timeout` is the maximum wait.
    pub async fn stop(&self, timeout: Duration) {
        self.inner.stopping.send_replace(true);
        let all = Arc::clone(&self.inner.running).acquire_many_owned(MAX_RUNNING);
        if tokio::time::timeout(timeout, all).await.is_err() {
            tracing::warn!("some control-plane jobs did not finish before the shutdown timeout");
        }
        self.inner.running.close();
    }
}
