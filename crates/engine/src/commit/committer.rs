//! The commit: writes everything dirty to the log as one group, applies the group to the maps, then completes
//! the requests that wait for it.
//!
//! One commit runs at a time. It *freezes* the write buffers of all disks at one moment, while it closes the
//! gate that every write passes. So a group holds whole requests, or whole pieces of requests above
//! [`TURN_BYTES`]. After each group, all disks together are at a prefix of the acknowledged writes. Then
//! these steps follow, strictly in this order:
//!
//! 1. partial blocks are completed with their bases, which are read through the map;
//! 2. slice by slice, the commit determines which blocks need not be stored ([`super::reduce`]), and appends
//!    the other blocks to the log: for each disk first the zeroed ranges, then the blocks; finally the
//!    changes to the catalogue, which include copies by reference ([`super::copy`]). While one slice is
//!    written, the next slice is reduced;
//! 3. the log is synced, which makes the group durable;
//! 4. the group is applied to maps and catalogue, by the same code as in recovery ([`super::apply`]);
//! 5. the frozen buffers are dropped, and waiting requests are completed.
//!
//! With the freeze, the commit states in the retained memory which records the group covers, under the number
//! that the group will have ([`crate::recovery`]). If no part of the group is written, whatever the reason,
//! the commit withdraws this statement before it unlocks the log, because the next group gets the same
//! number.
//!
//! A group for which the store has no room is given up: its buffers are put back below newer writes, and the
//! next attempt freezes all buffers again. The requests that wait for the group fail only if no reclaim can
//! free enough room ([`crate::space`]). So a change to the catalogue that is requested in between, such as a
//! deletion, is committed together with every write that was acknowledged before it. Any other failure
//! latches the pool while the log is still locked, and every writer checks for this after it has locked the
//! log ([`Committer::write_log`]). Damage of a block or of a map node is not such a failure
//! ([`crate::read::damage`]).
//!
//! [`TURN_BYTES`]: crate::limits::TURN_BYTES

use std::ops::Deref;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, DiskId, Fingerprint, SegmentId, Slot, Stream};
use forebay_retained::Cover;
use forebay_store::{Capacity, Store, StoreError};
use hashbrown::HashMap;
use tokio::sync::MutexGuard;

use super::apply::{Applier, Change, changed_map};
use super::group::{Completed, Group};
use super::group_changes::changes_of;
use super::intake::Intake;
use super::reduce::Reducer;
use super::warm::{Touched, Warm, by_leaf};
use crate::buffer::copy_sectors;
use crate::context::Context;
use crate::disk::Disk;
use crate::limits::{COMMIT_READS, FULL_RETRY, GROUP_OF_ONE_THREAD, SLICE_CHANGES};
use crate::log::{Item, Log, LogFigures};
use crate::memory::NO_COVER;
use crate::pacing::GroupBytes;
use crate::progress::CommitProgress;
use crate::quota::UsedCounter;
use crate::read::Reader;
use crate::scan_queue::ScanQueue;
use crate::space::SpaceGovernor;
use crate::stats::Counter;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tables::StoredTables;
use crate::workers::Inline;
use crate::{Error, Mutation, Result};

/// Owns the log, and everything that changes the log and the maps.
pub(crate) struct Committer {
    pub(super) cx: Arc<Context>,
    pub(super) reader: Arc<Reader>,
    pub(super) space: Arc<SpaceGovernor>,
    pub(super) intake: Arc<Intake>,
    progress: Arc<CommitProgress>,
    pub(super) applier: Applier,
    pub(super) reducer: Reducer,
    scans: Arc<ScanQueue>,
    pub(super) used: Arc<UsedCounter>,
    /// Locked by [`Committer::read_log`] and [`Committer::write_log`].
    log: tokio::sync::Mutex<Log>,
    /// The tables of the current checkpoint.
    pub(super) tables: Mutex<StoredTables>,
    /// Bytes appended to the log; the applier shares this counter.
    pub(super) appended: Arc<AtomicU64>,
    /// Locked while a checkpoint is made, so that only one is made at a time.
    pub(super) checkpoint_lock: tokio::sync::Mutex<()>,
    /// The value that `appended` had at the last checkpoint.
    pub(super) checkpointed: AtomicU64,
    pub(super) commits: Counter,
    pub(super) checkpoints: Counter,
    figures: Mutex<LogFigures>,
}

