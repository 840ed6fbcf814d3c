//! The commit: everything dirty goes to the log as one group, then into the maps, then guests are answered.
//!
//! One commit runs at a time. It *freezes* the write buffers of all disks at one moment, behind a gate that
//! every write passes, so that a group holds whole requests (of long ones, whole pieces of [`TURN_BYTES`]) and, over
//! all disks, a prefix of what was acknowledged. Then, in this order and never another:
//!
//! 1. partial blocks are completed with what the map has beneath them;
//! 2. what need not be stored is found out ([`crate::reduce`]);
//! 3. the group is written to the log, durably: of each disk first the zeroed ranges, then the blocks; then
//!    changes to the catalogue, copies by reference ([`crate::copy`]) among them;
//! 4. maps and catalogue take the group over, as recovery would ([`crate::apply`]);
//! 5. the frozen buffers go, and whoever waits is told.
//!
//! A group that finds no room is given up: its buffers go beneath what was written since, and all is frozen again
//! when it is tried again. Its waiters fail only if no reclaim may help ([`crate::governor`]). So changes to the
//! catalogue that come meanwhile (deletions, above all) still see every write that was acknowledged before them. Any
//! other failure latches the pool, while the log is still held; damage of a block or a map node is none ([`crate::damage`]).
//!
//! [`TURN_BYTES`]: crate::limits::TURN_BYTES

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use forebay_format::{Address, BLOCK, BlockRef, CatalogueOp, DiskId, Stream};
use forebay_store::StoreError;
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::buffer::{Buffers, Page, WriteBuffer, ZEROES_COST, copy_sectors};
use crate::cache::Rank;
use crate::classes::Classifier;
use crate::disk::blocks_of;
use crate::governor::MAX_DELAY;
use crate::limits::{COMMIT_READS, FULL_RETRY};
use crate::log::{Draft, Item, Log};
use crate::pool::Pool;
use crate::read::pieces;
use crate::reduce::items;
use crate::volume::Volume;
use crate::warm::Warm;
use crate::zero::is_zero;
use crate::{Error, Mutation, Result};

/// How far commits have come; what flushes wait on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Freezes whose group is durable and in the maps.
    pub done: u64,
    /// Freezes whose group is durable or was given up, which has put its data back.
    pub ended: u64,
    /// Attempts that found no room when no reclaim could be expected to make some.
    pub refusals: u64,
    /// The pool has latched or closed.
    pub stopped: bool,
}

/// A change to the catalogue that waits for its commit.
pub(crate) struct PendingOp {
    pub ops: Vec<CatalogueOp>,
    pub done: oneshot::Sender<Result<()>>,
}

/// Partial blocks, completed; a reference that marks the block as lost where what is beneath is damaged.
pub(crate) type Completed = HashMap<(DiskId, u64), std::result::Result<Page, BlockRef>>;

/// What one commit writes.
#[derive(Default)]
pub(crate) struct Group {
    pub frozen: Vec<(Arc<Volume>, Arc<WriteBuffer>)>,
    pub ops: Vec<PendingOp>,
    /// Some of it may be in the log.
    pub is_written: bool,
    freeze: u64,
    /// Bytes that guests discarded in it.
    discarded: u64,
}

impl Group {
    /// A group of what was frozen of one disk.
    pub fn of(volume: Arc<Volume>, frozen: Arc<WriteBuffer>) -> Group {
        Group { frozen: vec![(volume, frozen)], ..Group::default() }
    }
}

/// A budget with the reserve that zeroed ranges have beyond it.
pub(crate) fn zeroes_budget(budget: u64) -> u64 {
    budget + budget / 8
}

impl Pool {
    /// Whether a write of `len` bytes (0: a zeroed range) may go into the buffer now, or has to wait: for a commit, or,
    /// where the store is full of garbage, for the cleaner. An error where it would wait in vain.
    pub(crate) fn admit(&self, volume: &Volume, len: u64) -> Result<bool> {
        self.check_running()?;
        if volume.is_desktop() {
            return self.admit_to_desktop(volume, len);
        }
        if self.is_cold(volume) {
            return Ok(false);
        }
        let dirty = self.commit.dirty.load(Relaxed).max(0) as u64;
        let fits = |len: u64, budget: u64| dirty == 0 || dirty + len <= budget;
        if self.commit.full.load(Relaxed) {
            // Zeroes take next to nothing, and may be what makes room: there is a reserve for them.
            return match len {
                0 if fits(ZEROES_COST, zeroes_budget(self.config.write_buffer)) => Ok(true),
                _ if self.reclaim_may_help() => Ok(false),
                _ => Err(Error::NoSpace),
            };
        }
        let cost = if len == 0 { ZEROES_COST } else { len };
        if fits(cost, self.commit.budget.load(Relaxed).min(self.config.write_buffer)) {
            return Ok(true);
        }
        self.commit.hurry();
        Ok(false)
    }

