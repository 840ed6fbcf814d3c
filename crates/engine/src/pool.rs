//! The pool: its parts, opening and closing it, and the work behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use forebay_format::{Address, BlockRef, DiskId, PoolId, Stream};
use forebay_guest::Policy;
use forebay_store::{Metered, Store};
use hashbrown::HashSet;
use tokio::sync::{Notify, watch};

use crate::cache::{MissTable, ReadCache};
use crate::catalogue::Catalogue;
use crate::classes::Learning;
use crate::commit::{PendingOp, Progress};
use crate::dedup::Dedup;
use crate::desktop::Desktops;
use crate::fetch::Fetched;
use crate::limits::{COMMIT_DELAY, RECLAIM_PAUSE};
use crate::log::Log;
use crate::map::NodeCache;
use crate::places::Places;
use crate::profile::Profiles;
use crate::reclaim::Space;
use crate::recovery::{Mode, OnLoss, Recovered};
use crate::schedule::Schedule;
use crate::stats::{Counter, GuestCounters, StoreStats, count};
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use crate::sync::{Mutex, RwLock};
use crate::upkeep::Upkeep;
use crate::volume::Volume;
use crate::{
    BootProfile, Coalesce, Count, Disk, DiskStats, Error, GuestStats, Host, Memory, Mutation, PoolStats,
    ReductionStats, Result, Room,
};

/// How a pool is run. All sizes in bytes.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Budget of the read cache.
    pub read_cache: u64,
    /// Budget of the map cache.
    pub map_cache: u64,
    /// Most dirty data that is held before writers wait.
    pub write_buffer: u64,
    /// Most bytes that the write caches of all desktops may hold together.
    pub desktops: u64,
    /// Size at which new segments are sealed: 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Log bytes after which a checkpoint is made.
    pub checkpoint_bytes: u64,
    /// Whether small writes are gathered into large ones.
    pub coalesce: Coalesce,
    /// How long a commit that somebody waits for may wait for others.
    pub commit_delay: Duration,
    /// Budget of the dedup index; of almost nothing, less is found and all stays right.
    pub dedup_index: u64,
    /// Whether what is stored is compressed.
    pub compress: bool,
    /// Reclaiming begins by itself no sooner than so long after the last one; at least four times as long as
    /// that one took, unless room is short.
    pub reclaim_pause: Duration,
    /// When boot profiles are used.
    pub boot_profile: BootProfile,
    /// How blocks are treated by what guests' file systems say of them.
    pub classes: Policy,
    /// Whether disks are scanned for that by themselves; see [`Pool::next_to_learn`].
    pub learn_classes: bool,
    /// A rule that is broken on purpose.
    #[doc(hidden)]
    pub mutation: Mutation,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            read_cache: 1 << 30,
            map_cache: 128 << 20,
            write_buffer: 64 << 20,
            desktops: 1 << 30,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 512 << 20,
            coalesce: Coalesce::Adaptive,
            commit_delay: COMMIT_DELAY,
            dedup_index: 256 << 20,
            compress: true,
            reclaim_pause: RECLAIM_PAUSE,
            boot_profile: BootProfile::default(),
            classes: Policy::default(),
            learn_classes: true,
            mutation: Mutation::None,
        }
    }
}

/// What the commit shares with writers; see [`crate::commit`].
pub(crate) struct Commit {
    /// Passed by every write; closed while the buffers are frozen.
    pub gate: RwLock<()>,
    /// Freezes so far; changes only behind the gate.
    pub freezes: AtomicU64,
    /// Bytes in the buffers.
    pub dirty: AtomicI64,
    /// Disks whose active buffer holds something.
    pub disks: Mutex<Vec<Arc<Volume>>>,
    pub ops: Mutex<Vec<PendingOp>>,
    pub schedule: Schedule,
    /// Disks with cold writes, for the task that reads what those need.
    pub cold: Mutex<VecDeque<Arc<Volume>>>,
    pub cold_wake: Notify,
    pub closing: AtomicBool,
    /// Room in the store is short; data is not taken.
    pub full: AtomicBool,
    /// How much room there was when that was last looked at.
    pub free: AtomicU64,
    /// How much there was in all.
    pub total: AtomicU64,
    /// Bytes that the buffers may hold now.
    pub budget: AtomicU64,
    /// Bytes that guests may write per second now; `u64::MAX` is no bound.
    pub write_rate: AtomicU64,
    /// When the next write may go on where they are bound, in the time of the host.
    pub next_write: Mutex<Duration>,
    /// The store refused data when it had so much room, and has taken none since. What it says of its room is not all:
    /// there are quotas, and others who write.
    pub refused_at: AtomicU64,
    /// Room in the store will be short soon; somebody was told.
    pub low: AtomicBool,
    pub progress: watch::Sender<Progress>,
}

