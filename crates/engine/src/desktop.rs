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
//! origin before a client can attach it ([`crate::reset`]), durably: the log says so, or what is committed for a
//! desktop later could be recovered on top of what it held before.
//!
//! **Turning one into a persistent volume** makes it commit as others do from one moment on, and only after that
//! is it recorded as one. A crash in between finds a desktop, and resets it; a crash after it finds all that it
//! had acknowledged before, because that was committed no later than the record.
//!
//! Overflowing holds the lock of the log from the freeze to the end, as a commit does, and so does everything here
//! that makes a desktop something else; so none of these meet.

use std::sync::Arc;

use forebay_format::{BLOCK, CatalogueOp, DiskRecord, Stream, SyncMode};
use tokio::sync::Notify;

use crate::buffer::ZEROES_COST;
use crate::catalogue::shorten;
use crate::commit::{Group, zeroes_budget};
use crate::limits::{COLD_READS, FULL_RETRY, OVERFLOW_BYTES};
use crate::pool::Pool;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use crate::volume::Volume;
use crate::warm::by_leaf;
use crate::{DesktopStats, DiskInfo, Error, Result};

/// What desktops share.
pub(crate) struct Desktops {
    /// Bytes in the write caches.
    cached: AtomicI64,
    budget: AtomicU64,
    wake: Notify,
    /// Some may be due for their reset.
    pub resets: Notify,
}

/// A piece that overflows takes at most one part in this many of the reserve.
const RESERVE_PART: u64 = 4;

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
            resets: Notify::new(),
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

    /// Has the task look whether a desktop is to be reset.
    pub fn wake_resets(&self) {
        self.resets.notify_one();
    }
}

impl Pool {
    /// Whether a write of `len` bytes may go into a desktop's cache now, or has to wait until there is room.
    pub(crate) fn admit_to_desktop(&self, volume: &Volume, len: u64) -> Result<bool> {
        // Zeroes free pages more often than they take room, so there is a reserve for them.
        let fits = |used: u64, budget: u64| match len {
            0 => used == 0 || used + ZEROES_COST <= zeroes_budget(budget),
            _ => used == 0 || used + len <= budget,
        };
        if fits(volume.cached(), volume.write_cache()) && fits(self.desktops.cached(), self.desktops.budget())
        {
            return Ok(true);
        }
        if self.commit.full.load(Relaxed) && !self.reclaim_may_help() {
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

    /// The task that lets desktops overflow.
    pub(crate) async fn overflow_loop(self: Arc<Pool>) {
        loop {
            self.desktops.wake.notified().await;
            while let Some(volume) = self.next_to_overflow() {
                let begin = self.host.now();
                match self.overflow(&volume).await {
                    Ok(_) if self.is_waited_for(&volume) => {}
                    // As long again for everybody else: what guests read goes first while there is room.
                    Ok(_) => self.host.sleep(self.host.now().saturating_sub(begin)).await,
                    Err(Error::NoSpace) => self.host.sleep(FULL_RETRY).await,
                    Err(Error::Closed) => break,
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
    /// for another one ask again when this one has overflowed. What is about to be reset does not overflow.
    fn next_to_overflow(&self) -> Option<Arc<Volume>> {
        let mut all = is_nearly_spent(self.desktops.cached(), self.desktops.budget());
        let catalogue = self.catalogue.read();
        let caches = || catalogue.iter().filter(|v| v.is_desktop() && v.cached() > 0 && !v.is_reset_due());
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

    /// Commits what a desktop wrote longest ago. How many bytes of its write buffer that frees.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where only the reserve is left, or less: then, and where what it needs cannot be read, the
    /// desktop is as it was. After any other error the pool has latched.
    async fn overflow(&self, volume: &Arc<Volume>) -> Result<u64> {
        let touched = by_leaf(volume.buffers.lock().active().coldest_touched(OVERFLOW_BYTES / BLOCK));
        let mut warm = self.warm();
        self.warm_up(vec![(volume.clone(), touched)], &mut warm, COLD_READS).await;
        let mut log = self.log.lock().await;
        self.check_running()?;
        if !volume.is_desktop() || volume.is_reset_due() {
            return Ok(0);
        }
        let most = self.overflow_bytes()?;
        let frozen = volume.buffers.lock().freeze_coldest(most / BLOCK);
        let bytes = frozen.cost();
        let mut group = Group::of(volume.clone(), frozen);
        match self.log_group(&mut log, &mut group, Stream::Short, &mut warm).await {
            Ok(()) => self.counters.overflow.add(bytes),
            Err(Error::NoSpace) => {
                self.out_of_room(group);
                return Err(Error::NoSpace);
            }
            // Nothing has left for the log, so that all can be taken back.
            Err(e) if !group.is_written => {
                self.take_back(&mut group);
                return Err(e);
            }
            Err(e) => {
                tracing::error!("the pool stops: {e}");
                self.latch(&e);
                self.commit.hurry();
                return Err(e);
            }
        }
        drop(log);
        self.after_commit().await;
        Ok(bytes)
    }

    /// How much a desktop may let overflow at a time, in bytes. What was acknowledged elsewhere, deletions and resets
    /// depend on the reserve, so that is left alone but for a part of a last piece.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where only the reserve is left.
    fn overflow_bytes(&self) -> Result<usize> {
        if self.commit.full.load(Relaxed) {
            return Err(Error::NoSpace);
        }
        let reserve = self.reserve(self.commit.total.load(Relaxed));
        let beyond = self.commit.free.load(Relaxed).saturating_sub(reserve);
        Ok((beyond.max(reserve / RESERVE_PART) as usize).clamp(BLOCK, OVERFLOW_BYTES))
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
        let persisting = Persisting::begin(self, &volume, name)?;
        // Most of it goes out piece by piece, so that the last group is a small one, however much is written
        // meanwhile.
        let mut ahead = volume.cached();
        while ahead > OVERFLOW_BYTES as u64 {
            match self.overflow(&volume).await? {
                0 => break,
                bytes => ahead = ahead.saturating_sub(bytes),
            }
        }
        if volume.cached() > 0 {
            self.overflow_bytes()?;
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
        persisting.end();
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

/// A desktop that is becoming a persistent volume. It stays a desktop if this goes before [`Persisting::end`].
struct Persisting<'a> {
    pool: &'a Pool,
    volume: &'a Volume,
    kept: bool,
}

impl<'a> Persisting<'a> {
    fn begin(pool: &'a Pool, volume: &'a Volume, name: &str) -> Result<Persisting<'a>> {
        volume.begin_persist(&shorten(name))?;
        Ok(Persisting { pool, volume, kept: false })
    }

    /// It is persistent.
    fn end(mut self) {
        self.kept = true;
    }
}

impl Drop for Persisting<'_> {
    fn drop(&mut self) {
        self.volume.end_persist(self.kept);
        self.pool.desktops.wake_resets();
        // Clients may wait to attach.
        self.pool.commit.progress.send_modify(|_| ());
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
