//! The control plane: everything an administrator can ask, as one enum, and its execution against the pool.
//!
//! Every way in (the API over the control socket or TCP, later a dashboard) turns its request into an
//! [`Action`] and hands it to [`Control::run`]. So there is one place that decides, logs and answers.
//!
//! An action that has begun runs to its end, whether or not the client still listens: it runs in a task of its
//! own, and a shutdown waits for it. So does reclaiming, which tells how it goes ([`Control::reclaim`]). Imports
//! are not actions: they last as long as their connection.

mod classes;
mod desktops;
mod error;
mod gc;
mod profile;
mod reservations;
mod space;
mod targets;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{CloneRequest, DiskInfo, Error as EngineError, Pool, Role};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

pub use classes::*;
pub use desktops::*;
pub use error::{ControlError, ErrorBody, ErrorDetail, Result};
pub use profile::*;
pub use reservations::*;
pub use space::*;
pub use targets::*;
pub use view::*;

use crate::import::FetchPolicy;
use crate::scsi::Units;
use crate::targets::Targets;

/// Actions that run at the same time; more wait.
const MAX_RUNNING: u32 = 64;
/// How long an action that needs a disk for itself waits for connections whose clients may just have left: the
/// server learns that a client is gone a moment after the client does.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often it looks meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Most clones that one request makes.
pub const MAX_CLONES: u32 = 100_000;

/// What an administrator asks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the pool's methods and of the API's resources
pub enum Action {
    ListImages,
    ShowImage { name: String },
    CreateImage { name: String, source: String },
    RemoveImage { name: String },
    ShowProfile { image: String },
    ChangeProfile { image: String, action: ProfileAction },
    RemoveProfile { image: String },
    ListVolumes,
    ShowVolume { name: String },
    CreateVolume(CreateVolume),
    CloneVolumes(CloneVolumes),
    RemoveVolume { name: String },
    ResizeVolume { name: String, size_bytes: u64 },
    ResetVolume { name: String },
    Reset { volumes: Vec<String> },
    PersistVolume { name: String, sync: Sync },
    ShowClasses { name: String },
    LearnClasses { name: String },
    RollbackVolume { name: String, snapshot: String },
    ListSnapshots { volume: String },
    CreateSnapshot { volume: String, name: String },
    RemoveSnapshot { volume: String, name: String },
    ListTargets,
    ShowTarget { name: String },
    CreateTarget(CreateTarget),
    RemoveTarget { name: String, force: bool },
    RemoveTargets { force: bool },
    AllowInitiator { target: String, initiator: String, allowed: AllowInitiator },
    DenyInitiator { target: String, initiator: String },
    MapLun { target: String, lun: Option<u16>, map: MapLun },
    UnmapLun { target: String, lun: u16 },
    ShowReservations { target: String, lun: u16 },
    ClearReservations { target: String, lun: u16 },
    Server,
    Stats,
    DiskStats { name: String },
    Checkpoint,
}

impl Action {
    /// Whether it changes nothing.
    pub fn is_query(&self) -> bool {
        use Action::*;
        matches!(
            self,
            ListImages
                | ShowImage { .. }
                | ShowProfile { .. }
                | ListVolumes
                | ShowVolume { .. }
                | ShowClasses { .. }
                | ListSnapshots { .. }
                | ListTargets
                | ShowTarget { .. }
                | ShowReservations { .. }
                | Server
                | Stats
                | DiskStats { .. }
        )
    }
}

/// The answer to an action.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Reply {
    Disk(DiskView),
    Disks(Vec<DiskView>),
    Server(ServerView),
    Stats(Box<StatsView>),
    DiskStats(DiskStatsView),
    Profile(ProfileView),
    Prefetched(PrefetchedView),
    Classes(ClassesView),
    Target(TargetView),
    Targets(Vec<TargetView>),
    Lun(LunView),
    Reservations(ReservationsView),
    /// Done, and there is nothing to say about it.
    Done {},
}

