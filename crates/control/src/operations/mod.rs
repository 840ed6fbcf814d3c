//! The control plane: all administrative actions as one enum, and their execution on the pool.
//!
//! Every interface (the API over the control socket or TCP) converts its request to an
//! [`Action`] and passes it to [`Control::run`], so actions are executed and logged in one place.
//!
//! An action that has begun runs to its end even if the client disconnects: it runs in a separate task, and a
//! shutdown waits for it. The same holds for a reclaim, which also reports progress ([`Control::reclaim`]).
//! Imports are not actions: they are cancelled when their connection closes.

mod action;
mod classes;
mod clients;
mod disks;
mod error;
mod events;
mod gc;
mod jobs;
mod limits;
mod lists;
mod profile;
mod replacements;
mod reservations;
mod served;
mod stretches;
mod targets;
mod upgrade;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_api::{CapacityView, ErrorKind, JobKind, OwnerView, ServerView, StatsView};
use forebay_engine::{Pool, Role};
use parking_lot::RwLock;
use tokio::sync::{OwnedMutexGuard, Semaphore, watch};
use tracing::Instrument;

pub use action::{Action, Reply};
use classes::Scans;
pub use disks::MAX_CLONES;
use disks::disk_reply;
pub use error::{ControlError, ForeignName, NameOwner, Result};
pub use events::{Delivery, Event, EventDisk, Events, Subscription, Topic};
use forebay_frontend::plane::Gate;
use forebay_frontend::scsi::Units;
use forebay_frontend::targets::Targets;
use forebay_text::shortened;
pub use jobs::{Job, Jobs, NewJob};
pub use lists::{DiskList, DiskStretches};
use served::{clients_view, latency_view};
pub use stretches::{STRETCH, retain};
pub use upgrade::ServerRequest;

use crate::import::FetchPolicy;
use crate::limits::{DEFAULT_WEIGHT, LimitTable};
use crate::metrics::{Observed, VolumeSeries};
use crate::view::{View, stats_view, sync_mode};

/// Most jobs that run at the same time; further ones wait.
const MAX_RUNNING: u32 = 64;
/// Longest form of an action, and of its error, in the log, in bytes.
const MAX_LOGGED: usize = 1024;
/// Most events of one action.
const MAX_DISK_EVENTS: usize = 1000;
/// How long an action that requires exclusive use of a disk or target is retried while connections use it:
/// the server detects a disconnect a moment after the client has disconnected.
const IN_USE_RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of these retries.
const IN_USE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Information about the server.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The data directory.
    pub data: PathBuf,
    /// Where the pool is: the data directory, or an address in Ceph.
    pub pool: String,
    /// Addresses on which NBD clients are served.
    pub nbd: Vec<String>,
    /// Addresses on which iSCSI initiators are served.
    pub iscsi: Vec<String>,
    /// Address of the API over TCP.
    pub http: Option<String>,
    /// Policy for imports from URLs.
    pub imports: FetchPolicy,
    /// When the server became ready.
    pub started: Instant,
}