impl Commit {
    fn new() -> Commit {
        Commit {
            gate: RwLock::new(()),
            freezes: AtomicU64::new(0),
            dirty: AtomicI64::new(0),
            disks: Mutex::default(),
            ops: Mutex::default(),
            schedule: Schedule::default(),
            cold: Mutex::default(),
            cold_wake: Notify::new(),
            closing: AtomicBool::new(false),
            full: AtomicBool::new(false),
            free: AtomicU64::new(0),
            total: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            write_rate: AtomicU64::new(u64::MAX),
            next_write: Mutex::default(),
            refused_at: AtomicU64::new(0),
            low: AtomicBool::new(false),
            progress: watch::channel(Progress::default()).0,
        }
    }

    /// Has the next commit begin at once.
    pub fn hurry(&self) {
        self.schedule.hurry();
    }

    pub fn has_work(&self) -> bool {
        !self.disks.lock().is_empty() || !self.ops.lock().is_empty()
    }
}

/// What the pool counts itself.
#[derive(Default)]
pub(crate) struct Counters {
    pub damaged: Counter,
    pub commits: Counter,
    pub checkpoints: Counter,
    pub reduction: ReductionCounters,
    /// What desktops let overflow.
    pub overflow: Counter,
    /// What the cleaner wrote, and what was freed.
    pub moved: Counter,
    pub freed: Counter,
    pub recovered_batches: AtomicU64,
    pub recovery_ms: AtomicU64,
    /// What guests did to disks that are gone.
    retired: Mutex<GuestStats>,
}

/// Blocks, by what became of them.
#[derive(Default)]
pub(crate) struct ReductionCounters {
    pub zero: Counter,
    pub unchanged: Counter,
    pub duplicate: Counter,
    /// Stored, with the bytes that they take.
    pub new: Counter,
}

impl Counters {
    pub fn retire(&self, guest: &GuestCounters) {
        *self.retired.lock() += guest.get();
    }
}

/// An open pool.
pub struct Pool {
    pub(crate) store: Arc<Metered>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) config: PoolConfig,
    pub(crate) catalogue: RwLock<Catalogue>,
    pub(crate) commit: Commit,
    pub(crate) desktops: Desktops,
    pub(crate) log: tokio::sync::Mutex<Log>,
    pub(crate) appended: Arc<AtomicU64>,
    pub(crate) nodes: NodeCache,
    pub(crate) node_misses: MissTable<()>,
    pub(crate) cache: ReadCache,
    pub(crate) misses: MissTable<Fetched>,
    pub(crate) profiles: Profiles,
    pub(crate) learning: Learning,
    pub(crate) counters: Counters,
    pub(crate) upkeep: Upkeep,
    /// Which pool it is.
    pub(crate) id: PoolId,
    /// Size at which its segments are sealed: what was configured, or less in a small store.
    pub(crate) segment_bytes: u64,
    pub(crate) fingerprint_key: [u8; 32],
    /// Which blocks are stored already.
    pub(crate) dedup: Mutex<Dedup>,
    /// Blocks that were found damaged: nothing new is to refer to them.
    damaged: Mutex<HashSet<Address>>,
    /// Where what was moved rests.
    pub(crate) places: Places,
    /// What the last mark found.
    pub(crate) space: Mutex<Space>,
    /// One administrator's operation at a time.
    pub(crate) admin: tokio::sync::Mutex<()>,
    latched: OnceLock<String>,
}

