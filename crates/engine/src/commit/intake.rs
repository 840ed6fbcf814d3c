//! The state that writers share with the commit.
//!
//! Every change of a disk passes the *freeze gate*, a reader-writer lock: writers hold it shared, and a
//! commit holds it exclusively while it freezes all buffers. So a group holds whole requests, and after each
//! group all disks are at a prefix of the acknowledged writes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{BLOCK, CatalogueOp, Fingerprint};
use forebay_retained::Reservation;
use tokio::sync::{Notify, oneshot};

use super::driver::Driver;
use crate::block_ranges::{blocks_of, pieces};
use crate::buffer::{Buffers, WriteBuffer};
use crate::client::Clientele;
use crate::context::Context;
use crate::dedup::{Fingerprinter, HASHED_TOGETHER};
use crate::disk::Disk;
use crate::limit::{Kind, Tokens};
use crate::limits::{MEMORY_RETRY, MEMORY_WARNINGS};
use crate::pacing::Pacing;
use crate::progress::{CommitProgress, Progress};
use crate::read::Reader;
use crate::space::{Admission, SpaceGovernor};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, RwLock};
use crate::write_caches::WriteCaches;
use crate::zero::is_zero;
use crate::{Error, Mutation, Result, Room};

/// A change to the catalogue that waits for its commit.
pub(crate) struct PendingOp {
    pub ops: Vec<CatalogueOp>,
    pub done: oneshot::Sender<Result<()>>,
}

/// When a write is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// The write is answered later, when the caller has ensured more.
    Later,
    /// The write is answered at once, provided that the disk is marked for these clients.
    IfMarked(Clientele),
    /// The write is answered when it is durable, so the next commit includes it. Its blocks are fingerprinted
    /// on this thread, while the commit before is written. `is_last` if no other write of the request
    /// follows.
    WhenDurable { is_last: bool },
}

/// What a change of a disk needs before it is made. Dropping it returns what was not used.
///
/// The quota is not part of it: whether blocks are within the quota is decided under the freeze gate,
/// together with the change.
pub(crate) struct Admitted<'a> {
    /// The request's share of the write buffers; `None` if the change is made at once.
    space: Option<Admission<'a>>,
    /// The room in retained memory that the request has reserved.
    pub room: Reservation,
    /// The request's share of the rate limits.
    pub tokens: Tokens<'a>,
}

impl Admitted<'_> {
    /// See [`Admission::spend`].
    pub fn spend(&mut self, bytes: u64) {
        if let Some(space) = &mut self.space {
            space.spend(bytes);
        }
    }
}

/// The state that writers share with the commit; see the module documentation.
pub(crate) struct Intake {
    pub(super) cx: Arc<Context>,
    pub(super) reader: Arc<Reader>,
    pub(super) space: Arc<SpaceGovernor>,
    pub(super) caches: Arc<WriteCaches>,
    pub(super) progress: Arc<CommitProgress>,
    /// Key of the pool's fingerprints.
    key: [u8; 32],
    /// The freeze gate. Every change holds it shared; it is held exclusively while the buffers are frozen.
    pub(super) gate: RwLock<()>,
    /// Number of freezes; changes only while the gate is closed.
    pub(super) freezes: AtomicU64,
    /// Disks whose active buffer is not empty.
    pub(super) disks: Mutex<Vec<Arc<Disk>>>,
    /// Changes to the catalogue that wait for the next commit.
    pub(super) ops: Mutex<Vec<PendingOp>>,
    pub(super) pacing: Arc<Pacing>,
    driver: Arc<Driver>,
    /// Disks with cold writes, for the task that reads ahead for them.
    pub(super) cold: Mutex<VecDeque<Arc<Disk>>>,
    pub(super) cold_wake: Notify,
    /// Whether the host has no room for more retained memory, and a warning was logged.
    lacks_memory: AtomicBool,
    /// Host time from which on the next warning about missing memory is logged.
    next_memory_warning: Mutex<Duration>,
}