/// Runs actions. Clones share their state.
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
    jobs: Jobs,
    events: Events,
    replacements: replacements::Replacements,
    /// Held while a token with a limited number of disks creates some.
    creations: Arc<tokio::sync::Mutex<()>>,
    upgrades: upgrade::Upgrades,
    /// Open while the server is certain to own the pool.
    gate: OnceLock<Gate>,
    observed: RwLock<Observed>,
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
            jobs: Jobs::default(),
            events: Events::default(),
            replacements: Default::default(),
            creations: Default::default(),
            upgrades: Default::default(),
            gate: OnceLock::new(),
            observed: RwLock::default(),
        };
        Control { inner: Arc::new(inner) }
    }

    /// Queries are answered only while this gate is open.
    pub fn set_gate(&self, gate: Gate) {
        // It is set once, before the API is served.
        let _ = self.inner.gate.set(gate);
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
    pub(super) fn units(&self) -> &Arc<Units> {
        &self.inner.units
    }

    /// Returns the limits of disks and tenants.
    pub(super) fn limits(&self) -> &LimitTable {
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

    /// The tenant of a disk; that of its volume for a snapshot.
    pub fn tenant_of(&self, disk: &str) -> Option<String> {
        let volume = disk.split_once('@').map_or(disk, |(volume, _)| volume);
        self.pool().limits(volume).ok()?.tenant
    }

    /// The weight of a disk itself.
    pub fn weight_of(&self, disk: &str) -> u16 {
        let weight = self.pool().limits(disk).ok().and_then(|found| found.limits.weight);
        weight.unwrap_or(DEFAULT_WEIGHT)
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

    /// Refuses new jobs, cancels long ones, and waits at most `timeout` for running jobs.
    pub async fn stop(&self, timeout: Duration) {
        self.inner.stopping.send_replace(true);
        let all = Arc::clone(&self.inner.running).acquire_many_owned(MAX_RUNNING);
        if tokio::time::timeout(timeout, all).await.is_err() {
            tracing::warn!("some control-plane jobs did not finish before the shutdown timeout");
        }
        self.inner.running.close();
    }

    /// Runs an action to its end. `owner` is the name of the client.
    pub async fn run(&self, action: Action, owner: &str) -> Result<Reply> {
        self.run_in_order(action, owner, None).await
    }

    /// As [`Control::run`]; `order` is held until the action has ended, also if the client has disconnected.
    pub(crate) async fn run_in_order(
        &self,
        action: Action,
        owner: &str,
        order: Option<OwnedMutexGuard<()>>,
    ) -> Result<Reply> {
        self.check_running()?;
        let permit = self.job_permit().await?;
        let (this, owner) = (self.clone(), owner.to_owned());
        let run = async move {
            // The tenant of a disk is known before its removal.
            let before = action.unnamed().map(|name| this.event_disk(&name));
            let mut result = this.execute_with_retry(&action, &owner).await;
            drop((permit, order));
            // A change was made by the owner, since the store compares that.
            if action.is_query() {
                result = this.check_owner().and(result);
            }
            this.publish(&action, &owner, before, &result);
            if !action.is_query() {
                // An action may name many disks, and an error repeats a name that was not found.
                let action = shortened(format_args!("{action:?}"), MAX_LOGGED);
                match &result {
                    Ok(_) => tracing::info!(action, "action completed"),
                    Err(e) => {
                        let error = shortened(format_args!("{e}"), MAX_LOGGED);
                        tracing::info!(action, error, "action failed");
                    }
                }
            }
            // Without the permit, since the commands may be slow, and an upgrade waits for permits.
            this.targets().served().revoked(|target| action.revokes_at(target)).await;
            result
        };
        // Events of the action name the request that it serves.
        let task = tokio::spawn(run.in_current_span());
        task.await.unwrap_or_else(|e| {
            Err(ControlError::internal(format!("the action failed ({e}); see the server's log")))
        })
    }

    /// Executes an action. Retries it for [`IN_USE_RETRY_TIMEOUT`] while a disk or target is in use; an
    /// action that is refused for that reason has changed nothing.
    async fn execute_with_retry(&self, action: &Action, owner: &str) -> Result<Reply> {
        let begun = Instant::now();
        loop {
            match self.execute(action, owner).await {
                Err(e) if e.is_in_use() && begun.elapsed() < IN_USE_RETRY_TIMEOUT => {
                    tokio::time::sleep(IN_USE_RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Publishes the event of an action that changed disks, or found that the pool has stopped.
    fn publish(&self, action: &Action, owner: &str, before: Option<EventDisk>, result: &Result<Reply>) {
        let events = self.events();
        match result {
            Ok(reply) => {
                let Some(what) = action.change() else { return };
                // One event for each disk, so that a client sees those of its scope; only a few of many.
                let disks: Vec<EventDisk> = match reply {
                    Reply::Disk(disk) => vec![self.event_disk(&disk.name)],
                    Reply::Disks(all) => {
                        all.iter().take(MAX_DISK_EVENTS).map(|disk| self.event_disk(&disk.name)).collect()
                    }
                    _ => before.into_iter().collect(),
                };
                for disk in disks {
                    events.publish(owner, Topic::Volume, what, vec![disk], serde_json::Value::Null);
                }
            }
            Err(e) if matches!(e.kind, ErrorKind::Latched | ErrorKind::Fenced | ErrorKind::Damaged) => {
                let data = serde_json::json!({"message": e.message});
                events.publish(owner, Topic::Error, e.kind.code(), Vec::new(), data);
            }
            Err(_) => {}
        }
    }

    async fn execute(&self, action: &Action, owner: &str) -> Result<Reply> {
        use Action as A;
        let pool = self.pool();
        match action {
            A::ShowImage { name } => self.show_disk(name, Role::Image),
            A::CreateImage { name, source } => self.create_image(name, source).await,
            A::RemoveImage { name } => self.remove_disk(name, Role::Image).await,
            A::ShowProfile { image } => self.show_profile(image).await,
            A::ChangeProfile { image, action } => self.change_profile(image, *action, owner).await,
            A::RemoveProfile { image } => self.remove_profile(image).await,
            A::ShowVolume { name } => self.show_disk(name, Role::Volume),
            A::CreateVolume(v) => disk_reply(
                &pool.create_volume(&v.name, v.size_bytes, sync_mode(v.sync), v.dedup_domain).await?,
            ),
            A::CloneVolumes(c) => self.clone_volumes(c).await,
            A::RemoveVolume { name } => self.remove_disk(name, Role::Volume).await,
            A::ResizeVolume { name, size_bytes } => self.resize_volume(name, *size_bytes).await,
            A::ResetVolume { name } => self.reset_volume(name).await,
            A::ResumeVolume { name } => self.resume_volume(name).await,
            A::Reset { volumes } => self.reset_volumes(volumes).await,
            A::PersistVolume { name, sync } => disk_reply(&pool.persist(name, sync_mode(*sync)).await?),
            A::ShowLimits { volume } => self.show_limits(volume),
            A::SetLimits { volume, new } => self.set_limits(volume, new).await,
            A::ListTenants => Ok(self.list_tenants()),
            A::ShowTenant { name } => self.show_tenant(name),
            A::SetTenant { name, limits } => self.set_tenant(name, *limits).await,
            A::RemoveTenant { name } => self.remove_tenant(name).await,
            A::ShowClasses { name } => self.show_classes(name),
            A::ListClients { name } => self.list_clients(name),
            A::DisconnectClient { name, client } => self.disconnect_client(name, client).await,
            A::LearnClasses { name } => self.scan_classes(name, owner).await,
            A::RollbackVolume { name, snapshot } => self.roll_back_volume(name, snapshot).await,
            A::CreateSnapshot { volume, name } => disk_reply(&pool.create_snapshot(volume, name).await?),
            A::RemoveSnapshot { volume, name } => {
                self.remove_disk(&format!("{volume}@{name}"), Role::Snapshot).await
            }
            A::ListTargets => self.list_targets().await,
            A::ShowTarget { name } => self.show_target(name).await,
            A::CreateTarget(new) => self.create_target(new).await,
            A::RemoveTarget { name, force } => self.remove_target(name, *force).await,
            A::RemoveTargets { force } => self.remove_targets(*force).await,
            A::DisconnectSession { target, session } => self.disconnect_session(target, session).await,
            A::AllowInitiator { target, initiator, allowed } => {
                self.allow_initiator(target, initiator, allowed).await
            }
            A::DenyInitiator { target, initiator } => self.deny_initiator(target, initiator).await,
            A::MapLun { target, lun, map } => self.map_lun(target, *lun, map).await,
            A::UnmapLun { target, lun } => self.unmap_lun(target, *lun).await,
            A::ShowReservations { target, lun } => self.show_reservations(target, *lun).await,
            A::ClearReservations { target, lun } => self.clear_reservations(target, *lun).await,
            A::Server => Ok(Reply::Server(self.server_view())),
            A::Capacity => Ok(Reply::Capacity(self.capacity_view().await)),
            A::Stats => Ok(Reply::Stats(Box::new(self.stats_view().await))),
            A::DiskStats { name } => self.disk_stats(name).await,
            A::Checkpoint => {
                pool.checkpoint().await?;
                Ok(Reply::Done {})
            }
        }
    }

    async fn stats_view(&self) -> StatsView {
        let stats = self.pool().stats().await;
        let observed = self.observed();
        StatsView {
            write_buffer_bytes: observed.write_buffer,
            clients: clients_view(&observed, self.targets().session_count()),
            latency: latency_view(&observed),
            ..stats_view(&stats, resident_memory())
        }
    }

    async fn capacity_view(&self) -> CapacityView {
        let stats = self.pool().stats().await;
        CapacityView {
            pool: self.inner.info.pool.clone(),
            total_bytes: stats.store_total_bytes,
            free_bytes: stats.store_free_bytes,
            room: stats.room.view(),
        }
    }

    fn server_view(&self) -> ServerView {
        let info = &self.inner.info;
        let owner = self.observed().held.map(|held| OwnerView {
            lease_ms: u64::try_from((held.lease_left)().as_millis()).unwrap_or(u64::MAX),
            server: held.owner,
            term: held.term,
            standbys: held.standbys.map(|all| all.into_iter().map(View::view).collect()),
        });
        ServerView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: info.data.display().to_string(),
            pool: info.pool.clone(),
            pid: std::process::id(),
            uptime_s: info.started.elapsed().as_secs(),
            nbd: info.nbd.clone(),
            iscsi: info.iscsi.clone(),
            http: info.http.clone(),
            owner,
        }
    }
}

/// Returns the resident memory of this process in bytes; 0 if `/proc` is not available.
pub(crate) fn resident_memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    // SAFETY: sysconf has no preconditions; it reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_not_zero() {
        assert!(resident_memory() > 0);
    }
}
