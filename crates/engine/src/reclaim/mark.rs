//! The mark: finds the live slots, and the space that each disk uses, in total and exclusively.
//!
//! A slot is live if a block map of the checkpoint reaches it: the node or block in it can be read through
//! some disk. Through the base of a leaf, a map reaches only the blocks that the leaf does not list itself
//! ([`Node::uncovered`](crate::map::Node::uncovered)). A base may belong to several leaves, and be an
//! ordinary leaf of another map: a slot is live if it is reached in any of these ways.
//!
//! **By difference.** The counts of the last mark ([`super::counts`]) are kept in memory. The next mark
//! carries the differences of the roots down to these counts ([`super::walk`]): it reads the nodes that only
//! one of the two checkpoints has, and no other nodes. Its work is therefore proportional to the number of
//! changes. Without counts, the same walk begins with the counts of an empty pool, which is a *full mark*.
//! The nodes of the older checkpoint can still be read in the next mark: a reclaim frees what is not live in
//! the newer of the two checkpoints only after the mark has released the older one.
//!
//! The counts are given up, and a full mark is made at once, if a count is below zero, which is impossible
//! for right counts, or if a node cannot be read. They are also given up after a failed mark, after a full
//! mark that could not read all nodes, if they do not fit into the memory budget, and when the pool is
//! closed. The loss of the counts costs time, never data.
//!
//! **Memory.** The counts, and the changes under way, take at most
//! [`PoolConfig::mark_memory`](crate::PoolConfig::mark_memory); what does not fit is written to the store
//! until the end of the reclaim ([`super::scratch`]).
//!
//! **Checkpoints** can be made while a mark is under way. The mark works on two fixed checkpoints, and
//! nothing that it reads is freed or changed: only reclaims free data, and one reclaim runs at a time.
//!
//! **Why the mark is safe while guests write.** Guests cannot make a dead slot live again. A write creates
//! new slots. A clone, a rollback or a reset shares nodes that a disk of the checkpoint had, or that were
//! created since. A copy of a range shares nodes of the source's map, and the addresses in them, as of the
//! moment of the copy. Each address in that map is in the checkpoint, is newer than the checkpoint, or was
//! added by a reference to a stored block, which was recorded as described next. A leaf never loses an entry
//! that hides an entry of its base: a discard adds a hole to the leaf. Only one action makes a dead slot live
//! again: a commit refers to a block that is already stored. These references are recorded in the barrier of
//! the log from before the checkpoint until the end of the reclaim, and the cleaner checks the barrier before
//! it drops a slot ([`super::clean`]). References made between two reclaims are in the next checkpoint, which
//! counts them.
//!
//! **A node that cannot be read** does not end a full mark. The references in the node are unknown. But all
//! slots to which it refers are older than the node: a node is written after everything below it (children,
//! base and blocks), and no address is assigned twice. So each slot below the node was written by a batch
//! with a lower number than the last batch of the segment in which the node was written. The highest such
//! number, over all unreadable nodes, is the *horizon* of the mark. A segment that began before the horizon
//! may hold live slots that the mark cannot see: none of its slots is dropped or moved, whether found live or
//! not. A segment that began later holds no such slot, and is dropped and moved as usual. So a pool continues
//! to free segments that were written after the damage. The older segments become reclaimable when no disk
//! reaches the damaged node any more. The affected disks are found by descending from each root to the
//! indexes of these nodes; they are reported to the caller of the reclaim, and once in the log. (If damage
//! has cost the node's segment its entry in the table, the horizon is the end of history as recovery found
//! it: all segments written since the pool was opened are in the table.)
//!
//! **Exclusive space** of a disk is the space that its removal would free. The mark computes what would
//! happen to the counts if the root of the disk were removed, and adds up the slots whose count would fall to
//! zero. This reads the nodes that no other disk shares. The mark limits the nodes that it reads for this
//! purpose: to the number of nodes that it reads for the counts, or to [`MARK_CREDIT`] if that is more. The
//! disks take turns, so in a large pool the figure of a disk may be some marks old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, SegmentId, SegmentRecord};
use hashbrown::HashMap;
use roaring::RoaringBitmap;
use tokio::task::yield_now;

use super::counts::{Counts, Exclusive, Live, root_delta};
use super::scratch::Scratch;
use super::walk::{Purpose, Stop, Tools, Unreadable, Walk, Walked};
use crate::commit::{Committer, Taken};
use crate::hash::BuildU64Hasher;
use crate::limits::MARK_CREDIT;
use crate::log::SegmentTable;
use crate::map::NeedNode;
use crate::read::Reader;
use crate::{DiskSpace, Error, Result};

