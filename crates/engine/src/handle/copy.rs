//! Copies a range from one disk to another, or within one disk, without moving data.
//!
//! The map holds the address of each block, so copying blocks is copying addresses. The log records a copy as
//! one small change to the catalogue ([`CatalogueOp::CopyRange`]). When the change is applied, in the commit
//! that logged it or in recovery, the addresses are copied from one map to the other. If a range is copied to
//! the same blocks of another disk, whole subtrees are shared, as with a clone; otherwise a copy takes some
//! nanoseconds for each block.
//!
//! **Order with other requests.** The commit freezes the buffers and takes the changes to the catalogue at
//! one moment, and applies the changes last. So a copy takes the contents of the source at that moment,
//! including everything acknowledged before the call, and replaces the contents of the destination at that
//! moment. Later writes to the destination stay in its buffer, above the copy. To every other request the
//! copy is an overlapping write of these blocks. An [update](super::update) that read a block before the copy
//! must not write its result above the copy: therefore, from that moment until the commit is complete, such
//! updates count as overtaken and wait.
//!
//! **Effects on other parts.** Blocks become shared, which needs no bookkeeping because the mark of a reclaim
//! walks all maps; [`crate::reclaim`] contains the argument why no dead block becomes live again during a
//! mark. New map nodes are in memory until the next checkpoint, and recovery needs time to apply the change
//! again; so copied addresses count towards that checkpoint.
//!
//! The limits of the destination count the bytes of a copy, before it begins.
//!
//! Parts of blocks, offsets that differ modulo 4096, disks of different dedup domains, and desktops are
//! copied by reading and writing.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, CatalogueOp, FANOUT};

use super::handle::DiskHandle;
use crate::commit::Answer;
use crate::disk::Disk;
use crate::limit::Kind;
use crate::limits::{COPY_BLOCKS, COPY_BYTES, MARK_NODES};
use crate::read::Reader;
use crate::zero::is_zero;
use crate::{Error, Result};

/// Rounds after which the nodes for [`COPY_BLOCKS`] blocks are loaded: all leaves, each with a base leaf, and
/// the nodes above. If more rounds are needed, the cache is too small for the nodes, and the commit has to
/// load them again.
const LOAD_ROUNDS: usize = 2 * COPY_BLOCKS as usize / FANOUT / MARK_NODES + 8;

impl DiskHandle {
    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this disk. Whole blocks are shared
    /// instead of moved if both disks belong to this pool and to the same dedup domain, neither is a desktop,
    /// and the two offsets are equal modulo 4096; holes stay holes. Everything else is read and written.
    ///
    /// The copy behaves like a write that takes effect between call and return, separately for each block:
    /// everything acknowledged before the call, on either disk, precedes it. On return it is durable, as far
    /// as a flush of this disk makes writes durable. After an error, some blocks may have been copied.
    ///
    /// # Errors
    /// [`Error::Overlap`] if both ranges are on the same disk and overlap; [`Error::OutOfRange`] for either
    /// range; the errors of [`DiskHandle::read`] and [`DiskHandle::write`].
    pub async fn copy_from(
        &self,
        offset: u64,
        source: &DiskHandle,
        source_offset: u64,
        len: u64,
    ) -> Result<()> {
        source.check(source_offset, len)?;
        self.check_write(offset, len)?;
        self.mark_unless_durable(true).await?;
        let same = Arc::ptr_eq(&self.disk, &source.disk);
        if same && offset.abs_diff(source_offset) < len {
            return Err(Error::Overlap);
        }
        for piece in (0..len).step_by(COPY_BYTES as usize) {
            self.begin(Kind::Write, COPY_BYTES.min(len - piece)).await;
        }
        // If the end of the disk cuts off the last block, this block is copied as bytes: the disk may grow,
        // and the rest of the block be written.
        let whole = offset.div_ceil(BLOCK as u64)..(offset + len) / BLOCK as u64;
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
        self.disk.guest.write.add(len);
        self.flush_changes().await?;
        self.mark_unless_durable(true).await
    }

    /// Whether blocks of `source` can be copied by reference.
    fn may_share(&self, source: &DiskHandle) -> bool {
        Arc::ptr_eq(&self.intake, &source.intake)
            && self.disk.dedup_domain() == source.disk.dedup_domain()
            && !self.disk.is_desktop()
            && !source.disk.is_desktop()
            // Reading detects the damage before it is copied.
            && !source.disk.has_damaged_map()
    }