/// What the server says of itself.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Where the pool is.
    pub data: PathBuf,
    /// Addresses on which NBD clients are served.
    pub nbd: Vec<String>,
    /// Addresses on which iSCSI initiators are served.
    pub iscsi: Vec<String>,
    /// Address of the API over TCP.
    pub http: Option<String>,
    /// How images are fetched from URLs.
    pub imports: FetchPolicy,
    /// When it became ready.
    pub started: Instant,
}

/// Runs actions. Cheap to share.
#[derive(Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    targets: Arc<Targets>,
    units: Arc<Units>,
    info: ServerInfo,
    running: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    scans: Scans,
}

impl Control {
    /// A control plane over an open pool, its targets and their logical units.
    pub fn new(pool: Arc<Pool>, targets: Arc<Targets>, units: Arc<Units>, info: ServerInfo) -> Control {
        let running = Arc::new(Semaphore::new(MAX_RUNNING as usize));
        let (stopping, scans) = (watch::Sender::new(false), Scans::default());
        Control { inner: Arc::new(Inner { pool, targets, units, info, running, stopping, scans }) }
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Who may see which disk over iSCSI.
    pub fn targets(&self) -> &Arc<Targets> {
        &self.inner.targets
    }

    /// The logical units of the targets.
    pub(super) fn units(&self) -> &Arc<Units> {
        &self.inner.units
    }

    /// What the server says of itself.
    pub fn info(&self) -> &ServerInfo {
        &self.inner.info
    }

    /// Becomes true when the server is told to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.inner.stopping.subscribe()
    }

