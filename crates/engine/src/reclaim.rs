//! Freeing segments in which nothing is live: mark, then delete.
//!
//! **The argument.** The mark begins with a checkpoint and walks everything that it reaches. A segment may go if
//! all its batches are covered by that checkpoint and nothing reached lies in it. What the pool does meanwhile
//! cannot bring a dead segment back: new data goes to segments that the checkpoint does not know, and clones,
//! rollbacks and resets share what some disk of the checkpoint reached. Both superblock copies name this
//! checkpoint before anything is deleted, so the loss of either copy harms nothing. A read that looked its
//! block up before the deletion finds the segment gone and looks again.
//!
//! Each distinct node is walked once, however many clones share it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::SegmentId;
use forebay_store::Store;
use hashbrown::HashSet;

use crate::checkpoint::Taken;
use crate::hash::BuildU64Hasher;
use crate::map::{NeedNode, Ref, Tree};
use crate::pool::Pool;
use crate::{Error, GcProgress, Result};

impl Pool {
    /// Finds what is live and frees the rest; returns the bytes freed. `progress` is told now and then.
    pub async fn reclaim(&self, progress: &(dyn Fn(GcProgress) + Send + Sync)) -> Result<u64> {
        progress(GcProgress::default());
        let _alone = self.upkeep.lock.lock().await;
        self.log.lock().await.barrier = Some(Default::default());
        let reclaimed = self.mark_and_free().await;
        self.log.lock().await.barrier = None;
        reclaimed
    }

    async fn mark_and_free(&self) -> Result<u64> {
        let taken = self.make_checkpoint().await?;
        let live = self.mark(&taken).await?;
        let (dead, orphans) = self.dead_segments(&taken, &live).await?;
        if dead.is_empty() && orphans.is_empty() {
            return Ok(0);
        }
        {
            let mut log = self.log.lock().await;
            log.swap_superblock(|_| {}).await.map_err(|e| {
                let e = Error::from(e);
                self.latch(&e);
                e
            })?;
        }
        let mut freed = 0;
        for (id, bytes) in dead.into_iter().chain(orphans) {
            self.store.delete(id).await?;
            freed += bytes;
        }
        tracing::info!(bytes = freed, "segments freed");
        self.check_space().await?;
        Ok(freed)
    }

    /// Segments in which something lies that the checkpoint reaches.
    async fn mark(&self, taken: &Taken) -> Result<BTreeSet<SegmentId>> {
        let mut mark = Mark::default();
        mark.live.extend(Pool::blob_segments(&self.log.lock().await.superblock().blobs));
        for tree in &taken.trees {
            mark.walk(self, tree).await?;
        }
        Ok(mark.live)
    }

    /// Segments of the table that may go, and objects that are in no table; with their bytes.
    async fn dead_segments(
        &self,
        taken: &Taken,
        live: &BTreeSet<SegmentId>,
    ) -> Result<(BTreeMap<SegmentId, u64>, BTreeMap<SegmentId, u64>)> {
        let objects = self.store.list().await?;
        let mut log = self.log.lock().await;
        // What was referred to since the mark began lives, whatever the mark found.
        let revived: BTreeSet<SegmentId> =
            log.barrier.iter().flatten().map(|addr| SegmentId((addr >> 24) as u32)).collect();
        let covered = |id: &SegmentId| {
            let record = log.table().get(id)?;
            let dead = record.last_seq <= taken.head.seq
                && !log.is_open(*id)
                && !live.contains(id)
                && !revived.contains(id);
            dead.then_some((*id, record.written as u64))
        };
        let dead: BTreeMap<_, _> = log.table().keys().filter_map(covered).collect();
        let orphan = |id: SegmentId| {
            id.0 < taken.checkpoint.next_segment && !log.table().contains_key(&id) && !live.contains(&id)
        };
        let orphans = objects.iter().filter(|o| orphan(o.id)).map(|o| (o.id, o.len)).collect();
        dead.keys().for_each(|id| log.forget(*id));
        Ok((dead, orphans))
    }
}

#[derive(Default)]
struct Mark {
    live: BTreeSet<SegmentId>,
    seen: HashSet<u64, BuildU64Hasher>,
    todo: Vec<NeedNode>,
}

impl Mark {
    async fn walk(&mut self, pool: &Pool, tree: &Tree) -> Result<()> {
        tree.root().into_iter().for_each(|r| self.note(r));
        while let Some(need) = self.todo.pop() {
            let node = pool.load_node(need).await?;
            node.references(|r| self.note(r));
        }
        Ok(())
    }

    fn note(&mut self, reference: Ref) {
        match reference {
            Ref::Block(block) => {
                self.live.insert(block.addr.segment);
            }
            Ref::Node(need) | Ref::Base(need) => {
                self.live.insert(need.at.addr.segment);
                if self.seen.insert(need.at.addr.to_u64()) {
                    self.todo.push(need);
                }
            }
            // The trees of a checkpoint are stored; what of them is still in memory refers to the same.
            Ref::Memory(dirty) => {
                if let Some(at) = dirty.stored() {
                    self.live.insert(at.addr.segment);
                    if !self.seen.insert(at.addr.to_u64()) {
                        return;
                    }
                }
                dirty.references(|r| self.note(r));
            }
        }
    }
}