    /// Copies by reading and writing. Pieces of zeroes become holes.
    async fn copy_bytes(&self, offset: u64, source: &DiskHandle, source_offset: u64, len: u64) -> Result<()> {
        let mut piece = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let to = offset + done;
            // Pieces end at block boundaries, so that a failed copy leaves no partially copied block.
            let part = &mut piece[..(len - done).min(COPY_BYTES - to % BLOCK as u64) as usize];
            source.reader.read(&source.disk, source_offset + done, part, 0).await?;
            let n = part.len() as u64;
            if is_zero(part) {
                let mut room = self.intake.admit(&self.disk, 0).await?.room;
                self.zero(to, n, false, &mut room).await?;
            } else {
                let mut room = self.intake.admit(&self.disk, n).await?;
                room.spend(n);
                self.write_bytes(to, part, &mut room.room, Answer::Later).await?;
            }
            done += n;
        }
        Ok(())
    }

    /// Copies blocks by reference, from block `from` of the source on.
    async fn copy_blocks(&self, to: Range<u64>, source: &DiskHandle, from: u64) -> Result<()> {
        let (id, source_id) = (self.disk.id(), source.disk.id());
        // Sharing subtrees takes almost no time, even for a long copy.
        let shares_all = to.start == from && !self.disk.occupied.has_quota();
        let most = if shares_all { u64::MAX } else { COPY_BLOCKS };
        let mut block = to.start;
        while block < to.end {
            let count = (to.end - block).min(most);
            let source_block = from + (block - to.start);
            let range = source_block..source_block + count;
            if block == source_block {
                load_range(&self.reader, &source.disk, range.start..range.start + 1).await?;
                load_range(&self.reader, &source.disk, range.end - 1..range.end).await?;
            } else {
                load_range(&self.reader, &source.disk, range).await?;
            }
            self.occupy_copy(block, source, source_block, count).await?;
            let garbage = self.garbage_of(&(block..block + count));
            let op = CatalogueOp::CopyRange { disk: id, block, from: source_id, source_block, count };
            self.intake.commit_ops(vec![op]).await?;
            self.intake.committed_discards(garbage);
            if source.disk.has_damaged_map() {
                // The damage was found too late to refuse the copy: this disk now has it too.
                return Err(Error::MapDamaged(source.name()));
            }
            block += count;
        }
        Ok(())
    }

    /// Counts a copy against the quota of the tenant, before it is made: the blocks that hold data in the
    /// source. If the copy fails then, or the volume is being counted, the count may be wrong until the next
    /// count.
    async fn occupy_copy(&self, to: u64, source: &DiskHandle, from: u64, count: u64) -> Result<()> {
        if !self.disk.occupied.has_quota() {
            return Ok(());
        }
        let (mut data, mut zeroes, mut block) = (Vec::new(), Vec::new(), to);
        let (offset, len) = (from * BLOCK as u64, count * BLOCK as u64);
        let len = len.min(source.size().saturating_sub(offset));
        for extent in source.extents(offset, len, usize::MAX).await? {
            let end = block + extent.len.div_ceil(BLOCK as u64);
            if extent.zero { &mut zeroes } else { &mut data }.push(block..end);
            block = end;
        }
        self.disk.occupied.replace(&data, &zeroes)
    }
}

/// Loads the map nodes of a range into the cache. A copy then fails before anything is changed if a node
/// cannot be read, and the commit that applies the copy does not wait for the store at each node.
async fn load_range(reader: &Reader, disk: &Disk, range: Range<u64>) -> Result<()> {
    let mut before = None;
    for _ in 0..LOAD_ROUNDS {
        let missing = disk.tree.read().missing(&reader.nodes.cache, range.clone(), MARK_NODES);
        let first = missing.first().copied();
        if first == before || first.is_none() {
            break;
        }
        before = first;
        for (need, node) in missing.iter().zip(reader.nodes.read_uncached(&missing).await) {
            let node = node.map_err(|e| reader.source.not_found_is_corruption(e)).inspect_err(|e| {
                if matches!(e, Error::Damaged(_) | Error::Format(_)) {
                    disk.record_map_damage(e);
                }
            });
            reader.nodes.cache.insert(need.at, node?);
        }
    }
    Ok(())
}
