//! Desktops: clones whose writes are kept in RAM, and are gone after a reset, a crash or a restart.
//!
//! What a desktop writes stays in its write buffer, within a budget of its own and one for all; a flush is
//! answered at once. Rewriting a block reuses its page, a discard frees it. When a budget is nearly spent, the
//! blocks that were written longest ago *overflow*: they are committed as a group of the log like any other, but
//! to the `short` stream, some megabytes at a time. So they are reduced and compressed as everything is, one
//! block map leads to them, and mark and cleaner give their room back.
//!
//! **A desktop never mixes what it was with what it is.** Blocks overflow in any order, so after a crash the maps
//! of desktops hold parts of what was written. Therefore a pool that is opened sets every desktop back to its
//! origin before anybody can attach it, durably: the log says so, or what is committed for a desktop later could
//! be recovered on top of what it held before.
//!
//! **Turning one into a persistent volume** makes it commit as others do from one moment on, and only after that
//! is it recorded as one. A crash in between finds a desktop, and resets it; a crash after it finds all that it
//! had acknowledged before, because that was committed no later than the record.
//!
//! Overflowing holds the lock of the log from the freeze to the end, as a commit does, and so does everything here
//! that makes a desktop something else; so none of these meet.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{BLOCK, CatalogueOp, DiskId, DiskRecord, Stream, SyncMode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::catalogue::shorten;
use crate::commit::Group;
use crate::limits::{FULL_RETRY, OVERFLOW_BYTES};
use crate::pool::Pool;
use crate::volume::Volume;
use crate::{DesktopStats, DiskInfo, Error, Result};

/// What desktops share.
pub(crate) struct Desktops {
    /// Bytes in the write caches.
    cached: AtomicI64,
    budget: AtomicU64,
    wake: Notify,
    /// Those whose guest has left for good.
    left: Mutex<Vec<DiskId>>,
}

/// Whether overflowing is to begin: early enough that writers need not wait for it.
fn is_nearly_spent(used: u64, budget: u64) -> bool {
    used > budget - budget / 8
}

impl Desktops {
    pub fn new(budget: u64) -> Desktops {
        Desktops {
            cached: AtomicI64::new(0),
            budget: AtomicU64::new(budget),
            wake: Notify::new(),
            left: Mutex::default(),
        }
    }

    /// Bytes in the write caches.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed).max(0) as u64
    }

    /// Most bytes that may be in there.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes that.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
        self.wake();
    }

    /// Has the task look whether something is to overflow.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

impl Pool {
    /// Whether a write of `len` bytes may go into a desktop's cache now, or has to wait until there is room.
    pub(crate) fn admit_to_desktop(&self, volume: &Volume, len: u64) -> Result<bool> {
        let fits = |used: u64, budget: u64| used == 0 || used + len <= budget;
        if len == 0
            || (fits(volume.cached(), volume.write_cache())
                && fits(self.desktops.cached(), self.desktops.budget()))
        {
            return Ok(true);
        }
        if self.commit.full.load(Relaxed) && !self.room_may_come() {
            return Err(Error::NoSpace);
        }
        volume.wants_room.store(true, Relaxed);
        self.desktops.wake();
        Ok(false)
    }

    /// Notes by how much the cache of a desktop grew.
    pub(crate) fn note_cached(&self, volume: &Volume, grown: i64) {
        let cached = volume.note_cached(grown);
        let all = self.desktops.cached.fetch_add(grown, Relaxed) + grown;
        if is_nearly_spent(cached.max(0) as u64, volume.write_cache())
            || is_nearly_spent(all.max(0) as u64, self.desktops.budget())
        {
            self.desktops.wake();
        }
    }

    /// Forgets what a desktop has in RAM. The caller holds the log.
    pub(crate) fn forget_cached(&self, volume: &Volume) {
        if volume.is_desktop() {
            let gone = volume.buffers.lock().clear();
            self.note_cached(volume, -gone);
        }
    }

