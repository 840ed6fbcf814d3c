//! The changes of a disk since an earlier snapshot or image, from the block maps alone.
//!
//! The earlier disk does not change, and it is in use as long as [`Since`] exists, so that it cannot be
//! removed. Both maps are walked together ([`crate::map`], `difference`). Each look-up needs the nodes of one
//! map only, so that a cache which holds the nodes of one descent suffices. In between, a volume may change,
//! or a checkpoint may store nodes of either map. The subtree that a look-up returns keeps its nodes, and a
//! node that was stored in the meantime is still recognized by its address.

use std::sync::Arc;

use forebay_format::BLOCK;
use forebay_store::StoreError;
use tokio::task::yield_now;

use super::handle::DiskHandle;
use crate::block_ranges::blocks_of;
use crate::limits::{LEAF_STEPS, READ_RETRIES, TURN_STEPS};
use crate::map::{Change, NeedNode, NodeCache, Tree, changes, end_of_part};
use crate::read::with_nodes;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::{Error, Result};

/// A range of a disk with the same relation to the earlier disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Length of the range in bytes.
    pub len: u64,
    /// The contents of the range may differ from the contents of the earlier disk. If this is false, the
    /// contents are equal.
    pub changed: bool,
    /// The range has changed, and reads as zeroes now.
    pub zero: bool,
}

/// A snapshot or an image with which a later disk is compared. It is in use as long as this exists.
pub struct Since {
    from: Arc<DiskHandle>,
    nodes_read: AtomicU64,
}

impl Since {
    /// Comparisons with `from`, which does not change.
    pub(crate) fn new(from: Arc<DiskHandle>) -> Since {
        debug_assert!(from.read_only(), "a disk that changes has no difference");
        Since { from, nodes_read: AtomicU64::new(0) }
    }

    /// Export name of the earlier disk.
    pub fn name(&self) -> String {
        self.from.name()
    }

    /// Identity of the earlier disk.
    pub fn uuid(&self) -> [u8; 16] {
        self.from.uuid()
    }

    /// Size of the earlier disk in bytes.
    pub fn size(&self) -> u64 {
        self.from.size()
    }

    /// The number of map nodes that comparisons have loaded from the store.
    pub fn nodes_read(&self) -> u64 {
        self.nodes_read.load(Relaxed)
    }
}

impl DiskHandle {
    /// Returns which parts of `len` bytes from `offset` on have changed since the earlier disk: at most
    /// `max` ranges, but at least one unless `len` is 0. A range that only the later disk has is compared
    /// with zeroes.
    ///
    /// Dirty data is committed first. If the commit fails, or for a desktop, which does not commit, the whole
    /// range is reported as changed, which is always a valid answer.
    ///
    /// # Errors
    /// The errors of a read of the block map.
    pub async fn changes(&self, since: &Since, offset: u64, len: u64, max: usize) -> Result<Vec<Changed>> {
        self.check(offset, len)?;
        let unknown = vec![Changed { len, changed: true, zero: false }];
        if self.disk.is_desktop() {
            return Ok(unknown);
        }
        match self.intake.flush_disk(&self.disk).await {
            Ok(()) => self.changes_without_flush(since, offset, len, max).await,
            Err(Error::Fenced) => Err(Error::Fenced),
            Err(_) => Ok(unknown),
        }
    }

    /// Works like [`DiskHandle::changes`] for a disk whose contents do not change.
    pub(crate) async fn changes_without_flush(
        &self,
        since: &Since,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Changed>> {
        self.check(offset, len)?;
        let (end, blocks) = (offset + len, blocks_of(offset, len));
        let (mut at, mut block, mut steps) = (offset, blocks.start, 0);
        let mut found: Vec<Changed> = Vec::new();
        let freed = AtomicUsize::new(0);
        while at < end && found.len() < max.max(1) {
            let (kinds, next) = self.stretch(since, block, &freed).await?;
            steps += LEAF_STEPS;
            if steps >= TURN_STEPS {
                steps = 0;
                yield_now().await;
            }
            for (kind, count) in kinds {
                if at >= end {
                    break;
                }
                block += count;
                let until = block.saturating_mul(BLOCK as u64).min(end);
                let (changed, zero) = (kind != Change::Same, kind == Change::Zero);
                let is_full = found.len() >= max.max(1);
                match found.last_mut() {
                    Some(last) if (last.changed, last.zero) == (changed, zero) => last.len += until - at,
                    _ if is_full => return Ok(found),
                    _ => found.push(Changed { len: until - at, changed, zero }),
                }
                at = until;
            }
            debug_assert!(at >= end || block == next);
        }
        Ok(found)
    }

    /// Compares the blocks from `block` on, to the end of a subtree that has not changed, or to the end of
    /// the leaf. Returns the kinds with their numbers of blocks, and the block after the last one.
    async fn stretch(
        &self,
        since: &Since,
        block: u64,
        freed: &AtomicUsize,
    ) -> Result<(Vec<(Change, u64)>, u64)> {
        let from = &since.from.disk.tree;
        let to = &self.disk.tree;
        let levels = from.read().levels().max(to.read().levels());
        for level in (0..levels).rev() {
            let part = |tree: &Tree, nodes: &NodeCache| tree.part(nodes, level, block);
            let now = self.look_up(since, freed, |nodes| part(&to.read(), nodes)).await?;
            let then = since.from.look_up(since, freed, |nodes| part(&from.read(), nodes)).await?;
            if let (Some(now), Some(then)) = (now, then)
                && now.is_same(&then)
            {
                let next = end_of_part(level, block);
                return Ok((vec![(Change::Same, next - block)], next));
            }
        }
        let values = |tree: &Tree, nodes: &NodeCache| tree.rest_of_leaf(nodes, block);
        let (now, count) = self.look_up(since, freed, |nodes| values(&to.read(), nodes)).await?;
        let (then, _) = since.from.look_up(since, freed, |nodes| values(&from.read(), nodes)).await?;
        let mut kinds: Vec<(Change, u64)> = Vec::new();
        for kind in changes(&then[..count], &now[..count]) {
            match kinds.last_mut() {
                Some((last, count)) if *last == kind => *count += 1,
                _ => kinds.push((kind, 1)),
            }
        }
        Ok((kinds, block + count as u64))
    }

    /// Looks something up in the map of this disk, and loads the nodes that the look-up needs.
    async fn look_up<T>(
        &self,
        since: &Since,
        freed: &AtomicUsize,
        look_up: impl Fn(&NodeCache) -> std::result::Result<T, NeedNode>,
    ) -> Result<T> {
        let nodes = &self.reader.nodes.cache;
        with_nodes(
            || look_up(nodes),
            |need| {
                Box::pin(async move {
                    since.nodes_read.fetch_add(1, Relaxed);
                    match self.reader.nodes.load_for_read(&self.disk, need).await {
                        // The volume has changed, and the next look-up does not need the node.
                        Err(Error::Store(StoreError::NotFound(_)))
                            if freed.fetch_add(1, Relaxed) < READ_RETRIES =>
                        {
                            Ok(())
                        }
                        other => other.map(drop),
                    }
                })
            },
        )
        .await
    }
}