/// A store of which less than one part in so many is free, beside the reserve, is low on room.
const LOW_PART: u64 = 10;

impl Pool {
    /// Opens the pool on `store`; makes one where the store is empty.
    ///
    /// # Errors
    /// [`Error::Format`] where what is there is damaged, foreign or newer; [`Error::LogDamaged`] where flushed writes
    /// would be lost; [`Error::Store`] where it cannot be read or written.
    pub async fn open(store: Arc<dyn Store>, host: Arc<dyn Host>, config: PoolConfig) -> Result<Arc<Pool>> {
        let clock = host.clone();
        let store = Arc::new(Metered::new(store, Arc::new(move || clock.now())));
        let Recovered { pool, warm, .. } =
            Pool::recover(store, host, config, Mode::Own, OnLoss::Refuse).await?;
        let pool = Arc::new(pool);
        // Before upkeep looks: a room that is not known yet would look like a full store.
        pool.check_space().await?;
        pool.host.spawn("commit", Box::pin(pool.clone().commit_loop()));
        pool.host.spawn("cold writes", Box::pin(pool.clone().warm_loop()));
        pool.host.spawn("upkeep", Box::pin(pool.clone().upkeep_loop()));
        let index = pool.clone();
        pool.host.spawn("index", Box::pin(async move { index.rebuild_index(warm).await }));
        pool.host.spawn("overflow", Box::pin(pool.clone().overflow_loop()));
        pool.remove_imports().await?;
        pool.reset_desktops().await?;
        pool.host.spawn("resets", Box::pin(pool.clone().reset_loop()));
        pool.all_clones_may_start();
        pool.host.spawn("classes", Box::pin(pool.clone().load_classes()));
        Ok(pool)
    }

    /// The parts of a pool, around a log and a catalogue that recovery goes on to fill.
    pub(crate) fn assemble(
        store: Arc<Metered>,
        host: Arc<dyn Host>,
        config: PoolConfig,
        log: Log,
        catalogue: Catalogue,
    ) -> Pool {
        Pool {
            appended: log.appended.clone(),
            id: log.superblock().pool,
            segment_bytes: log.superblock().segment_bytes.into(),
            nodes: NodeCache::new(config.map_cache),
            places: Places::new(config.map_cache / 4),
            space: Mutex::default(),
            cache: ReadCache::new(config.read_cache),
            catalogue: RwLock::new(catalogue),
            commit: Commit::new(),
            desktops: Desktops::new(config.desktops),
            node_misses: MissTable::default(),
            misses: MissTable::default(),
            profiles: Profiles::default(),
            learning: Learning::default(),
            counters: Counters::default(),
            upkeep: Upkeep::default(),
            fingerprint_key: log.superblock().fingerprint_key,
            dedup: Mutex::new(Dedup::new(config.dedup_index, 0)),
            damaged: Mutex::default(),
            log: tokio::sync::Mutex::new(log),
            admin: tokio::sync::Mutex::new(()),
            latched: OnceLock::new(),
            store,
            host,
            config,
        }
    }

    /// Commits, makes a checkpoint, stops the background tasks. Later requests fail with `Closed`.
    ///
    /// # Errors
    /// Whatever kept acknowledged data from becoming durable.
    pub async fn close(&self) -> Result<()> {
        {
            let _gate = self.commit.gate.write();
            self.commit.closing.store(true, Release);
        }
        self.commit.hurry();
        self.desktops.wake();
        self.desktops.wake_resets();
        self.commit.cold_wake.notify_one();
        let mut progress = self.commit.progress.subscribe();
        progress.wait_for(|p| p.stopped).await.map_err(|_| Error::Closed)?;
        self.upkeep.stopped.store(true, Relaxed);
        self.upkeep.wake.notify_one();
        self.check_latch()?;
        // So that its fingerprints are in a directory at the next start.
        let ended = self.log.lock().await.end_segment(Stream::Data).await;
        self.latching(ended)?;
        self.checkpoint().await
    }

