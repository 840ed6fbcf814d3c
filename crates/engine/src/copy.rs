//! Copying a range from one disk to another, or within one, without moving data.
//!
//! What a block holds is an address in the map, so to copy blocks is to copy addresses: the log says so in one small
//! change to the catalogue ([`CatalogueOp::CopyRange`]), and when that is applied, in the commit that it was logged
//! in or in recovery, the one map takes over what the other says. Where a range is copied to the same blocks of
//! another disk, whole subtrees are shared, as with a clone; else it costs some nanoseconds for each block.
//!
//! **When it happens.** The commit freezes the buffers and takes the changes to the catalogue at one moment, and
//! applies the changes last. So a copy takes what the source held at that moment, all that was acknowledged before
//! the call included, and puts it over what the destination held then. What is written to the destination after that
//! moment stays in its buffer, on top. To everybody else that is a write of these blocks that overlaps with theirs.
//! One thing must not be so: an [update](crate::update) that saw a block before the copy may not put its result on
//! top of it. So from that moment until the commit is done, such updates count as overtaken and wait.
//!
//! **What it leaves behind.** Blocks are shared, which reclaiming finds by itself; that nothing comes back to life
//! beside a mark is argued in [`crate::mark`]. New map nodes are in memory until the next checkpoint, and to apply
//! the change again takes time in recovery; so what was copied counts towards that checkpoint.
//!
//! Parts of blocks, places that differ modulo 4096, disks of different dedup domains, and desktops are copied the
//! other way: read, and written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{BLOCK, CatalogueOp, FANOUT};
use tokio::task::yield_now;

use crate::commit::PendingOp;
use crate::limits::{COMMIT_READS, COPY_BLOCKS, COPY_BYTES, COPY_STEPS, COPY_VALUE_BYTES, MARK_NODES};
use crate::map::Held;
use crate::pool::Pool;
use crate::volume::{Volume, blocks};
use crate::zero::is_zero;
use crate::{Disk, Error, Result};

/// The nodes of [`COPY_BLOCKS`] are there after so many turns: a leaf and a base for each, and those above. After more
/// the cache is too small for them, and the commit has to load them again.
const LOAD_TURNS: usize = 2 * COPY_BLOCKS as usize / FANOUT / MARK_NODES + 8;

impl Disk {
    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this disk. Whole blocks are shared and not
    /// moved where both disks are of this pool and of one dedup domain, none is a desktop, and the two offsets are
    /// alike modulo 4096; holes stay holes. All else is read and written.
    ///
    /// It is as a write that happens between call and return, block by block: whatever was acknowledged before the
    /// call, on either disk, is before it. On return it is durable, in so far as a flush of this disk makes anything
    /// durable. Where it fails, some blocks may have been copied.
    ///
    /// # Errors
    /// [`Error::Overlap`] where both ranges are of one disk and overlap; [`Error::OutOfRange`] for either range;
    /// those of [`Disk::read`] and [`Disk::write`].
    pub async fn copy_from(&self, offset: u64, source: &Disk, source_offset: u64, len: u64) -> Result<()> {
        source.check(source_offset, len)?;
        self.check_write(offset, len)?;
        let same = Arc::ptr_eq(&self.volume, &source.volume);
        if same && offset.abs_diff(source_offset) < len {
            return Err(Error::Overlap);
        }
        let whole = self.whole_blocks(offset, len);
        if whole.is_empty()
            || offset % BLOCK as u64 != source_offset % BLOCK as u64
            || !self.may_share(source)
        {
            self.copy_bytes(offset, source, source_offset, len).await?;
        } else {
            let (first, last) = (whole.start * BLOCK as u64, whole.end * BLOCK as u64);
            self.copy_bytes(offset, source, source_offset, first - offset).await?;
            self.copy_blocks(whole, source, (source_offset + (first - offset)) / BLOCK as u64).await?;
            let tail = (offset + len).saturating_sub(last);
            self.copy_bytes(last, source, source_offset + len - tail, tail).await?;
        }
        self.volume.guest.write.add(len);
        self.flush_changes().await
    }

    fn may_share(&self, source: &Disk) -> bool {
        Arc::ptr_eq(&self.pool, &source.pool)
            && self.volume.dedup_domain() == source.volume.dedup_domain()
            && !self.volume.is_desktop()
            && !source.volume.is_desktop()
            // What is damaged is found by reading, before anything is copied.
            && !source.volume.has_damaged_map()
    }

    /// Copies by reading and writing. What is zero becomes a hole.
    async fn copy_bytes(&self, offset: u64, source: &Disk, source_offset: u64, len: u64) -> Result<()> {
        let mut piece = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let to = offset + done;
            // Up to the end of a block: one that a copy fails at is not half of it.
            let part = &mut piece[..(len - done).min(COPY_BYTES - to % BLOCK as u64) as usize];
            source.pool.read(&source.volume, source_offset + done, part, 0).await?;
            let n = part.len() as u64;
            if is_zero(part) {
                self.pool.wait_for_room(&self.volume, 0).await?;
                self.zero(to, n, false).await?;
            } else {
                self.pool.wait_for_room(&self.volume, n).await?;
                self.write_bytes(to, part).await?;
            }
            done += n;
        }
        Ok(())
    }

    /// Copies blocks by reference, from `from` on in the source.
    async fn copy_blocks(&self, to: Range<u64>, source: &Disk, from: u64) -> Result<()> {
        let (disk, source_id) = (self.volume.id(), source.volume.id());
        // What is shared costs next to nothing, however much it is.
        let most = if to.start == from { u64::MAX } else { COPY_BLOCKS };
        let mut block = to.start;
        while block < to.end {
            let count = (to.end - block).min(most);
            let source_block = from + (block - to.start);
            let range = source_block..source_block + count;
            if block == source_block {
                self.pool.load_range(&source.volume, range.start..range.start + 1).await?;
                self.pool.load_range(&source.volume, range.end - 1..range.end).await?;
            } else {
                self.pool.load_range(&source.volume, range).await?;
            }
            let garbage = self.held_bytes(&(block..block + count));
            let op = CatalogueOp::CopyRange { disk, block, from: source_id, source_block, count };
            self.pool.commit_ops(vec![op]).await?;
            self.pool.note_discarded(garbage);
            if source.volume.has_damaged_map() {
                // It was found when it was too late to refuse: what is damaged there is so here.
                return Err(Error::MapDamaged(source.name()));
            }
            block += count;
        }
        Ok(())
    }
}