impl Committer {
    pub fn new(
        log: Log,
        tables: StoredTables,
        intake: Arc<Intake>,
        applier: Applier,
        reducer: Reducer,
        scans: Arc<ScanQueue>,
        used: Arc<UsedCounter>,
    ) -> Committer {
        Committer {
            cx: intake.cx.clone(),
            reader: intake.reader.clone(),
            space: intake.space.clone(),
            progress: intake.progress.clone(),
            intake,
            applier,
            reducer,
            scans,
            used,
            tables: Mutex::new(tables),
            appended: log.appended.clone(),
            figures: Mutex::new(LogFigures::of(&log)),
            log: tokio::sync::Mutex::new(log),
            checkpoint_lock: tokio::sync::Mutex::new(()),
            checkpointed: AtomicU64::new(0),
            commits: Counter::default(),
            checkpoints: Counter::default(),
        }
    }

    /// Locks the log, to read its state.
    pub async fn read_log(&self) -> impl Deref<Target = Log> {
        self.log.lock().await
    }

    /// Locks the log, to write to it. Every writer of the log uses this.
    ///
    /// # Errors
    /// The error of a latched pool: the failure that latched the pool may have left a group in the log
    /// that the maps lack, or the retained memory may have been frozen before it stated what the log has.
    pub async fn write_log(&self) -> Result<MutexGuard<'_, Log>> {
        let log = self.log.lock().await;
        if self.cx.config.mutation != Mutation::TakeNumber {
            self.cx.check_latch()?;
        }
        Ok(log)
    }

    /// Figures of the log, at most one commit old. Never waits for the store.
    pub fn log_figures(&self) -> LogFigures {
        if let Ok(log) = self.log.try_lock() {
            *self.figures.lock() = LogFigures::of(&log);
        }
        *self.figures.lock()
    }

    /// The context of the pool.
    pub fn context(&self) -> &Arc<Context> {
        &self.cx
    }

    /// Returns the disk with this number.
    pub fn disk(&self, id: DiskId) -> Option<Arc<Disk>> {
        self.applier.disk(id)
    }

    pub fn export_name(&self, disk: &Disk) -> String {
        self.applier.catalogue.read().export_name(disk)
    }

    /// Makes a [`Warm`], which reads ahead for a group that is to be frozen.
    pub fn warm(&self) -> Warm<'_> {
        Warm::new(&self.reader)
    }

    /// Counts bytes that a reclaim wrote.
    pub fn count_cleaner(&self, bytes: u64) {
        self.space.cleaner_wrote(bytes);
    }

    /// Removes the fingerprints of slots that the cleaner leaves out when it moves a segment.
    pub fn forget_slots(&self, segment: SegmentId, slots: impl Iterator<Item = (Fingerprint, Slot)>) {
        self.reducer.dedup.lock().dropped(segment, slots);
    }

    /// Removes the fingerprints of a segment that is no longer in the segment table.
    pub fn forget_segment(&self, segment: SegmentId) {
        self.reducer.dedup.lock().freed(segment);
    }

    /// Returns the map changes that the next group will make: the changes of all dirty buffers.
    fn touched(&self) -> Touched {
        let disks = self.intake.disks.lock().clone();
        disks
            .into_iter()
            .map(|disk| (disk.clone(), by_leaf(disk.buffers.lock().active().touched())))
            .collect()
    }

    /// Called after a commit: checks the free room, and wakes the upkeep task if a checkpoint or reclaim is
    /// due.
    pub async fn after_commit(&self) {
        if self.checkpoint_due() || self.space.situation().wants_reclaim() {
            self.space.wake.notify_one();
        }
        if !self.space.wants_capacity(self.cx.host.now()) {
            return;
        }
        if let Err(e) = self.check_space().await {
            tracing::warn!("cannot determine the free room of the store: {e}");
        }
    }

    /// Makes the store reserve room for a part of the reserve, and checks the free room.
    pub async fn reserve_room(&self) -> Result<()> {
        let store = &self.reader.source.store;
        let total = self.cx.fencing(store.capacity().await)?.total;
        store.reserve(self.space.reserve.owned(total)).await;
        self.check_space().await.map(drop)
    }

    /// Checks the free room, on which the admission of writes depends.
    pub async fn check_space(&self) -> Result<Capacity> {
        let capacity = self.cx.fencing(self.reader.source.store.capacity().await)?;
        if self.space.observe(capacity, !self.intake.has_work(), self.cx.host.now()) {
            self.space.wake.notify_one();
            self.progress.wake_waiters();
        }
        Ok(capacity)
    }

    /// The task that commits, until the pool closes or latches.
    pub async fn commit_loop(self: Arc<Committer>) {
        let mut stuck = false;
        loop {
            // Read before the check for work. The check then includes everything that passed the gate before
            // the pool began to close.
            let closing = self.cx.is_closing();
            if self.cx.check_latch().is_err() {
                break;
            } else if stuck {
                self.cx.host.sleep(FULL_RETRY).await;
            } else if !self.intake.has_work() {
                if closing {
                    break;
                }
                tokio::select! {
                    biased;
                    // Another task has latched the pool: all requests that wait for this commit must end.
                    () = self.cx.latched() => {}
                    () = self.intake.pacing.schedule.wake.notified() => {}
                }
                continue;
            } else {
                let (cost, dirty) = (|| self.commit_cost(), || self.space.buffers.dirty());
                self.intake.pacing.wait_to_coalesce(&self.cx, cost, dirty).await;
            }
            let mut group = Group::default();
            stuck = match self.commit_once(&mut group).await {
                Ok(()) => false,
                Err(Error::NoSpace) if !self.cx.is_closing() => {
                    self.give_up_group(group);
                    true
                }
                Err(e) => {
                    tracing::error!("the pool stops: {e}");
                    self.cx.latch(&e);
                    self.intake.ops.lock().append(&mut group.ops);
                    break;
                }
            };
            if self.intake.has_work() {
                self.intake.driver().end_turn().await;
            }
        }
        let pending = {
            // Requests that pass the gate after this point are refused.
            let _gate = self.intake.gate.write();
            std::mem::take(&mut *self.intake.ops.lock())
        };
        for op in pending {
            // The receiver may have been dropped, so the error is ignored.
            let _ = op.done.send(self.cx.check_running().and(Err(Error::Closed)));
        }
        self.space.refuse_waiting();
        self.progress.update(|p| p.stopped = true);
    }

    /// Abandons a group for which the store has no room. Its data stays in the buffers, since it was
    /// acknowledged. As long as a reclaim may help, the group's changes to the catalogue are retried with the
    /// next group; otherwise they fail, and so do flushes. A request that waits for reclaims thus gets one
    /// more attempt after the last reclaim.
    pub fn give_up_group(&self, mut group: Group) {
        self.space.refused();
        self.unfreeze_group(&mut group);
        self.applier.end_copies(group.catalogue_ops());
        let may_help = self.space.reclaim_may_help();
        if may_help {
            self.intake.ops.lock().splice(0..0, group.ops);
        } else {
            for op in group.ops {
                let _ = op.done.send(Err(Error::NoSpace));
            }
        }
        self.progress.update(|p| {
            p.refusals += u64::from(!may_help);
            p.ended = p.ended.max(group.freeze);
        });
        self.space.wake.notify_one();
    }

    /// Puts the frozen buffers of a group back, below newer writes.
    pub fn unfreeze_group(&self, group: &mut Group) {
        let _gate = self.intake.gate.write();
        self.space.garbage.add_discards(std::mem::take(&mut group.discarded));
        for (disk, frozen) in group.frozen.drain(..) {
            let mut buffers = disk.buffers.lock();
            let was_clean = buffers.active().is_empty();
            let less = buffers.unfreeze(frozen);
            drop(buffers);
            self.intake.count_buffered(&disk, -less);
            if was_clean && !disk.is_desktop() {
                self.intake.disks.lock().push(disk);
            }
        }
    }

    async fn commit_once(&self, group: &mut Group) -> Result<()> {
        let mut warm = Warm::new(&self.reader);
        warm.read_ahead(self.touched(), COMMIT_READS).await;
        let mut log = self.write_log().await?;
        self.freeze(group, log.head().seq + 1)?;
        if group.frozen.is_empty() && group.ops.is_empty() {
            self.withdraw_cover();
            self.finish(group, Vec::new());
            return Ok(());
        }
        self.log_group(&mut log, group, Stream::Data, &mut warm).await?;
        *self.figures.lock() = LogFigures::of(&log);
        drop(log);
        self.after_commit().await;
        Ok(())
    }

    /// Writes a group to the log, and applies it to maps and catalogue. `warm` holds the nodes and blocks
    /// that were read for it before the log was locked.
    ///
    /// # Errors
    /// If no part of the group is in the log, its cover is withdrawn. Otherwise the pool has latched.
    pub async fn log_group(
        &self,
        log: &mut Log,
        group: &mut Group,
        stream: Stream,
        warm: &mut Warm<'_>,
    ) -> Result<()> {
        let logged = self.try_log_group(log, group, stream, warm).await;
        match &logged {
            Err(_) if !group.is_written => self.withdraw_cover(),
            // The pool latches while the log is locked, so that no checkpoint covers changes that the maps
            // lack: see crate::read::damage.
            Err(e) => self.cx.latch(e),
            Ok(()) => {}
        }
        logged
    }

    /// Withdraws the cover of a group that is not in the log, before another group can have its number. If
    /// another thread has latched the pool, the cover stays, and no other group is written.
    fn withdraw_cover(&self) {
        let mutation = self.cx.config.mutation;
        if mutation != Mutation::KeepCover && mutation != Mutation::TakeNumber {
            self.cx.retained.set_cover(NO_COVER);
        }
    }

    async fn try_log_group(
        &self,
        log: &mut Log,
        group: &mut Group,
        stream: Stream,
        warm: &mut Warm<'_>,
    ) -> Result<()> {
        let before = self.appended.load(Relaxed);
        warm.read_ahead(touched_by(group), COMMIT_READS).await;
        let completed = self.complete_partial_blocks(group, warm).await?;
        completed.values().filter_map(|page| page.as_ref().err()).for_each(|lost| log.refer(lost));
        group.is_written = true;
        let written = loop {
            match self.write_group(log, group, &completed, stream).await {
                Err(StoreError::Overdue) if self.cx.config.mutation == Mutation::KeepEpoch => {
                    log.keep_epoch();
                }
                Err(StoreError::Overdue) => {}
                other => break other,
            }
        };
        group.logged = self.appended.load(Relaxed) - before;
        self.space.garbage.wrote(group.logged);
        let changes = match written {
            Err(StoreError::Full) => {
                group.is_written = false;
                return Err(Error::NoSpace);
            }
            other => other?,
        };
        // The floor must be set before any buffer is dropped.
        self.cx.retained.set_floor(log.head().seq);
        self.space.store.accepted();
        group.frozen.iter().for_each(|(disk, _)| self.scans.request_if_changed(disk));
        let applied = match self.apply_to_maps(&changes).await {
            Ok(()) => self.apply_ops(group).await,
            Err(e) => Err(e),
        };
        let cannot_apply = |e: &Error| tracing::error!("cannot apply a group of the log to the maps: {e}");
        let results = applied.inspect_err(cannot_apply)?;
        group.frozen.iter().for_each(|(disk, _)| self.used.request(disk.id()));
        group.catalogue_ops().filter_map(changed_map).for_each(|disk| self.used.request(disk));
        self.finish(group, results);
        Ok(())
    }

    /// Freezes all dirty buffers, and takes the pending changes to the catalogue. `seq` is the number of the
    /// group's first batch.
    ///
    /// # Errors
    /// Another thread has latched the pool: the memory is frozen, and cannot state what the log would have.
    fn freeze(&self, group: &mut Group, seq: u64) -> Result<()> {
        let _gate = self.intake.gate.write();
        if !self.cx.retained.set_cover(Cover { seq, order: self.cx.retained.order() }) {
            // If the pool has not latched, it was dropped, and has left its memory.
            self.cx.check_latch()?;
        }
        self.intake.pacing.schedule.commit_begins();
        group.began = Some(self.cx.host.now());
        group.ops.append(&mut self.intake.ops.lock());
        self.applier.begin_copies(group.catalogue_ops());
        group.freeze = self.intake.freezes.fetch_add(1, Relaxed) + 1;
        group.discarded = self.space.garbage.take_discards();
        for disk in std::mem::take(&mut *self.intake.disks.lock()) {
            let frozen = disk.buffers.lock().freeze();
            group.frozen.extend(frozen.map(|f| (disk, f)));
        }
        Ok(())
    }

    /// Completes partial blocks with their bases. A block whose base is damaged becomes lost: see
    /// [`crate::read::damage`].
    ///
    /// # Errors
    /// Those that do not concern the base: it may be intact, and the write over it was acknowledged.
    async fn complete_partial_blocks(&self, group: &Group, warm: &Warm<'_>) -> Result<Completed> {
        let mut completed = HashMap::new();
        for (disk, buffer) in &group.frozen {
            for (block, dirty) in buffer.partial_blocks() {
                let base = if buffer.base_is_zero(block) || self.cx.config.mutation == Mutation::ForgetBeneath
                {
                    Ok(Box::new([0; BLOCK]))
                } else if let Some(page) = warm.base(disk, block) {
                    Ok(page)
                } else {
                    self.reader.read_base_or_lose(disk, block).await?
                };
                let page = base.map(|mut page| {
                    copy_sectors(&dirty.page, dirty.mask, &(0..BLOCK), &mut page[..]);
                    page
                });
                completed.insert((disk.id(), block), page);
            }
        }
        Ok(completed)
    }

    /// Writes a group to the log, durably, slice by slice. Returns its changes to the maps, in order.
    async fn write_group(
        &self,
        log: &mut Log,
        group: &Group,
        completed: &Completed,
        stream: Stream,
    ) -> std::result::Result<Vec<(DiskId, Change)>, StoreError> {
        let store = log.store();
        let workers = match group.buffered() {
            ..=GROUP_OF_ONE_THREAD => &Inline,
            _ => self.cx.host.workers(),
        };
        let mut writing = log.begin_group(stream, &*store, workers, Some(&self.reader.cache)).await?;
        let mut reduction = self.reducer.begin(workers);
        let mut remaining = changes_of(group, completed).peekable();
        let (mut changes, mut fingerprints) = (Vec::new(), Vec::new());
        loop {
            let reduced = reduction.reduce(log, remaining.by_ref().take(SLICE_CHANGES).collect()).await;
            let (mut items, last) = (reduced.items(), remaining.peek().is_none());
            if last {
                items.extend(group.catalogue_ops().map(Item::Op));
            }
            let first = writing.placed().len();
            log.append(&mut writing, &items, last).await?;
            let mut refs = writing.placed()[first..].iter();
            for item in &items {
                if let Item::Block { fingerprint, .. } = item {
                    fingerprints.push(*fingerprint);
                }
                changes.extend(change(item, &mut refs, writing.placed()));
            }
            if last {
                break;
            }
        }
        let record = |refs: &[BlockRef]| {
            self.reducer.record_stored(fingerprints.into_iter().zip(refs.iter().copied()));
        };
        log.end_group(writing, record).await?;
        Ok(changes)
    }

    /// Applies the changes of a group to the maps.
    async fn apply_to_maps(&self, changes: &[(DiskId, Change)]) -> Result<()> {
        for of_disk in changes.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(disk) = of_disk.first().and_then(|(id, _)| self.applier.disk(*id)) else { continue };
            let changes: Vec<Change> = of_disk.iter().map(|(_, change)| *change).collect();
            self.applier.apply_changes(&disk, &changes).await?;
        }
        Ok(())
    }

    /// Applies the changes to the catalogue; returns the result of each.
    ///
    /// # Errors
    /// A change could not be made although it is in the log; see [`Applier::apply_op`].
    async fn apply_ops(&self, group: &Group) -> Result<Vec<Result<()>>> {
        let mut results = Vec::new();
        for pending in &group.ops {
            let mut result = Ok(());
            for op in &pending.ops {
                match self.applier.apply_op(op).await {
                    Ok(()) => {}
                    Err(e @ (Error::OutOfRange | Error::Format(_))) => result = result.and(Err(e)),
                    Err(e) => return Err(e),
                }
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Drops the frozen buffers of a group, which frees their memory, and completes the waiting requests.
    fn finish(&self, group: &mut Group, results: Vec<Result<()>>) {
        // Groups with changes to the catalogue are not measured: their duration does not measure the store.
        if let Some(began) = group.began.filter(|_| group.ops.is_empty()) {
            let bytes = GroupBytes { buffered: group.buffered(), logged: group.logged };
            let now = self.cx.host.now();
            self.reader.record_group(&bytes, now.saturating_sub(began), now);
        }
        self.intake.written(group.frozen.drain(..));
        self.space.committed_discards(std::mem::take(&mut group.discarded));
        self.applier.end_copies(group.catalogue_ops());
        self.commits.add(0);
        self.intake.pacing.commit_ended(group.logged, self.cx.host.now());
        let freeze = group.freeze;
        self.progress.update(|p| (p.done, p.ended) = (p.done.max(freeze), p.ended.max(freeze)));
        for (pending, result) in group.ops.drain(..).zip(results) {
            let _ = pending.done.send(result);
        }
    }
}

/// The change that an item makes to the map of a disk. `refs` are the references of the items with payload,
/// beginning with this item; `placed` are the references of all such items of the group so far.
fn change<'a>(
    item: &Item<'_>,
    refs: &mut impl Iterator<Item = &'a BlockRef>,
    placed: &[BlockRef],
) -> Option<(DiskId, Change)> {
    match *item {
        Item::Block { disk, block, .. } => {
            let at = refs.next().expect("every new block of a group has a reference");
            Some((disk, Change::put(block, *at)))
        }
        Item::Reference { disk, block, target } => Some((disk, Change::put(block, target))),
        Item::Same { disk, block, first } => Some((disk, Change::put(block, placed[first]))),
        Item::Zero { disk, block, count, allocated } => Some((disk, Change::zero(block, count, allocated))),
        Item::Node(_) | Item::Blob(_) | Item::Relocate { .. } | Item::Op(_) => None,
    }
}

/// Returns the changes of maps in a group.
fn touched_by(group: &Group) -> Touched {
    group.frozen.iter().map(|(disk, frozen)| (disk.clone(), by_leaf(frozen.touched()))).collect()
}