/// The result of a mark.
pub(super) struct MarkResult {
    counts: Counts,
    scratch: Arc<Scratch>,
    /// The space used by each disk for which it is known.
    pub disks: HashMap<DiskId, DiskSpace, BuildU64Hasher>,
    /// Number of blocks that the maps of all disks contain.
    pub mapped: u64,
    /// Sizes of all disks.
    pub logical_bytes: u64,
    /// Disks with a map node that this mark could not read. The space figures of such a disk cover only the
    /// nodes that could be read.
    pub damaged: BTreeSet<DiskId>,
    /// The disks of `damaged` with a node that is corrupt, not only temporarily unreadable.
    pub damaged_maps: BTreeSet<DiskId>,
    /// Segments in which the unreadable nodes were written.
    unreadable: BTreeSet<SegmentId>,
    /// Batch up to which data may be reachable from unreadable nodes; see the module documentation. 0 if all
    /// nodes were read.
    horizon: u64,
    /// Number of nodes that were visited.
    visited: u64,
}

impl MarkResult {
    /// Totals of the segments that have live slots.
    pub fn live(&self) -> &BTreeMap<SegmentId, Live> {
        &self.counts.live
    }

    /// Totals of a segment, to correct the bytes that the live slots of a moved segment take now.
    pub fn live_mut(&mut self, segment: SegmentId) -> Option<&mut Live> {
        self.counts.live.get_mut(&segment)
    }

    /// Returns the live slots of a segment.
    pub async fn slots(&self, segment: SegmentId) -> Result<RoaringBitmap> {
        self.counts.live_slots(segment, &self.scratch).await
    }

    /// Number of nodes that were visited.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    #[cfg(test)]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Number of distinct live blocks.
    pub fn blocks(&self) -> u64 {
        self.counts.blocks
    }

    /// Determines the horizon. `opened_at` is the last batch of history when the pool was opened.
    pub fn set_horizon(&mut self, table: &SegmentTable, opened_at: u64) {
        // A segment without a record has lost the record through damage, so it was written before the pool
        // was opened.
        // An image of the cluster refers to no segment of the pool.
        let last_seq = |segment: &SegmentId| table.get(*segment).map_or(opened_at, |r| r.last_seq);
        let of_pool = self.unreadable.iter().filter(|segment| !segment.is_of_image());
        self.horizon = of_pool.map(last_seq).max().unwrap_or(0);
    }

    /// Whether a segment may hold live slots that the mark could not find.
    pub fn is_uncertain(&self, record: &SegmentRecord) -> bool {
        record.first_seq <= self.horizon
    }

    /// Whether a segment that is in no table may hold live slots.
    pub fn may_be_in_use(&self, segment: SegmentId) -> bool {
        self.horizon > 0 || self.counts.live.contains_key(&segment)
    }

    /// The segments of images of the cluster with live slots; `None` if a node was not read, which may refer
    /// to others.
    pub fn image_segments(&self) -> Option<BTreeSet<SegmentId>> {
        let live = self.counts.live.range(SegmentId(SegmentId::FIRST_OF_IMAGES)..);
        self.unreadable.is_empty().then(|| live.map(|(segment, _)| *segment).collect())
    }

    /// The counts for the next mark, unless they are incomplete.
    pub fn into_counts(self) -> Option<Counts> {
        (self.unreadable.is_empty() && self.counts.is_in_memory()).then_some(self.counts)
    }
}