impl Pool {
    /// Brings those nodes of a map into the cache that say what is in a range. Where one cannot be read, whoever wants
    /// to copy from there learns it before anything was done; and while a commit applies a change, it should not have
    /// to wait for the store at each of them.
    async fn load_range(&self, volume: &Volume, range: Range<u64>) -> Result<()> {
        let mut before = None;
        for _ in 0..LOAD_TURNS {
            let missing = volume.tree.read().missing(&self.nodes, range.clone(), MARK_NODES);
            let first = missing.first().copied();
            if first == before || first.is_none() {
                break;
            }
            before = first;
            for (need, node) in missing.iter().zip(self.pass_nodes(&missing).await) {
                let node = node.map_err(|e| self.lost(e)).inspect_err(|e| {
                    if matches!(e, Error::Damaged(_) | Error::Format(_)) {
                        volume.note_map_damage(e);
                    }
                });
                self.nodes.insert(need.at, node?);
            }
        }
        Ok(())
    }

    /// Brings a copied range into the map of `volume`, as the log says. What is damaged in the map of the source is
    /// damaged in that of `volume` then.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]: nothing was changed. Any other: not all was, and must be.
    pub(crate) async fn copy_range(
        &self,
        volume: &Volume,
        first: u64,
        source: &Volume,
        from: u64,
        count: u64,
    ) -> Result<()> {
        let fits =
            |v: &Volume, first: u64| first.checked_add(count).is_some_and(|end| end <= blocks(v.size()));
        if !fits(volume, first) || !fits(source, from) {
            return Err(Error::OutOfRange);
        }
        // One lock at a time, and a source that stands still, also if it is this very map. What stands in for damage
        // in it is for the copy alone.
        let mut copied_from = source.tree.read().clone();
        let (mut done, mut copied) = (0, 0);
        let mut held = Held::new(&self.nodes);
        while done < count {
            let need = {
                let mut tree = volume.tree.write();
                let mut need = None;
                for _ in 0..COPY_STEPS {
                    if done == count || need.is_some() {
                        break;
                    }
                    match tree.copy(&self.nodes, first + done, &copied_from, from + done, count - done) {
                        Ok(n) => {
                            copied += if n <= FANOUT as u64 { n } else { 0 };
                            done += n;
                        }
                        Err(node) => need = Some(node),
                    }
                }
                need
            };
            match need {
                Some(node) => {
                    let missing = copied_from.missing(&self.nodes, from + done..from + count, COMMIT_READS);
                    self.load_and_hold(&missing, &mut held, COMMIT_READS).await;
                    self.bring(node, |need, why| {
                        let of_source = copied_from.stand_in(&self.nodes, need)?;
                        if of_source {
                            source.note_map_damage(why);
                            return Ok(true);
                        }
                        let stands = volume.tree.write().stand_in(&self.nodes, need)?;
                        if stands {
                            volume.note_map_damage(why);
                        }
                        Ok(stands)
                    })
                    .await?;
                }
                None => yield_now().await,
            }
        }
        // Whole subtrees are shared unseen.
        volume.add_map_damage(source);
        self.appended.fetch_add(copied * COPY_VALUE_BYTES, Relaxed);
        Ok(())
    }

    /// Called with the changes that a commit takes, under the gate.
    pub(crate) fn begin_copies(&self, ops: &[PendingOp]) {
        self.each_copy(ops, |volume, blocks| volume.buffers.lock().begin_copy(blocks));
    }

    /// Called when they have been applied, or given up.
    pub(crate) fn end_copies(&self, ops: &[PendingOp]) {
        self.each_copy(ops, |volume, blocks| volume.buffers.lock().end_copy(&blocks));
    }

    fn each_copy(&self, ops: &[PendingOp], each: impl Fn(&Volume, Range<u64>)) {
        for op in ops.iter().flat_map(|pending| &pending.ops) {
            if let CatalogueOp::CopyRange { disk, block, count, .. } = *op
                && let Some(volume) = self.volume(disk)
            {
                each(&volume, block..block + count);
            }
        }
    }

    /// Waits until no copy into `blocks` is under way.
    pub(crate) async fn wait_for_copies(&self, volume: &Volume, blocks: &Range<u64>) -> Result<()> {
        let mut progress = self.commit.progress.subscribe();
        loop {
            progress.mark_unchanged();
            self.check_running()?;
            if !volume.buffers.lock().is_copied_to(blocks) {
                return Ok(());
            }
            progress.changed().await.map_err(|_| Error::Closed)?;
        }
    }
}
