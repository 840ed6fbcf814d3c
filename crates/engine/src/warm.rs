//! Reading what a commit needs before it needs it.
//!
//! A commit changes map nodes, and completes blocks that were written in part. What of that is not in memory has to be
//! read, and while the log is locked every flush of every disk waits. So that one guest with scattered writes does not
//! stall all others:
//!
//! - **Writes are admitted by what they need.** A write whose nodes, or whose base where it covers a block in part, are
//!   not in memory is *cold*. It is accepted at once as long as its disk has fewer than [`COLD_BLOCKS`] of them
//!   outstanding; the next write to that disk waits until a task has read what they need ([`COLD_READS`] at a time, as
//!   others use the store, too).
//! - **The commit reads before it locks.** It looks through all that is dirty, reads what is missing, many at a time, and
//!   holds the nodes so that the cache cannot evict them. Under the lock it does so again for what was written meanwhile,
//!   which is little.
//!
//! All of this is best effort: what cannot be read here is read again by the commit or the read that needs it, and judged there
//! ([`crate::damage`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, DiskId, FANOUT, MapValue};
use futures_util::future::join_all;
use hashbrown::HashMap;

use crate::buffer::{ALL_SECTORS, Page};
use crate::commit::Group;
use crate::damage::is_lost;
use crate::hash::BuildU64Hasher;
use crate::limits::{CHUNK_BLOCKS, COLD_BLOCKS, COLD_READS, WARM_ROUNDS};
use crate::map::{Held, NeedNode, Touch};
use crate::pool::Pool;
use crate::read::{Gap, How};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::volume::Volume;

/// Disks with the places in their maps that are about to change, as [`by_leaf`] gives them.
pub(crate) type Touched = Vec<(Arc<Volume>, Vec<Touch>)>;

/// What was read ahead for a group, and is kept until that is done.
pub(crate) struct Warm<'a> {
    held: Held<'a>,
    /// Blocks beneath partial writes, with what the map said of each when it was read.
    bases: HashMap<(DiskId, u64), (BlockRef, Page)>,
}

/// A block beneath a partial write that is to be read.
struct Wanted {
    block: u64,
    target: BlockRef,
}