    /// Notes that the guest of a disk has said goodbye, and nobody else has it open.
    pub(crate) fn guest_left(&self, volume: &Volume) {
        if volume.is_desktop() && volume.record().reset_at_disconnect {
            self.desktops.left.lock().push(volume.id());
            self.desktops.wake();
        }
    }

    /// Resets desktops whose guests have left, but for those that have another one by now.
    async fn reset_left(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.desktops.left.lock());
        let (mut alone, mut ops) = (Vec::new(), Vec::new());
        for volume in left.into_iter().filter_map(|id| self.volume(id)) {
            let record = volume.record();
            if let (true, Some(from)) = (volume.is_desktop(), record.origin)
                && let Ok(exclusive) = volume.exclude_clients(&record.name)
            {
                alone.push(exclusive);
                ops.push(CatalogueOp::Copy { disk: volume.id(), from });
            }
        }
        if ops.is_empty() {
            return Ok(());
        }
        self.commit_ops(ops).await?;
        self.reclaim_is_due();
        Ok(())
    }

    /// The task that lets desktops overflow, and resets those whose guests have left.
    pub(crate) async fn overflow_loop(self: Arc<Pool>) {
        loop {
            self.desktops.wake.notified().await;
            if let Err(e) = self.reset_left().await {
                tracing::warn!("cannot reset a desktop whose guest has left: {e}");
            }
            while let Some(volume) = self.next_to_overflow() {
                let begin = self.host.now();
                match self.overflow(&volume).await {
                    Ok(()) if self.is_waited_for(&volume) => {}
                    // As long again for everybody else: what guests read goes first while there is room.
                    Ok(()) => self.host.sleep(self.host.now().saturating_sub(begin)).await,
                    Err(Error::NoSpace) => self.host.sleep(FULL_RETRY).await,
                    Err(e) => {
                        self.latch(&e);
                        break;
                    }
                }
                if self.check_running().is_err() {
                    break;
                }
            }
            if self.check_running().is_err() {
                // Whoever waits for room learns why there will be none.
                self.commit.progress.send_modify(|_| ());
                return;
            }
        }
    }

    /// The desktop that has used most of its budget, of those whose budget is nearly spent or whose writers wait: a
    /// large write may not fit long before. Or the largest, if the budget of all is what is short. Writers that wait
    /// for another one ask again when this one has overflowed.
    fn next_to_overflow(&self) -> Option<Arc<Volume>> {
        let mut all = is_nearly_spent(self.desktops.cached(), self.desktops.budget());
        let catalogue = self.catalogue.read();
        let caches = || catalogue.iter().filter(|v| v.is_desktop() && v.cached() > 0);
        for volume in catalogue.iter().filter(|v| v.wants_room.load(Relaxed) && v.cached() == 0) {
            all |= volume.wants_room.swap(false, Relaxed);
        }
        let own = caches()
            .filter(|v| v.wants_room.swap(false, Relaxed) || is_nearly_spent(v.cached(), v.write_cache()));
        let fullest = own.max_by_key(|v| u128::from(v.cached()) * 1024 / u128::from(v.write_cache().max(1)));
        let largest = || caches().max_by_key(|v| v.cached()).filter(|_| all);
        fullest.or_else(largest).cloned()
    }

    /// Whether somebody waits for room, or soon will.
    fn is_waited_for(&self, volume: &Volume) -> bool {
        let is_spent = |used: u64, budget: u64| used > budget - budget / 16;
        volume.wants_room.load(Relaxed)
            || is_spent(volume.cached(), volume.write_cache())
            || is_spent(self.desktops.cached(), self.desktops.budget())
    }

    /// Commits what a desktop wrote longest ago.
    async fn overflow(&self, volume: &Arc<Volume>) -> Result<()> {
        let mut log = self.log.lock().await;
        if !volume.is_desktop() {
            return Ok(());
        }
        let frozen = volume.buffers.lock().freeze_coldest(OVERFLOW_BYTES / BLOCK);
        let bytes = frozen.cost();
        let mut group = Group::of(volume.clone(), frozen);
        match self.log_group(&mut log, &mut group, Stream::Short).await {
            Ok(()) => self.counters.overflow.add(bytes),
            Err(Error::NoSpace) => {
                self.out_of_room(group);
                return Err(Error::NoSpace);
            }
            Err(e) => return Err(e),
        }
        drop(log);
        self.after_commit().await;
        Ok(())
    }

    /// The counters of desktops.
    pub(crate) fn desktop_stats(&self) -> DesktopStats {
        DesktopStats {
            count: self.catalogue.read().iter().filter(|v| v.is_desktop()).count() as u64,
            cached_bytes: self.desktops.cached(),
            budget: self.desktops.budget(),
            overflow: self.counters.overflow.get(),
        }
    }

    /// Sets all desktops back, when a pool is opened.
    pub(crate) async fn reset_desktops(&self) -> Result<()> {
        let ops: Vec<_> = {
            let catalogue = self.catalogue.read();
            let resets = catalogue
                .iter()
                .filter(|v| v.is_desktop())
                .filter_map(|v| Some(CatalogueOp::Copy { disk: v.id(), from: v.record().origin? }));
            resets.collect()
        };
        if ops.is_empty() {
            return Ok(());
        }
        tracing::info!(desktops = ops.len(), "desktops begin from their images");
        self.commit_ops(ops).await
    }

    /// Makes a desktop a persistent volume, which has all that was written to it. Its guest may go on meanwhile.
    ///
    /// # Errors
    /// [`Error::WrongKind`] where it is none; [`Error::NoSpace`]: it is a desktop still.
    pub async fn persist(&self, name: &str, sync: SyncMode) -> Result<DiskInfo> {
        let _admin = self.admin.lock().await;
        let volume = self.find_volume(name)?;
        let record = volume.record();
        if record.write_cache == 0 {
            let (is, needs) = ("a persistent volume already", "a desktop");
            return Err(Error::WrongKind { name: shorten(name), is, needs });
        }
        // Most of it goes out piece by piece, so that the last group is a small one, however much is written
        // meanwhile.
        for _ in 0..volume.cached() / OVERFLOW_BYTES as u64 {
            self.overflow(&volume).await?;
        }
        {
            let _log = self.log.lock().await;
            let _gate = self.commit.gate.write();
            let buffers = volume.buffers.lock();
            let cached = volume.leave_desktops();
            self.desktops.cached.fetch_sub(cached, Relaxed);
            self.commit.dirty.fetch_add(cached, Relaxed);
            if !buffers.active().is_empty() {
                self.commit.disks.lock().push(volume.clone());
            }
        }
        let disk = DiskRecord { sync, write_cache: 0, reset_at_disconnect: false, ..(*record).clone() };
        let done = self.commit_ops(vec![CatalogueOp::Update { disk }]).await;
        if matches!(done, Err(Error::NoSpace)) {
            self.stay_desktop(&volume, record.write_cache).await;
        }
        done?;
        self.disk(name)
    }

    /// Takes back that a desktop was to commit as others do. What it committed meanwhile is as if it had overflowed.
    async fn stay_desktop(&self, volume: &Volume, write_cache: u64) {
        let _log = self.log.lock().await;
        let _gate = self.commit.gate.write();
        let buffers = volume.buffers.lock();
        let cached = buffers.active().cost() as i64;
        self.commit.disks.lock().retain(|disk| disk.id() != volume.id());
        self.commit.dirty.fetch_sub(cached, Relaxed);
        self.desktops.cached.fetch_add(cached, Relaxed);
        volume.join_desktops(write_cache, cached);
    }
}

/// An error where a disk is a desktop: what is asked for needs one that keeps what is written to it.
pub(crate) fn check_persistent(volume: &Volume, name: &str) -> Result<()> {
    if volume.is_desktop() {
        let (is, needs) = ("a desktop", "a volume that keeps its writes; 'volume persist' makes it one");
        return Err(Error::WrongKind { name: shorten(name), is, needs });
    }
    Ok(())
}