impl Intake {
    pub fn new(
        reader: Arc<Reader>,
        space: Arc<SpaceGovernor>,
        caches: Arc<WriteCaches>,
        progress: Arc<CommitProgress>,
        key: [u8; 32],
    ) -> Intake {
        Intake {
            cx: reader.context().clone(),
            pacing: reader.pacing.clone(),
            reader,
            space,
            caches,
            progress,
            key,
            gate: RwLock::new(()),
            freezes: AtomicU64::new(0),
            disks: Mutex::default(),
            ops: Mutex::default(),
            driver: Arc::default(),
            cold: Mutex::default(),
            cold_wake: Notify::new(),
            lacks_memory: AtomicBool::new(false),
            next_memory_warning: Mutex::default(),
        }
    }

    /// The thread that makes commits.
    pub fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }

    /// The state of free room in the store.
    pub fn room(&self) -> Room {
        self.space.store.state()
    }

    /// Whether a write of `len` bytes is admitted in pieces, because another disk flushes.
    pub fn is_divided(&self, disk: &Disk, len: u64) -> bool {
        self.space.is_divided(&disk.writes, len)
    }

    /// Bytes of a piece of a divided write.
    pub fn piece(&self) -> u64 {
        self.pacing.write_piece()
    }

    /// Adds stored bytes that become garbage when the next group is durable. The caller holds the freeze
    /// gate.
    pub fn add_discards(&self, bytes: u64) {
        self.space.garbage.add_discards(bytes);
    }

    /// Counts stored bytes of a durable group as garbage.
    pub fn committed_discards(&self, bytes: u64) {
        self.space.committed_discards(bytes);
    }

    /// Waits until no copy into `blocks` is under way.
    pub async fn wait_for_copies(&self, disk: &Disk, blocks: &Range<u64>) -> Result<()> {
        self.progress.wait_for_copies(&self.cx, disk, blocks).await
    }

    /// Wakes the task that resets desktops.
    pub fn wake_resets(&self) {
        self.caches.wake_resets();
    }

    /// Requests that the next commit begin soon.
    pub fn request_commit(&self) {
        self.pacing.schedule.request();
    }

    /// Whether there is anything for a commit to write.
    pub fn has_work(&self) -> bool {
        !self.disks.lock().is_empty() || !self.ops.lock().is_empty()
    }

    /// Refuses changes from now on, and wakes the tasks that wait for changes. `last` returns the changes to
    /// the catalogue that belong to the last commit, together with all writes before.
    pub fn close(&self, last: impl FnOnce() -> Vec<CatalogueOp>) {
        {
            let _gate = self.gate.write();
            if !self.cx.is_closing() {
                let ops = last();
                if !ops.is_empty() {
                    // No caller waits for the result.
                    self.ops.lock().push(PendingOp { ops, done: oneshot::channel().0 });
                }
            }
            self.cx.begin_close();
        }
        self.space.refuse_waiting();
        self.request_commit();
        self.cold_wake.notify_one();
    }

    /// Admits a client's write of `len` bytes that is made at once; `None` if it has to wait.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if waiting would not help; the errors of a pool that does not run.
    pub fn try_admit<'a>(&self, disk: &'a Disk, len: u64) -> Result<Option<Admitted<'a>>> {
        if !self.may_write(disk, len)? {
            return Ok(None);
        }
        let Some(room) = self.reserve(disk, len) else {
            self.make_room(disk);
            return Ok(None);
        };
        let tokens = disk.limiter.try_take(Kind::Write, len, &*self.cx.host);
        Ok(tokens.map(|tokens| Admitted { space: None, room, tokens }))
    }

    /// Reserves retained memory for a request of `len` bytes; `None` if there is not enough.
    fn reserve(&self, disk: &Disk, len: u64) -> Option<Reservation> {
        // Both ends of the request may be parts of blocks, and each zeroed block of a desktop may become a
        // range.
        let blocks = len.div_ceil(BLOCK as u64) as u32 + 2;
        self.cx.retained.reserve(blocks, if disk.is_desktop() { blocks } else { 1 })
    }

    /// Requests that retained memory be freed for a writer that waits.
    fn make_room(&self, disk: &Disk) {
        disk.set_wants_room(disk.is_desktop());
        self.caches.require_overflow();
        self.request_commit();
    }

    /// Whether a write of `len` bytes (0: a zeroed range) fits into the budgets now.
    fn may_write(&self, disk: &Disk, len: u64) -> Result<bool> {
        self.cx.check_running()?;
        if disk.is_desktop() {
            return self.may_cache(disk, len);
        }
        if self.space.is_pacing() || self.has_max_cold_writes(disk) {
            return Ok(false);
        }
        let fits = self.space.may_buffer(&disk.writes, len)?;
        // A write that is divided into pieces waits for a commit piece by piece.
        if !fits && !self.space.store.is_full() && !self.space.is_divided(&disk.writes, len) {
            self.request_commit();
        }
        Ok(fits)
    }

    /// Admits a change of a client that counts `bytes` against the rate limits, and adds `len` bytes to the
    /// write buffers (0: a zeroed range), when both allow it.
    ///
    /// # Errors
    /// As [`Intake::try_admit`].
    pub async fn admit_request<'a>(&'a self, disk: &'a Disk, bytes: u64, len: u64) -> Result<Admitted<'a>> {
        let tokens = disk.limiter.take(Kind::Write, bytes, &*self.cx.host).await;
        Ok(Admitted { tokens, ..self.admit(disk, len).await? })
    }

    /// Waits until the rate limits and the room in the store allow a client's write of `len` bytes, whose
    /// pieces are admitted separately ([`Intake::admit_piece`]).
    pub async fn begin_write<'a>(&self, disk: &'a Disk, len: u64) -> Tokens<'a> {
        let tokens = disk.limiter.take(Kind::Write, len, &*self.cx.host).await;
        self.pace(disk, len).await;
        tokens
    }

    /// Admits a change to which no rate limit applies, and adds `len` bytes to the write buffers, when they
    /// have room.
    ///
    /// # Errors
    /// As [`Intake::try_admit`].
    pub async fn admit<'a>(&'a self, disk: &'a Disk, len: u64) -> Result<Admitted<'a>> {
        self.pace(disk, len).await;
        self.admit_piece(disk, len).await
    }

    /// Delays a write of `len` bytes while room in the store is short.
    async fn pace(&self, disk: &Disk, len: u64) {
        if !disk.is_desktop() {
            let delay = self.space.pacing_delay(len, self.cx.host.now());
            if !delay.is_zero() {
                self.cx.host.sleep(delay).await;
            }
        }
    }

    /// Works like [`Intake::admit`], for a piece of a write that has begun ([`Intake::begin_write`]).
    ///
    /// # Errors
    /// As [`Intake::try_admit`].
    pub async fn admit_piece<'a>(&'a self, disk: &'a Disk, len: u64) -> Result<Admitted<'a>> {
        let space = Some(self.admit_to_buffers(disk, len).await?);
        let mut progress = self.progress.subscribe();
        loop {
            progress.mark_unchanged();
            self.cx.check_running()?;
            // The commit that frees memory needs no room in the buffers, so this request keeps its room
            // until then.
            let room = self.reserve(disk, len);
            self.report_memory(room.is_some());
            if let Some(room) = room {
                return Ok(Admitted { space, room, tokens: Tokens::none() });
            }
            self.make_room(disk);
            // Other processes may use the memory too, so no notification announces that it is available.
            tokio::select! {
                biased;
                changed = progress.changed() => changed.map_err(|_| Error::Closed)?,
                () = self.cx.host.sleep(MEMORY_RETRY) => {}
            }
        }
    }

    /// Waits until a write of `len` bytes fits into the buffers.
    async fn admit_to_buffers(&self, disk: &Disk, len: u64) -> Result<Admission<'_>> {
        let mut progress = self.progress.subscribe();
        let mut space = None;
        loop {
            progress.mark_unchanged();
            let fewer_cold = disk.cold.fewer();
            self.cx.check_running()?;
            if disk.is_desktop() {
                if self.may_cache(disk, len)? {
                    return Ok(Admission::unbounded(&self.space, &disk.writes));
                }
            } else if !self.has_max_cold_writes(disk) {
                // Other requests may have made cold writes in the meantime. Their reads need no room, so this
                // request keeps its room.
                match space.take() {
                    Some(space) => return Ok(space),
                    None => space = Some(self.admit_in_turn(disk, len).await?),
                }
                continue;
            }
            tokio::select! {
                biased;
                changed = progress.changed() => changed.map_err(|_| Error::Closed)?,
                () = fewer_cold => {}
            }
        }
    }

    /// Waits for room in the common buffers, in the order of [`crate::fair`].
    async fn admit_in_turn(&self, disk: &Disk, len: u64) -> Result<Admission<'_>> {
        if let Some(space) = self.space.admit(&disk.writes, len)? {
            return Ok(space);
        }
        let queued = self.space.enqueue(&disk.writes, len)?;
        if self.space.has_waiting() && !self.space.store.is_full() {
            self.request_commit();
        }
        match queued.admitted().await {
            Err(Error::Closed) => Err(self.cx.check_running().err().unwrap_or(Error::Closed)),
            other => other,
        }
    }

    /// Logs when writers begin to wait for memory that the host does not have, and when they no longer wait.
    fn report_memory(&self, has_room: bool) {
        if !has_room {
            if let Some(e) = self.cx.retained.take_growth_error() {
                let now = self.cx.host.now();
                self.space.buffers.record_short_memory(self.cx.retained.stats().bytes, now);
                let mut next = self.next_memory_warning.lock();
                if now >= *next {
                    *next = now + MEMORY_WARNINGS;
                    self.lacks_memory.store(true, Relaxed);
                    tracing::warn!("writes wait for room in the file system of the retained memory: {e}");
                }
            }
        } else if self.lacks_memory.load(Relaxed) && self.lacks_memory.swap(false, Relaxed) {
            tracing::warn!("the file system of the retained memory has room again");
        }
    }

    /// Whether a write of `len` bytes may go into a desktop's cache now, or has to wait until there is room.
    fn may_cache(&self, disk: &Disk, len: u64) -> Result<bool> {
        if self.caches.fits(disk, len) {
            return Ok(true);
        }
        if self.space.store.is_full() && !self.space.reclaim_may_help() {
            return Err(Error::NoSpace);
        }
        disk.set_wants_room(true);
        self.caches.wake();
        Ok(false)
    }

    /// Records that the active buffer of a disk was filled from retained memory.
    pub fn restored(&self, disk: &Arc<Disk>, cost: u64) {
        self.count_buffered(disk, cost as i64);
        if !disk.is_desktop() {
            self.disks.lock().push(disk.clone());
        }
    }

    /// Adds `grown` bytes to the size of a disk's buffers, for a change other than a write.
    pub fn count_buffered(&self, disk: &Disk, grown: i64) {
        if disk.is_desktop() {
            self.caches.add(disk, grown);
        } else {
            self.space.buffered(&disk.writes, grown);
            if grown < 0 && self.space.has_waiting() {
                self.request_commit();
            }
        }
    }

    /// Drops the frozen buffers of a group that was written, and admits requests that wait for room. If
    /// requests still wait, requests the next commit.
    pub fn written(&self, group: impl Iterator<Item = (Arc<Disk>, Arc<WriteBuffer>)>) {
        let mut room = 0;
        for (disk, buffer) in group {
            disk.buffers.lock().thaw();
            let cost = buffer.cost();
            if disk.is_desktop() {
                self.caches.add(&disk, -(cost as i64));
            } else {
                self.space.written(&disk.writes, cost);
                room += cost;
            }
        }
        self.space.group_written(room);
        if self.space.has_waiting() {
            self.request_commit();
        }
    }

    /// Changes the buffers of a disk under the freeze gate. `change` returns by how many bytes they grew.
    ///
    /// # Errors
    /// The errors of a pool that does not run: no commit would include the change. A pool that closes
    /// sets its state while it holds the gate exclusively; so changes that passed the gate before are
    /// committed, and no later change is acknowledged. A pool that latches does not wait for the gate: what
    /// was published after its memory was frozen is not retained, so the state is checked again at the end.
    pub fn change(
        &self,
        disk: &Arc<Disk>,
        blocks: Range<u64>,
        change: impl FnOnce(&mut Buffers, Range<u64>) -> i64,
    ) -> Result<()> {
        if self.change_quietly(disk, blocks, change)? {
            self.pacing.schedule.announce_data();
        }
        self.cx.check_latch()
    }

    /// Works like [`Intake::change`], without the check at the end. Returns whether the disk had nothing to
    /// commit before; if so, the caller has to announce the data.
    fn change_quietly(
        &self,
        disk: &Arc<Disk>,
        blocks: Range<u64>,
        change: impl FnOnce(&mut Buffers, Range<u64>) -> i64,
    ) -> Result<bool> {
        let _gate = self.gate.read();
        self.cx.check_running()?;
        if blocks.is_empty() {
            return Ok(false);
        }
        self.reader.record_written(disk, &blocks);
        let mut buffers = disk.buffers.lock();
        let was_clean = buffers.active().is_empty();
        let grown = change(&mut buffers, blocks);
        if disk.is_desktop() {
            drop(buffers);
            self.caches.add(disk, grown);
            return Ok(false);
        }
        if was_clean && !buffers.active().is_empty() {
            self.disks.lock().push(disk.clone());
        }
        drop(buffers);
        let is_half_full = self.space.buffered(&disk.writes, grown);
        if is_half_full || (was_clean && self.space.has_waiting()) {
            self.request_commit();
        }
        Ok(was_clean)
    }

    /// Writes whole sectors into the buffer of a disk. In the buffer of a desktop, blocks of zeroes are kept
    /// as zeroed ranges, which need no room; for other disks the next commit detects them.
    ///
    /// Returns false if nothing was written because the disk is not marked. The mark is checked under the
    /// freeze gate, so it is not removed before the data is durable.
    pub fn write_sectors(
        &self,
        disk: &Arc<Disk>,
        offset: u64,
        data: &[u8],
        room: &mut Reservation,
        answer: Answer,
    ) -> Result<bool> {
        let mut fingerprints = match answer {
            Answer::WhenDurable { .. } => self.fingerprints(disk, offset, data).into_iter(),
            Answer::Later | Answer::IfMarked(_) => Vec::new().into_iter(),
        };
        let zeroes_are_kept = !disk.is_desktop();
        let blocks = blocks_of(offset, data.len() as u64);
        let (mut grown, mut is_written, mut within_quota) = (0, data.is_empty(), Ok(()));
        let was_clean = self.change_quietly(disk, blocks.clone(), |buffers, blocks| {
            is_written = match answer {
                Answer::IfMarked(clients) => disk.is_marked_for(clients),
                Answer::Later | Answer::WhenDurable { .. } => true,
            };
            if is_written {
                within_quota = disk.occupied.write(offset, data);
            }
            if !is_written || within_quota.is_err() {
                return 0;
            }
            grown = buffers.change(blocks, |buffer| {
                let mut at = 0;
                for (block, within) in pieces(offset, data.len()) {
                    let next = at + within.len();
                    let data = &data[at..next];
                    if data.len() < BLOCK {
                        buffer.write(block, within, data, Some(room));
                    } else {
                        // Each whole block has a fingerprint, even if the block does not need it.
                        let fingerprint = fingerprints.next();
                        match zeroes_are_kept || !is_zero(data) {
                            true => buffer.write_whole(block, data, fingerprint, Some(room)),
                            false => buffer.zero(block..block + 1, true, Some(room)),
                        }
                    }
                    at = next;
                }
            });
            grown
        })?;
        if grown > 0 && !disk.is_desktop() {
            let end = offset + data.len() as u64;
            let edges = [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK as u64));
            self.record_cold(disk, blocks, edges.map(|edge| edge / BLOCK as u64));
        }
        let waits =
            is_written && within_quota.is_ok() && matches!(answer, Answer::WhenDurable { is_last: true });
        if !(waits && self.commit_now(disk)) && was_clean {
            self.pacing.schedule.announce_data();
        }
        self.cx.check_latch()?;
        within_quota.map(|()| is_written)
    }

    /// The fingerprints of the whole blocks of a write, in order. A short write has none, since blocks are
    /// hashed together.
    fn fingerprints(&self, disk: &Disk, offset: u64, data: &[u8]) -> Vec<Fingerprint> {
        let skipped = (offset.next_multiple_of(BLOCK as u64) - offset) as usize;
        let blocks = data.get(skipped..).map_or(&[][..], |data| data.as_chunks().0);
        let mut fingerprints = Vec::new();
        if blocks.len() >= HASHED_TOGETHER {
            let contents: Vec<&[u8; BLOCK]> = blocks.iter().collect();
            Fingerprinter::new(&self.key, disk.dedup_domain()).of_each(&contents, &mut fingerprints);
        }
        fingerprints
    }

    /// Waits until every write to a disk that was acknowledged before the call is durable.
    pub async fn flush_disk(&self, disk: &Disk) -> Result<()> {
        if disk.is_desktop() {
            return self.cx.check_latch();
        }
        let mut progress = self.progress.subscribe();
        let target = {
            let _gate = self.gate.read();
            let freezes = self.freezes.load(Relaxed);
            let buffers = disk.buffers.lock();
            match (buffers.active().is_empty(), buffers.is_committing()) {
                (false, _) => freezes + u64::from(self.cx.config.mutation != Mutation::FlushEarly),
                (true, true) => freezes,
                (true, false) => return self.cx.check_latch(),
            }
        };
        self.pacing.record_flush(disk.writes.id(), self.cx.host.now());
        self.await_freeze(&mut progress, target).await
    }

    /// Waits until every write to any disk that was acknowledged before the call is durable.
    pub async fn flush(&self) -> Result<()> {
        let mut progress = self.progress.subscribe();
        let target = {
            let _gate = self.gate.read();
            let freezes = self.freezes.load(Relaxed);
            let is_dirty = !self.disks.lock().is_empty();
            if !is_dirty && progress.borrow().ended >= freezes {
                return self.cx.check_latch();
            }
            freezes + u64::from(is_dirty)
        };
        self.await_freeze(&mut progress, target).await
    }

    /// Makes the next commit for the last write of a request that has to be durable, as [`Intake::help`].
    fn commit_now(&self, disk: &Disk) -> bool {
        if disk.is_desktop() || !self.may_help() {
            return false;
        }
        self.pacing.record_flush(disk.writes.id(), self.cx.host.now());
        self.help()
    }

    /// Whether this thread may make the next commit. It may not if the catalogue changes, since that can take
    /// long.
    fn may_help(&self) -> bool {
        self.driver.may_help(self.space.buffers.dirty()) && self.ops.lock().is_empty()
    }

    /// Requests the next commit, and runs it on this thread until it has to wait. Returns false, and does
    /// nothing, if another thread runs it.
    fn help(&self) -> bool {
        self.driver.help(&*self.cx.host, &self.pacing.schedule)
    }

    /// Waits until the group of freeze `target` is durable and applied.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the store has no room and no reclaim may help.
    async fn await_freeze(
        &self,
        progress: &mut tokio::sync::watch::Receiver<Progress>,
        target: u64,
    ) -> Result<()> {
        let refusals = progress.borrow().refusals;
        if target > self.freezes.load(Relaxed) {
            let helps = self.may_help() && self.help();
            if !helps || target > self.freezes.load(Relaxed) {
                self.pacing.schedule.request_with_others(self.space.buffers.dirty(), self.cx.host.now());
            }
        }
        let enough = |p: &Progress| p.done >= target || p.refusals > refusals || p.stopped;
        let reached = *progress.wait_for(enough).await.map_err(|_| Error::Closed)?;
        if reached.done >= target {
            Ok(())
        } else if reached.stopped {
            self.cx.check_running()?;
            Err(Error::Closed)
        } else {
            Err(Error::NoSpace)
        }
    }

    /// Commits changes to the catalogue, all in one group, and waits for the result.
    pub async fn commit_ops(&self, ops: Vec<CatalogueOp>) -> Result<()> {
        let (done, result) = oneshot::channel();
        {
            let _gate = self.gate.read();
            self.cx.check_running()?;
            self.ops.lock().push(PendingOp { ops, done });
        }
        self.request_commit();
        result.await.unwrap_or(Err(Error::Closed))
    }

    /// Commits the changes to the catalogue that `choose` returns, all in one group, and waits for the
    /// result. `choose` is called while no disk changes.
    pub async fn commit_chosen_ops(&self, choose: impl FnOnce() -> Vec<CatalogueOp>) -> Result<()> {
        let (done, result) = oneshot::channel();
        {
            let _gate = self.gate.write();
            self.cx.check_running()?;
            let ops = choose();
            if ops.is_empty() {
                return Ok(());
            }
            self.ops.lock().push(PendingOp { ops, done });
        }
        self.request_commit();
        result.await.unwrap_or(Err(Error::Closed))
    }
}