    /// Whether writes of this volume are slowed down, since room is short.
    pub(crate) fn is_paced(&self, volume: &Volume) -> bool {
        self.commit.write_rate.load(Relaxed) != u64::MAX && !volume.is_desktop()
    }

    /// Delays a write where room is short: all guests together write no faster than is sustained.
    async fn pace(&self, volume: &Volume, len: u64) {
        if len == 0 || !self.is_paced(volume) {
            return;
        }
        let rate = self.commit.write_rate.load(Relaxed).max(1);
        let (now, takes) = (self.host.now(), Duration::from_secs_f64(len as f64 / rate as f64));
        let begin = {
            let mut next = self.commit.next_write.lock();
            let begin = (*next).clamp(now, now + MAX_DELAY);
            *next = begin + takes.min(MAX_DELAY);
            begin
        };
        if begin > now {
            self.host.sleep(begin - now).await;
        }
    }

    /// Waits until a write of `len` bytes may go into the buffer.
    pub(crate) async fn wait_for_room(&self, volume: &Volume, len: u64) -> Result<()> {
        self.pace(volume, len).await;
        let mut progress = self.commit.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if self.admit(volume, len)? {
                return Ok(());
            }
            progress.changed().await.map_err(|_| Error::Closed)?;
        }
    }

    /// Changes the buffers of a disk under the freeze gate. `change` returns by how much they grew.
    ///
    /// Refuses where no commit would come for it: a pool that closes shuts the gate once while it says so, so
    /// what passed before is committed, and nothing is acknowledged after.
    pub(crate) fn change(
        &self,
        volume: &Arc<Volume>,
        blocks: Range<u64>,
        change: impl FnOnce(&mut Buffers, Range<u64>) -> i64,
    ) -> Result<()> {
        let _gate = self.commit.gate.read();
        self.check_running()?;
        if blocks.is_empty() {
            return Ok(());
        }
        if volume.is_recorded.load(Relaxed) {
            self.profiles.note_written(volume, &blocks);
        }
        let mut buffers = volume.buffers.lock();
        let was_clean = buffers.active().is_empty();
        let grown = change(&mut buffers, blocks);
        if volume.is_desktop() {
            drop(buffers);
            self.note_cached(volume, grown);
            return Ok(());
        }
        if was_clean && !buffers.active().is_empty() {
            self.commit.disks.lock().push(volume.clone());
        }
        drop(buffers);
        let before = self.commit.dirty.fetch_add(grown, Relaxed);
        if was_clean {
            self.commit.schedule.wake.notify_one();
        }
        // Begin early enough that writers need not wait for the budget.
        let half = self.config.write_buffer as i64 / 2;
        if before < half && before + grown >= half {
            self.commit.hurry();
        }
        Ok(())
    }

    /// Writes whole sectors into the buffer of a disk. Blocks of zeroes take no room in that of a desktop; others
    /// commit soon, and find them then.
    pub(crate) fn write_sectors(&self, volume: &Arc<Volume>, offset: u64, data: &[u8]) -> Result<()> {
        let zeroes_are_kept = !volume.is_desktop();
        let blocks = blocks_of(offset, data.len() as u64);
        let mut grown = 0;
        self.change(volume, blocks.clone(), |buffers, blocks| {
            grown = buffers.change(blocks, |buffer| {
                let mut at = 0;
                for (block, within) in pieces(offset, data.len()) {
                    let next = at + within.len();
                    let data = &data[at..next];
                    if zeroes_are_kept || data.len() < BLOCK || !is_zero(data) {
                        buffer.write(block, within, data);
                    } else {
                        buffer.zero(block..block + 1, true);
                    }
                    at = next;
                }
            });
            grown
        })?;
        if grown > 0 && !volume.is_desktop() {
            let end = offset + data.len() as u64;
            let edges = [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK as u64));
            self.note_cold(volume, blocks, edges.map(|edge| edge / BLOCK as u64));
        }
        Ok(())
    }

    /// Waits until everything is durable that was acknowledged on a disk before the call.
    pub(crate) async fn flush_volume(&self, volume: &Volume) -> Result<()> {
        if volume.is_desktop() {
            return self.check_latch();
        }
        let mut progress = self.commit.progress.subscribe();
        let target = {
            let _gate = self.commit.gate.read();
            let freezes = self.commit.freezes.load(Relaxed);
            let buffers = volume.buffers.lock();
            match (buffers.active().is_empty(), buffers.is_committing()) {
                (false, _) => freezes + u64::from(self.config.mutation != Mutation::FlushEarly),
                (true, true) => freezes,
                (true, false) => return self.check_latch(),
            }
        };
        self.await_freeze(&mut progress, target).await
    }

    /// Waits until everything is durable that was acknowledged on any disk before the call.
    pub async fn flush(&self) -> Result<()> {
        let mut progress = self.commit.progress.subscribe();
        let target = {
            let _gate = self.commit.gate.read();
            let freezes = self.commit.freezes.load(Relaxed);
            let is_dirty = !self.commit.disks.lock().is_empty();
            if !is_dirty && progress.borrow().ended >= freezes {
                return self.check_latch();
            }
            freezes + u64::from(is_dirty)
        };
        self.await_freeze(&mut progress, target).await
    }

    async fn await_freeze(
        &self,
        progress: &mut tokio::sync::watch::Receiver<Progress>,
        target: u64,
    ) -> Result<()> {
        let refusals = progress.borrow().refusals;
        let _waiting = self.commit.schedule.wait();
        self.commit.hurry();
        let enough = |p: &Progress| p.done >= target || p.refusals > refusals || p.stopped;
        let reached = *progress.wait_for(enough).await.map_err(|_| Error::Closed)?;
        if reached.done >= target {
            Ok(())
        } else if reached.stopped {
            self.check_running()?;
            Err(Error::Closed)
        } else {
            Err(Error::NoSpace)
        }
    }

    /// Commits changes to the catalogue; all in one group.
    pub(crate) async fn commit_ops(&self, ops: Vec<CatalogueOp>) -> Result<()> {
        let (done, result) = oneshot::channel();
        {
            let _gate = self.commit.gate.read();
            self.check_running()?;
            self.commit.ops.lock().push(PendingOp { ops, done });
        }
        self.commit.hurry();
        result.await.unwrap_or(Err(Error::Closed))
    }

    /// The task that commits, until the pool closes or latches.
    pub(crate) async fn commit_loop(self: Arc<Pool>) {
        let mut stuck = false;
        loop {
            // Asked before whether there is work: whatever was let in before the pool began to close shows up.
            let closing = self.commit.closing.load(Acquire);
            if stuck {
                self.host.sleep(FULL_RETRY).await;
            } else if !self.commit.has_work() {
                if closing {
                    break;
                }
                self.commit.schedule.wake.notified().await;
                continue;
            } else {
                self.linger().await;
            }
            let mut group = Group::default();
            stuck = match self.commit_once(&mut group).await {
                Ok(()) => false,
                Err(Error::NoSpace) if !self.commit.closing.load(Relaxed) => {
                    self.out_of_room(group);
                    true
                }
                Err(e) => {
                    tracing::error!("the pool stops: {e}");
                    self.latch(&e);
                    self.commit.ops.lock().append(&mut group.ops);
                    break;
                }
            }
        }
        let pending = {
            // Whoever passes the gate from here on is refused.
            let _gate = self.commit.gate.write();
            std::mem::take(&mut *self.commit.ops.lock())
        };
        for op in pending {
            // A receiver that has gone does not want to know.
            let _ = op.done.send(self.check_running().and(Err(Error::Closed)));
        }
        self.commit.progress.send_modify(|p| p.stopped = true);
    }

    /// Gives up a group that found no room. Its data stays, for it was acknowledged. Changes to the catalogue are tried
    /// again with it as long as a reclaim may help; else they fail, and so do flushes. So a request that waits for a reclaim
    /// gets one more attempt after the last of them.
    pub(crate) fn out_of_room(&self, mut group: Group) {
        self.commit.refused_at.store(self.commit.free.load(Relaxed) + 1, Relaxed);
        self.commit.full.store(true, Relaxed);
        self.take_back(&mut group);
        self.end_copies(&group.ops);
        let may_help = self.reclaim_may_help();
        if may_help {
            self.commit.ops.lock().splice(0..0, group.ops);
        } else {
            for op in group.ops {
                let _ = op.done.send(Err(Error::NoSpace));
            }
        }
        self.commit.progress.send_modify(|p| {
            p.refusals += u64::from(!may_help);
            p.ended = p.ended.max(group.freeze);
        });
        self.upkeep.wake();
    }

    /// Gives what was frozen back to the buffers, beneath what was written since.
    pub(crate) fn take_back(&self, group: &mut Group) {
        let _gate = self.commit.gate.write();
        self.upkeep.discards.fetch_add(std::mem::take(&mut group.discarded), Relaxed);
        for (volume, frozen) in group.frozen.drain(..) {
            let mut buffers = volume.buffers.lock();
            let was_clean = buffers.active().is_empty();
            let less = buffers.unfreeze(frozen);
            drop(buffers);
            self.note_buffered(&volume, -less);
            if was_clean && !volume.is_desktop() {
                self.commit.disks.lock().push(volume);
            }
        }
    }

    async fn commit_once(&self, group: &mut Group) -> Result<()> {
        let mut warm = self.warm();
        self.warm_up(self.touched(), &mut warm, COMMIT_READS).await;
        let mut log = self.log.lock().await;
        self.freeze(group);
        if group.frozen.is_empty() && group.ops.is_empty() {
            self.finish(group, Vec::new());
            return Ok(());
        }
        self.log_group(&mut log, group, Stream::Data, &mut warm).await?;
        drop(log);
        self.after_commit().await;
        Ok(())
    }

    /// Writes a group to the log, and brings it into maps and catalogue. `warm` has what was read for it before the
    /// log was locked.
    pub(crate) async fn log_group(
        &self,
        log: &mut Log,
        group: &mut Group,
        stream: Stream,
        warm: &mut Warm<'_>,
    ) -> Result<()> {
        let before = self.appended.load(Relaxed);
        self.warm_up(self.touched_by(group), warm, COMMIT_READS).await;
        let completed = self.complete_partial_blocks(group, warm).await?;
        completed.values().filter_map(|page| page.as_ref().err()).for_each(|lost| log.refer(lost));
        let reduced = self.reduce(log, group, &completed).await;
        group.is_written = true;
        let items = items(group, &completed, &reduced);
        let written = self.write_group(log, &items, stream).await;
        self.upkeep.written.fetch_add(self.appended.load(Relaxed) - before, Relaxed);
        let places = match written {
            Err(StoreError::Full) => return Err(Error::NoSpace),
            other => other?,
        };
        self.commit.refused_at.store(0, Relaxed);
        self.note_stored(&items, &places);
        group.frozen.iter().for_each(|(volume, _)| self.learn_if_changed(volume));
        let applied = match self.take_over(&items, &places).await {
            Ok(()) => self.apply_ops(group).await,
            Err(e) => Err(e),
        };
        let results = applied.inspect_err(|e| {
            // While the log is held, so that no checkpoint covers what the maps did not take: see crate::damage.
            tracing::error!("the maps cannot take what the log says: {e}");
            self.latch(e);
        })?;
        drop(items);
        self.finish(group, results);
        Ok(())
    }

    /// Takes what is dirty now, and the changes to the catalogue that wait.
    fn freeze(&self, group: &mut Group) {
        let _gate = self.commit.gate.write();
        group.ops.append(&mut self.commit.ops.lock());
        self.begin_copies(&group.ops);
        group.freeze = self.commit.freezes.fetch_add(1, Relaxed) + 1;
        group.discarded = self.upkeep.discards.swap(0, Relaxed);
        for volume in std::mem::take(&mut *self.commit.disks.lock()) {
            let frozen = volume.buffers.lock().freeze();
            group.frozen.extend(frozen.map(|f| (volume, f)));
        }
    }

    /// Reads what partial blocks lack. A block whose base is damaged is lost: see [`crate::damage`].
    ///
    /// # Errors
    /// Those that say nothing about the base: it may be whole, and what was written over it was acknowledged.
    async fn complete_partial_blocks(&self, group: &Group, warm: &Warm<'_>) -> Result<Completed> {
        let mut completed = HashMap::new();
        for (volume, buffer) in &group.frozen {
            for (block, dirty) in buffer.partial_blocks() {
                let base = if buffer.base_is_zero(block) || self.config.mutation == Mutation::ForgetBeneath {
                    Ok(Box::new([0; BLOCK]))
                } else if let Some(page) = self.warm_base(warm, volume, block) {
                    Ok(page)
                } else {
                    self.base_of(volume, block).await?
                };
                let page = base.map(|mut page| {
                    copy_sectors(&dirty.page, dirty.mask, &(0..BLOCK), &mut page[..]);
                    page
                });
                completed.insert((volume.id(), block), page);
            }
        }
        Ok(completed)
    }

    /// Writes a group, durably. Its blocks go into the read cache on the way: what was just written is likely to
    /// be read soon; an import is not. They are there before they are durable, which nobody can see: no map has
    /// their addresses yet, and if the group fails, no map ever will.
    async fn write_group(
        &self,
        log: &mut Log,
        items: &[Item<'_>],
        stream: Stream,
    ) -> std::result::Result<Vec<BlockRef>, StoreError> {
        let drafts = Draft::split(items, log.batch_limit());
        let (mut current, mut classifier) = (None, Classifier::default());
        let mut cache = |(disk, block): (DiskId, u64), addr: Address, content: &[u8; BLOCK]| {
            if current.as_ref().is_none_or(|(known, _)| *known != disk) {
                current = Some((disk, self.volume(disk).filter(|v| v.role().is_visible())));
            }
            if let Some((_, Some(volume))) = &current {
                // What is written again and again, as metadata is, leaves its former versions behind.
                let rank = self.rank(classifier.of_written(volume, block)).min(Rank::Normal);
                self.cache.insert_as(addr, content, rank);
            }
        };
        log.write_group(stream, &drafts, &mut cache).await
    }

    /// Brings blocks and zeroed ranges into the maps.
    async fn take_over(&self, items: &[Item<'_>], places: &[BlockRef]) -> Result<()> {
        let mut stored = places.iter();
        let mut at = 0;
        while let Some(disk) = items.get(at).and_then(Item::disk) {
            let until = items[at..].iter().take_while(|i| i.disk() == Some(disk)).count() + at;
            let of_disk = &items[at..until];
            at = until;
            let changes = of_disk.iter().map(|item| match *item {
                Item::Block { block, .. } => {
                    let at = stored.next().expect("every block of a group has a place");
                    crate::apply::Change::put(block, *at)
                }
                Item::Reference { block, target, .. } => crate::apply::Change::put(block, target),
                Item::Same { block, first, .. } => crate::apply::Change::put(block, places[first]),
                Item::Zero { block, count, allocated, .. } => {
                    crate::apply::Change::zero(block, count, allocated)
                }
                _ => unreachable!("an item with a disk changes its map"),
            });
            let changes: Vec<_> = changes.collect();
            let Some(volume) = self.volume(disk) else { continue };
            self.apply_changes(&volume, &changes).await?;
        }
        Ok(())
    }

    /// Makes the changes to the catalogue; what came of each. An error outside: one could not be made, and must be.
    async fn apply_ops(&self, group: &Group) -> Result<Vec<Result<()>>> {
        let mut results = Vec::new();
        for pending in &group.ops {
            let mut result = Ok(());
            for op in &pending.ops {
                match self.apply_op(op).await {
                    Ok(()) => {}
                    Err(e @ (Error::OutOfRange | Error::Format(_))) => result = result.and(Err(e)),
                    Err(e) => return Err(e),
                }
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Notes by how much the buffers of a disk grew, outside of a write.
    fn note_buffered(&self, volume: &Volume, grown: i64) {
        if volume.is_desktop() {
            self.note_cached(volume, grown);
        } else {
            self.commit.dirty.fetch_add(grown, Relaxed);
        }
    }

    /// Forgets the frozen buffers, frees their memory, tells the waiters.
    fn finish(&self, group: &mut Group, results: Vec<Result<()>>) {
        for (volume, buffer) in group.frozen.drain(..) {
            volume.buffers.lock().thaw();
            self.note_buffered(&volume, -(buffer.cost() as i64));
        }
        self.note_discarded(std::mem::take(&mut group.discarded));
        self.end_copies(&group.ops);
        self.counters.commits.add(0);
        let freeze = group.freeze;
        self.commit.progress.send_modify(|p| (p.done, p.ended) = (p.done.max(freeze), p.ended.max(freeze)));
        for (pending, result) in group.ops.drain(..).zip(results) {
            let _ = pending.done.send(result);
        }
    }
}