    /// Takes a place among the running jobs; [`Control::stop`] waits until it is given back.
    pub async fn begin(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.inner.running).acquire_owned().await;
        permit.map_err(|_| ControlError::closed())
    }

    /// Refuses new jobs, tells long ones to give up, and waits at most `patience` for those that run.
    pub async fn stop(&self, patience: Duration) {
        self.inner.stopping.send_replace(true);
        let all = Arc::clone(&self.inner.running).acquire_many_owned(MAX_RUNNING);
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::warn!("some control-plane jobs did not finish in time");
        }
        self.inner.running.close();
    }

    /// Runs an action to its end.
    pub async fn run(&self, action: Action) -> Result<Reply> {
        if *self.inner.stopping.borrow() {
            return Err(ControlError::closed());
        }
        let permit = self.begin().await?;
        let this = self.clone();
        let task = tokio::spawn(async move {
            let result = this.execute_when_free(&action).await;
            drop(permit);
            if !action.is_query() {
                match &result {
                    Ok(_) => tracing::info!(?action, "done"),
                    Err(e) => tracing::info!(?action, error = %e, "failed"),
                }
            }
            result
        });
        task.await.unwrap_or_else(|e| Err(ControlError::internal(format!("the action failed: {e}"))))
    }

    /// Executes an action, again for [`FAREWELL`] when it is refused for a disk or a target that is in use: what
    /// is refused has changed nothing.
    async fn execute_when_free(&self, action: &Action) -> Result<Reply> {
        let begun = Instant::now();
        loop {
            match self.execute(action).await {
                Err(e) if e.is_in_use() && begun.elapsed() < FAREWELL => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                result => return result,
            }
        }
    }

    async fn execute(&self, action: &Action) -> Result<Reply> {
        let pool = &self.inner.pool;
        let done = Ok(Reply::Done {});
        match action {
            Action::ListImages => Ok(self.list(|d| d.role == Role::Image)),
            Action::ListVolumes => Ok(self.list(|d| d.role == Role::Volume)),
            Action::ShowImage { name } => self.show(name, Role::Image),
            Action::ShowVolume { name } => self.show(name, Role::Volume),
            Action::CreateImage { name, source } => disk(&pool.create_image(name, source).await?),
            Action::RemoveImage { name } => self.remove_disk(name, Role::Image).await,
            Action::ShowProfile { image } => Ok(Reply::Profile(pool.profile(image).await?.into())),
            Action::ChangeProfile { image, action } => self.change_profile(image, *action).await,
            Action::RemoveProfile { image } => {
                pool.forget_profile(image).await?;
                done
            }
            Action::RemoveVolume { name } => self.remove_disk(name, Role::Volume).await,
            Action::CreateVolume(v) => {
                disk(&pool.create_volume(&v.name, v.size_bytes, v.sync.into(), v.dedup_domain).await?)
            }
            Action::CloneVolumes(c) => self.clone_volumes(c).await,
            Action::ResizeVolume { name, size_bytes } => {
                pool.resize(name, *size_bytes).await?;
                self.show(name, Role::Volume)
            }
            Action::ResetVolume { name } => {
                pool.reset(name).await?;
                self.show(name, Role::Volume)
            }
            Action::Reset { volumes } => {
                let names: Vec<&str> = volumes.iter().map(String::as_str).collect();
                pool.reset_all(&names).await?;
                let found = names.iter().filter_map(|n| DiskView::new(&pool.disk(n).ok()?));
                Ok(Reply::Disks(found.collect()))
            }
            Action::PersistVolume { name, sync } => disk(&pool.persist(name, (*sync).into()).await?),
            Action::ShowClasses { name } => Ok(Reply::Classes(pool.classes(name)?.into())),
            Action::LearnClasses { name } => {
                self.learn_now(name).await?;
                Ok(Reply::Classes(pool.classes(name)?.into()))
            }
            Action::RollbackVolume { name, snapshot } => {
                pool.rollback(name, snapshot).await?;
                self.show(name, Role::Volume)
            }
            Action::ListSnapshots { volume } => {
                self.expect(volume, Role::Volume)?;
                let prefix = format!("{volume}@");
                Ok(self.list(|d| d.role == Role::Snapshot && d.name.starts_with(&prefix)))
            }
            Action::CreateSnapshot { volume, name } => disk(&pool.create_snapshot(volume, name).await?),
            Action::RemoveSnapshot { volume, name } => {
                self.remove_disk(&format!("{volume}@{name}"), Role::Snapshot).await
            }
            Action::ListTargets => self.list_targets().await,
            Action::ShowTarget { name } => self.show_target(name).await,
            Action::CreateTarget(new) => self.create_target(new).await,
            Action::RemoveTarget { name, force } => self.remove_target(name, *force).await,
            Action::RemoveTargets { force } => {
                self.targets().remove_all(*force).await?;
                done
            }
            Action::AllowInitiator { target, initiator, allowed } => {
                self.allow_initiator(target, initiator, allowed).await
            }
            Action::DenyInitiator { target, initiator } => self.deny_initiator(target, initiator).await,
            Action::MapLun { target, lun, map } => self.map_lun(target, *lun, map).await,
            Action::UnmapLun { target, lun } => self.unmap_lun(target, *lun).await,
            Action::ShowReservations { target, lun } => self.show_reservations(target, *lun).await,
            Action::ClearReservations { target, lun } => {
                self.units().clear_reservations(pool, &self.disk_of(target, *lun)?).await?;
                done
            }
            Action::Server => Ok(Reply::Server(self.server_view())),
            Action::Stats => {
                Ok(Reply::Stats(Box::new(StatsView::new(&pool.stats().await, resident_memory()))))
            }
            Action::DiskStats { name } => self.disk_stats(name).await,
            Action::Checkpoint => {
                pool.checkpoint().await?;
                done
            }
        }
    }

    async fn clone_volumes(&self, c: &CloneVolumes) -> Result<Reply> {
        let names = clone_names(&c.name, c.count)?;
        // A desktop without any RAM has room for one block.
        let write_cache = c.write_cache_bytes.map_or(0, |bytes| bytes.max(4096));
        let reset_at_disconnect = write_cache > 0 && c.reset == Reset::Disconnect;
        let request = |name| CloneRequest { name, sync: c.sync.into(), write_cache, reset_at_disconnect };
        let requests: Vec<_> = names.into_iter().map(request).collect();
        let made = self.inner.pool.clone_disk(&c.source, &requests).await?;
        Ok(Reply::Disks(made.iter().filter_map(DiskView::new).collect()))
    }

    async fn change_profile(&self, image: &str, action: ProfileAction) -> Result<Reply> {
        let pool = &*self.inner.pool;
        match action {
            ProfileAction::Record => pool.record_profile(image)?,
            ProfileAction::Stop => {
                if !pool.end_recording(image)? {
                    let why = format!("no boot of '{image}' is being recorded, and none was asked for");
                    return Err(ControlError::bad_request(why));
                }
            }
            ProfileAction::Prefetch => return Ok(Reply::Prefetched(pool.prefetch(image).await?.into())),
        }
        Ok(Reply::Done {})
    }

    async fn disk_stats(&self, name: &str) -> Result<Reply> {
        let pool = &*self.inner.pool;
        let stats = pool.disk_stats(name)?;
        let space = match stats.space {
            None => None,
            Some(space) => pool.stats().await.space.map(|s| DiskSpaceView::new(space, s.as_of_ms)),
        };
        let cached_bytes = stats.cached_bytes;
        Ok(Reply::DiskStats(DiskStatsView { guest: stats.guest.into(), space, cached_bytes }))
    }

    fn list(&self, wanted: impl Fn(&DiskInfo) -> bool) -> Reply {
        let disks = self.inner.pool.disks();
        Reply::Disks(disks.iter().filter(|d| wanted(d)).filter_map(DiskView::new).collect())
    }

    fn show(&self, name: &str, role: Role) -> Result<Reply> {
        disk(&self.expect(name, role)?)
    }

    /// The disk of this name, which must be of this kind: `volume rm` must not remove an image.
    fn expect(&self, name: &str, role: Role) -> Result<DiskInfo> {
        let info = self.inner.pool.disk(name)?;
        if info.role == role {
            return Ok(info);
        }
        let wrong = EngineError::WrongKind { name: info.name, is: article(info.role), needs: article(role) };
        Err(wrong.into())
    }

    fn server_view(&self) -> ServerView {
        let info = &self.inner.info;
        ServerView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: info.data.display().to_string(),
            pid: std::process::id(),
            uptime_s: info.started.elapsed().as_secs(),
            nbd: info.nbd.clone(),
            iscsi: info.iscsi.clone(),
            http: info.http.clone(),
        }
    }
}