    /// Opens a disk by its export name; it counts as a client until the handle is dropped.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::InUse`]; [`Error::Resetting`], where [`Pool::attach_when_reset`] waits.
    pub fn attach(self: &Arc<Pool>, name: &str) -> Result<Arc<Disk>> {
        let volume = self.catalogue.read().find(name)?;
        if volume.attach(name)? == 1 {
            self.guest_came(&volume);
        }
        Ok(Arc::new(Disk::new(self.clone(), volume, name.to_owned())))
    }

    /// Notes a block that is damaged.
    pub(crate) fn note_damaged(&self, at: &BlockRef) {
        self.damaged.lock().insert(at.addr);
    }

    /// Whether a block is known to be damaged.
    pub(crate) fn is_damaged(&self, at: &BlockRef) -> bool {
        self.damaged.lock().contains(&at.addr)
    }

    /// A disk by its number.
    pub(crate) fn volume(&self, id: DiskId) -> Option<Arc<Volume>> {
        self.catalogue.read().get(id).cloned()
    }

    /// Stops acknowledging, for good.
    pub(crate) fn latch(&self, why: &Error) {
        let _ = self.latched.set(why.to_string());
    }

    pub(crate) fn check_latch(&self) -> Result<()> {
        match self.latched.get() {
            Some(why) => Err(Error::Latched(why.clone())),
            None => Ok(()),
        }
    }

    /// An error where the pool takes no changes any more.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check_latch()?;
        if self.commit.closing.load(Relaxed) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Called by the commit when a group is done.
    pub(crate) async fn after_commit(&self) {
        if self.upkeep_due() {
            self.upkeep.wake();
        }
        if let Err(e) = self.check_space().await {
            tracing::warn!("cannot tell how much room is left: {e}");
        }
    }

    /// Room that must stay for deletions, checkpoints and what is in the buffers already.
    pub(crate) fn reserve(&self, total: u64) -> u64 {
        (2 * self.segment_bytes + 2 * self.config.write_buffer).min(total / 4)
    }

    /// Takes data or refuses it, by the room that is left, and says once when that becomes little.
    pub(crate) async fn check_space(&self) -> Result<()> {
        let room = self.store.capacity().await?;
        let reserve = self.reserve(room.total);
        self.commit.free.store(room.free, Relaxed);
        self.commit.total.store(room.total, Relaxed);
        if !self.commit.has_work() {
            // Nobody tries again by itself, so the next one may.
            self.commit.refused_at.store(0, Relaxed);
        }
        let full = room.free < reserve.max(self.commit.refused_at.load(Relaxed));
        let was_low = self.commit.low.load(Relaxed);
        // It is over only when it is clearly over: a store at the threshold is not told of at every commit.
        let slack = if was_low { room.total / (10 * LOW_PART) } else { 0 };
        // What a cleaning would free is room as well: a log that is in use has some of it at any time.
        let reclaimable = self.space.lock().pool.map_or(0, |s| s.reclaimable_bytes);
        let low = full || room.free + reclaimable < reserve + room.total / LOW_PART + slack;
        self.commit.low.store(low, Relaxed);
        let was_full = self.commit.full.swap(full, Relaxed);
        self.commit.budget.store(self.situation().buffer_budget(self.config.write_buffer), Relaxed);
        self.commit.write_rate.store(self.write_rate().unwrap_or(u64::MAX), Relaxed);
        let (free, total) = (room.free, room.total);
        match (was_full, full) {
            (false, true) => {
                tracing::warn!(free, total, "the store is full: writes wait for a cleaning, or are refused")
            }
            (true, false) => tracing::warn!(free, total, "the store has room again: writes are taken"),
            _ if low && !was_low => tracing::warn!(free, total, "the store is low on room"),
            _ if was_low && !low => tracing::info!(free, total, "the store is no longer low on room"),
            _ => {}
        }
        if was_full != full {
            self.upkeep.wake();
            self.commit.progress.send_modify(|_| ());
        }
        Ok(())
    }