impl Pool {
    pub(crate) fn warm(&self) -> Warm<'_> {
        Warm { held: Held::new(&self.nodes), bases: HashMap::new() }
    }

    /// What is dirty now and will be in the next group.
    pub(crate) fn touched(&self) -> Touched {
        let disks = self.commit.disks.lock().clone();
        disks.into_iter().map(|v| (v.clone(), by_leaf(v.buffers.lock().active().touched()))).collect()
    }

    /// What a group changes.
    pub(crate) fn touched_by(&self, group: &Group) -> Touched {
        group.frozen.iter().map(|(v, frozen)| (v.clone(), by_leaf(frozen.touched()))).collect()
    }

    /// Reads what changes at these places need, with at most `at_once` reads at a time.
    pub(crate) async fn warm_up(&self, touched: Touched, warm: &mut Warm<'_>, at_once: usize) {
        let mut todo: Vec<(&Arc<Volume>, Touch)> =
            touched.iter().flat_map(|(v, touches)| touches.iter().map(move |t| (v, *t))).collect();
        for _ in 0..WARM_ROUNDS {
            let mut needs = BTreeMap::new();
            let mut left = Vec::new();
            for some in todo.chunks(CHUNK_BLOCKS) {
                for (volume, touch) in some {
                    if let Err(need) = volume.tree.read().hold(&mut warm.held, *touch) {
                        needs.insert(need.at.addr.to_u64(), need);
                        left.push((*volume, *touch));
                    }
                }
            }
            let needs: Vec<NeedNode> = needs.into_values().collect();
            if needs.is_empty() || !self.load_and_hold(&needs, &mut warm.held, at_once).await {
                break;
            }
            todo = left;
        }
        self.warm_bases(&touched, warm, at_once).await;
    }

    /// Brings the blocks beneath partial writes.
    async fn warm_bases(&self, touched: &Touched, warm: &mut Warm<'_>, at_once: usize) {
        let mut jobs: Vec<(&Arc<Volume>, Vec<Wanted>)> = Vec::new();
        for (volume, touches) in touched {
            let mut wanted: Vec<Wanted> = Vec::new();
            for touch in touches.iter().filter(|t| t.is_read) {
                let Ok(Some(target)) = self.base_at(volume, touch.block) else { continue };
                let key = (volume.id(), touch.block);
                if warm.bases.get(&key).is_some_and(|(at, _)| *at == target) {
                    continue;
                }
                // A copy, as the cache may forget it before the commit needs it.
                let mut page = Box::new([0; BLOCK]);
                if self.cache.probe(target.addr, 0, &mut page[..]) {
                    warm.bases.insert(key, (target, page));
                } else {
                    wanted.push(Wanted { block: touch.block, target });
                }
            }
            wanted.sort_unstable_by_key(|w| (w.target.addr.to_u64(), w.block));
            while !wanted.is_empty() {
                let rest = wanted.split_off(wanted.len().min(at_once));
                jobs.push((volume, std::mem::replace(&mut wanted, rest)));
            }
        }
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() {
            let (mut some, mut reads) = (Vec::new(), 0);
            while let Some(job) =
                jobs.next_if(|(_, wanted)| some.is_empty() || reads + wanted.len() <= at_once)
            {
                reads += job.1.len();
                some.push(self.read_bases(job.0, job.1));
            }
            warm.bases.extend(join_all(some).await.into_iter().flatten());
        }
    }

    /// Where the block beneath a partial write is stored; `None` where there is nothing to be read.
    fn base_at(&self, volume: &Volume, block: u64) -> Result<Option<BlockRef>, NeedNode> {
        let tree = volume.tree.read();
        if block >= tree.blocks() {
            return Ok(None);
        }
        match tree.get(&self.nodes, block)? {
            MapValue::At(target) if !is_lost(&target) => Ok(Some(target)),
            _ => Ok(None),
        }
    }

    async fn read_bases(
        &self,
        volume: &Volume,
        wanted: Vec<Wanted>,
    ) -> Vec<((DiskId, u64), (BlockRef, Page))> {
        let mut pages = vec![0; wanted.len() * BLOCK];
        let gap = |(i, wanted): (usize, &Wanted)| {
            let (block, target) = (wanted.block, wanted.target);
            Gap { block, at: i * BLOCK, within: 0..BLOCK, have: !ALL_SECTORS, target }
        };
        let gaps = wanted.iter().enumerate().map(gap).collect();
        if self.fill_gaps(volume, gaps, &mut pages, 0, How::Waiting).await.is_err() {
            return Vec::new();
        }
        let pages = pages.chunks_exact(BLOCK).filter_map(|page| Page::try_from(Box::<[u8]>::from(page)).ok());
        wanted.iter().zip(pages).map(|(w, page)| ((volume.id(), w.block), (w.target, page))).collect()
    }

    /// The block beneath a partial write, if it was read ahead and still is what the map says.
    pub(crate) fn warm_base(&self, warm: &Warm<'_>, volume: &Volume, block: u64) -> Option<Page> {
        let (at, page) = warm.bases.get(&(volume.id(), block))?;
        let now = self.base_at(volume, block).ok()??;
        (now == *at).then(|| page.clone())
    }

    /// Whether a disk has as many cold writes outstanding as it may: the next one waits.
    pub(crate) fn is_cold(&self, volume: &Volume) -> bool {
        volume.cold.count.load(Relaxed) >= COLD_BLOCKS
    }

    /// Notes which of the blocks just written are cold. Those in `partial` were written in part.
    pub(crate) fn note_cold(
        &self,
        volume: &Arc<Volume>,
        blocks: std::ops::Range<u64>,
        partial: impl Iterator<Item = u64>,
    ) {
        let mut cold: Vec<Touch> = Vec::new();
        for block in partial {
            let is_warm = match self.base_at(volume, block) {
                Ok(target) => target.is_none_or(|target| self.cache.contains(target.addr)),
                Err(_) => false,
            };
            if !is_warm && cold.last().is_none_or(|last| last.block != block) {
                cold.push(Touch { block, count: 1, is_read: true });
            }
        }
        {
            let tree = volume.tree.read();
            let (mut block, end) = (blocks.start, blocks.end.min(tree.blocks()));
            while block < end {
                let next = (block / FANOUT as u64 + 1) * FANOUT as u64;
                let touch = Touch { block, count: (next.min(end) - block) as usize, is_read: false };
                let is_known = cold.iter().any(|t| t.is_read && (block..next).contains(&t.block));
                if !is_known && !tree.is_warm(&self.nodes, touch) {
                    cold.push(touch);
                }
                block = next;
            }
        }
        if cold.is_empty() {
            return;
        }
        if volume.cold.push(cold) {
            self.commit.cold.lock().push_back(volume.clone());
        }
        self.commit.cold_wake.notify_one();
    }

    /// The task that reads what cold writes need, disk by disk.
    pub(crate) async fn warm_loop(self: Arc<Pool>) {
        loop {
            self.commit.cold_wake.notified().await;
            loop {
                let next = self.commit.cold.lock().pop_front();
                let Some(volume) = next else { break };
                let touches = volume.cold.take();
                let count = touches.len();
                let touches = by_leaf(touches);
                let mut warm = self.warm();
                self.warm_up(vec![(volume.clone(), touches)], &mut warm, COLD_READS).await;
                volume.cold.done(count);
                // Writers may wait for this.
                self.commit.progress.send_modify(|_| ());
            }
            if self.check_running().is_err() {
                return;
            }
        }
    }
}

/// One touch for each leaf, beside those of blocks that are read; in order.
pub(crate) fn by_leaf(touches: impl IntoIterator<Item = Touch>) -> Vec<Touch> {
    let mut merged = Vec::new();
    let mut leaves: HashMap<u64, Touch, BuildU64Hasher> = HashMap::default();
    for touch in touches {
        if touch.is_read {
            merged.push(touch);
        } else {
            let of_leaf = Touch { count: 0, ..touch };
            leaves.entry(touch.block / FANOUT as u64).or_insert(of_leaf).count += touch.count;
        }
    }
    merged.extend(leaves.into_values());
    merged.sort_unstable_by_key(|t| (t.is_read, t.block));
    merged
}

/// The cold writes of a disk.
#[derive(Default)]
pub(crate) struct Cold {
    touches: Mutex<Vec<Touch>>,
    /// How many there are, those being read for included.
    count: AtomicUsize,
}

impl Cold {
    /// Adds some; whether there were none that wait.
    fn push(&self, mut more: Vec<Touch>) -> bool {
        self.count.fetch_add(more.len(), Relaxed);
        let mut touches = self.touches.lock();
        let was_empty = touches.is_empty();
        touches.append(&mut more);
        was_empty
    }

    fn take(&self) -> Vec<Touch> {
        std::mem::take(&mut *self.touches.lock())
    }

    fn done(&self, count: usize) {
        self.count.fetch_sub(count, Relaxed);
    }
}