/// Makes marks.
pub(super) struct Mark<'a> {
    pub reader: &'a Reader,
    pub committer: &'a Committer,
    pub scratch: &'a Arc<Scratch>,
    /// Called from time to time with the number of nodes visited.
    pub progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Mark<'_> {
    /// Finds the live slots, beginning with the counts of the last mark if there are any.
    pub async fn find(&self, taken: &Taken, kept: Option<Counts>) -> Result<MarkResult> {
        if let Some(counts) = kept {
            match self.count(taken, counts, Purpose::Difference).await {
                Ok(found) => return Ok(found),
                Err(Stop::Failed(e)) => return Err(e),
                Err(why) => {
                    tracing::warn!(?why, "the counts of the last mark cannot be used: a full mark follows")
                }
            }
        }
        self.count(taken, Counts::default(), Purpose::Full).await.map_err(|stop| match stop {
            Stop::Failed(e) => e,
            // Nothing is subtracted in a full mark, and a full mark has no limit.
            Stop::Doubtful | Stop::TooMany => Error::Damaged("the counts of a mark".into()),
        })
    }

    async fn count(&self, taken: &Taken, mut counts: Counts, purpose: Purpose) -> Walked<MarkResult> {
        let roots = counts.replace_disks(taken)?;
        let mut walk = Walk::new(self.tools(), &mut counts, purpose, self.progress);
        walk.run(roots).await?;
        let (visited, unreadable) = (walk.visited, std::mem::take(&mut walk.unreadable));
        counts.marks += 1;
        counts.credit += visited.max(MARK_CREDIT);
        let (damaged, damaged_maps) = self.damaged_disks(&counts, &unreadable).await?;
        Ok(MarkResult {
            counts,
            scratch: self.scratch.clone(),
            disks: HashMap::default(),
            mapped: 0,
            logical_bytes: taken.checkpoint.disks.iter().map(|d| d.size).sum(),
            damaged,
            damaged_maps,
            unreadable: unreadable.iter().map(|u| u.node.at.addr.segment).collect(),
            horizon: 0,
            visited,
        })
    }

    fn tools(&self) -> Tools<'_> {
        Tools { reader: self.reader, committer: self.committer, scratch: self.scratch }
    }

    /// The disks whose maps reach unreadable nodes, and those among them whose maps reach corrupt nodes.
    async fn damaged_disks(
        &self,
        counts: &Counts,
        unreadable: &[Unreadable],
    ) -> Result<(BTreeSet<DiskId>, BTreeSet<DiskId>)> {
        let (mut damaged, mut corrupt) = (BTreeSet::new(), BTreeSet::new());
        for (id, root) in counts.roots() {
            let Some(root) = root else { continue };
            for node in unreadable {
                if corrupt.contains(&id) {
                    break;
                }
                if let Some(is_damaged) = self.reaches(root, node).await? {
                    damaged.insert(id);
                    if is_damaged {
                        corrupt.insert(id);
                    }
                }
            }
        }
        Ok((damaged, corrupt))
    }

    /// Whether the map below `root` cannot be read at the index of an unreadable node; if it cannot, whether
    /// it is damaged there.
    async fn reaches(&self, root: NeedNode, unreadable: &Unreadable) -> Result<Option<bool>> {
        self.reader.context().check_running()?;
        let mut next = Some(root);
        while let Some(need) = next {
            if need.at.addr == unreadable.node.at.addr {
                return Ok(Some(unreadable.is_damaged));
            }
            let loaded = self.reader.nodes.read_uncached(&[need]).await.pop();
            let node = match loaded
                .map(|loaded| loaded.map_err(|e| self.reader.source.not_found_is_corruption(e)))
            {
                Some(Ok(node)) => node,
                Some(Err(Error::Damaged(_) | Error::Format(_))) => return Ok(Some(true)),
                Some(Err(Error::Store(_))) => return Ok(Some(false)),
                Some(Err(e)) => return Err(e),
                None => return Ok(None),
            };
            let base = node.stored_base().is_some_and(|base| base.at.addr == unreadable.node.at.addr);
            if base {
                return Ok(Some(unreadable.is_damaged));
            }
            next = node.child_towards(&unreadable.node);
        }
        Ok(None)
    }

    /// Determines the space of the disks. The caller has corrected the bytes of moved segments.
    pub async fn add_up(&self, found: &mut MarkResult) -> Result<()> {
        let roots: Vec<_> = found.counts.roots().collect();
        let mut disks = Vec::new();
        for (id, root) in roots {
            let mapped = found.counts.mapped(id, self.scratch).await?;
            disks.push((found.counts.exclusive.get(&id).map_or(0, |e| e.mark), id, root, mapped));
        }
        // The disks with the oldest figure are first.
        disks.sort_unstable_by_key(|(mark, id, ..)| (*mark, *id));
        for (_, id, root, _) in &disks {
            if !self.add_up_exclusive(&mut found.counts, *id, *root).await? {
                break;
            }
            yield_now().await;
        }
        found.mapped = disks.iter().map(|(.., mapped)| mapped).sum();
        let known = disks.iter().filter_map(|(_, id, _, mapped)| {
            let (exclusive_bytes, exclusive_as_of_ms) = found.counts.exclusive.get(id)?.found?;
            let mapped_bytes = mapped * BLOCK as u64;
            Some((*id, DiskSpace { mapped_bytes, exclusive_bytes, exclusive_as_of_ms }))
        });
        found.disks = known.collect();
        Ok(())
    }

    /// Determines the exclusive space of a disk. Returns false if that has to wait for a later mark.
    async fn add_up_exclusive(
        &self,
        counts: &mut Counts,
        id: DiskId,
        root: Option<NeedNode>,
    ) -> Result<bool> {
        let old = counts.exclusive.get(&id).copied().unwrap_or_default();
        if old.cost >= counts.credit {
            return Ok(false);
        }
        let purpose = Purpose::Trial { nodes: counts.credit };
        let mut walk = Walk::new(self.tools(), counts, purpose, &|_| ());
        let ended = walk.run(root.iter().map(|root| root_delta(root, -1, false)).collect()).await;
        let (visited, freed) = (walk.visited, walk.freed);
        counts.credit = counts.credit.saturating_sub(visited + 1);
        let (cost, found) = match ended {
            Ok(()) => (visited, Some((freed, self.reader.context().host.unix_ms()))),
            Err(Stop::TooMany) => (visited * 2, old.found),
            // Possible only with damage.
            Err(Stop::Doubtful) => (visited, old.found),
            Err(Stop::Failed(e)) => return Err(e),
        };
        counts.exclusive.insert(id, Exclusive { mark: counts.marks, cost, found });
        Ok(!matches!(ended, Err(Stop::TooMany)))
    }
}