fn disk(info: &DiskInfo) -> Result<Reply> {
    DiskView::new(info).map(Reply::Disk).ok_or_else(|| EngineError::NotFound(info.name.clone()).into())
}

fn article(role: Role) -> &'static str {
    match role {
        Role::Volume => "a volume",
        Role::Snapshot => "a snapshot",
        Role::Image => "an image",
        Role::Import | Role::Note => "not for use",
    }
}

/// `NAME`, or `NAME-001` to `NAME-count` with three digits or as many as the count has.
fn clone_names(name: &str, count: Option<u32>) -> Result<Vec<String>> {
    let Some(count) = count else { return Ok(vec![name.to_owned()]) };
    if count == 0 || count > MAX_CLONES {
        return Err(ControlError::bad_request(format!(
            "cannot make {count} clones at once: choose a count from 1 to {MAX_CLONES}"
        )));
    }
    let width = count.to_string().len().max(3);
    Ok((1..=count).map(|i| format!("{name}-{i:0width$}")).collect())
}

/// Resident memory of this process in bytes; 0 where the system does not tell.
fn resident_memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_numbered_with_three_digits_or_more() {
        assert_eq!(clone_names("w", None).unwrap(), ["w"]);
        assert_eq!(clone_names("w", Some(2)).unwrap(), ["w-001", "w-002"]);
        let many = clone_names("w", Some(1000)).unwrap();
        assert_eq!((many[0].as_str(), many[999].as_str()), ("w-0001", "w-1000"));
        assert!(clone_names("w", Some(0)).is_err());
        assert!(clone_names("w", Some(MAX_CLONES + 1)).is_err());
    }

    #[test]
    fn memory_of_the_process_is_known() {
        assert!(resident_memory() > 0);
    }
}