    /// How much room there was when that was last looked at.
    pub(crate) fn room(&self) -> Room {
        match (self.commit.full.load(Relaxed), self.commit.low.load(Relaxed)) {
            (true, _) => Room::Full,
            (false, true) => Room::Low,
            (false, false) => Room::Ok,
        }
    }

    /// The memory whose budgets can be changed.
    pub fn memory(&self) -> Memory {
        let cache = self.cache.stats();
        Memory {
            read_cache: cache.bytes,
            read_cache_budget: cache.budget,
            desktops: self.desktops.cached(),
            desktops_budget: self.desktops.budget(),
        }
    }

    /// Changes these budgets. The read cache is within its new one on return; desktops overflow until they are.
    pub fn set_memory(&self, read_cache: u64, desktops: u64) {
        if self.cache.stats().budget != read_cache {
            self.cache.set_budget(read_cache);
        }
        self.desktops.set_budget(desktops);
    }

    /// The counters.
    pub async fn stats(&self) -> PoolStats {
        let (seq, segments, stored) = {
            let log = self.log.lock().await;
            let stored = log.table().values().filter(|r| r.map.is_none()).map(|r| r.written as u64).sum();
            (log.head().seq, log.table().len() as u64, stored)
        };
        let room = self.store.capacity().await.ok();
        let (mut guest, disks) = (*self.counters.retired.lock(), {
            let catalogue = self.catalogue.read();
            catalogue.visible().count() as u64
        });
        self.catalogue.read().iter().for_each(|d| guest += d.guest.get());
        let counts = self.store.counts();
        PoolStats {
            guest,
            store: StoreStats {
                read: count(counts.read),
                write: count(counts.write),
                sync: counts.sync,
                delete: counts.delete,
            },
            read_cache: self.cache.stats(),
            map_cache: self.nodes.stats(),
            dirty_bytes: self.commit.dirty.load(Relaxed).max(0) as u64,
            stored_bytes: stored,
            store_total_bytes: room.map_or(0, |r| r.total),
            store_free_bytes: room.map_or(0, |r| r.free),
            disks,
            segments,
            seq,
            commits: self.counters.commits.get().ops,
            commit: self.commit_stats(),
            checkpoints: self.counters.checkpoints.get().ops,
            damaged_blocks: self.counters.damaged.get().ops,
            recovered_batches: self.counters.recovered_batches.load(Relaxed),
            recovery_ms: self.counters.recovery_ms.load(Relaxed),
            reduction: self.reduction_stats(),
            desktops: self.desktop_stats(),
            room: self.room(),
            space: self.space.lock().pool,
            moved_bytes: self.counters.moved.get().bytes,
            freed_bytes: self.counters.freed.get().bytes,
        }
    }

    fn reduction_stats(&self) -> ReductionStats {
        let r = &self.counters.reduction;
        let mut stats = ReductionStats {
            zero_blocks: r.zero.get().ops,
            unchanged_blocks: r.unchanged.get().ops,
            duplicate_blocks: r.duplicate.get().ops,
            new_blocks: r.new.get().ops,
            new_bytes: r.new.get().bytes,
            ..ReductionStats::default()
        };
        self.dedup.lock().stats(&mut stats);
        stats
    }

    /// What one disk did and holds.
    pub fn disk_stats(&self, name: &str) -> Result<DiskStats> {
        let disk = self.catalogue.read().find(name)?;
        let space = self.space.lock().disks.get(&disk.id()).copied();
        Ok(DiskStats { guest: disk.guest.get(), space, cached_bytes: disk.cached() })
    }
}

impl std::ops::AddAssign for GuestStats {
    fn add_assign(&mut self, other: GuestStats) {
        let add = |a: &mut Count, b: Count| {
            a.ops += b.ops;
            a.bytes += b.bytes;
        };
        add(&mut self.read, other.read);
        add(&mut self.write, other.write);
        add(&mut self.discard, other.discard);
        self.flush += other.flush;
    }
}
