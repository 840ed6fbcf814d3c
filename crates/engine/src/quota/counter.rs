//! Counts the blocks that volumes occupy.
//!
//! A volume is counted leaf by leaf. Each step sees the volume's buffers and its map at one moment, under the
//! locks of both, and corrects the blocks of one leaf; or it skips a subtree that is empty or shared with
//! the origin. Writes between the steps change the set themselves. So the set is correct below the blocks
//! that were counted, whatever clients do at the same time. Nodes that are not in memory are read between the
//! steps.
//!
//! Then its snapshots are counted: each with the blocks that neither the next snapshot nor the volume has.
//! For the newest snapshot, the steps also determine which blocks of the volume were written since.
//!
//! A part of a map that cannot be read counts as not occupied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{DiskId, FANOUT, MapValue};
use forebay_store::StoreError;
use hashbrown::HashSet;
use tokio::task::yield_now;

use crate::Error;
use crate::buffer::Buffers;
use crate::catalogue::{Catalogue, disk_by_id, snapshots_of};
use crate::disk::Disk;
use crate::limits::READ_RETRIES;
use crate::map::{NeedNode, NodeCache, Tree};
use crate::read::Reader;
use crate::sync::{Mutex, RwLock};

/// Steps after which other tasks run.
pub(super) const TURN: u64 = 32;

#[derive(Default)]
struct Queue {
    disks: VecDeque<Arc<Disk>>,
    /// The ids of all disks in `disks`.
    ids: HashSet<DiskId>,
    /// Whether the task that counts is running.
    is_running: bool,
}

/// Counts the blocks that volumes occupy, one volume at a time; see the module documentation.
pub(crate) struct Counter {
    reader: Arc<Reader>,
    catalogue: Arc<RwLock<Catalogue>>,
    queue: Mutex<Queue>,
}

impl Counter {
    pub fn new(reader: Arc<Reader>, catalogue: Arc<RwLock<Catalogue>>) -> Counter {
        Counter { reader, catalogue, queue: Mutex::default() }
    }

    /// Requests that a volume be counted. If it is being counted, the count begins again.
    pub fn request(self: &Arc<Counter>, disk: Arc<Disk>) {
        disk.occupied.begin();
        let mut queue = self.queue.lock();
        if queue.ids.insert(disk.id()) {
            queue.disks.push_back(disk);
        }
        if !std::mem::replace(&mut queue.is_running, true) {
            let counter = self.clone();
            self.reader.context().host.spawn("quota", Box::pin(async move { counter.count_all().await }));
        }
    }

    async fn count_all(self: &Arc<Counter>) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                let next = queue.disks.pop_front();
                queue.is_running = next.is_some();
                next.iter().for_each(|disk| _ = queue.ids.remove(&disk.id()));
                next
            };
            let Some(disk) = next else { return };
            self.count(&disk).await;
            yield_now().await;
        }
    }

    /// Counts a volume and its snapshots. Ends early if its tenant has no quota any more or the pool stops.
    async fn count(self: &Arc<Counter>, disk: &Arc<Disk>) {
        let origin = disk.record().origin.and_then(|origin| disk_by_id(&self.catalogue, origin));
        // The map of the origin is cloned, so that only one tree is locked at a time.
        let base = || origin.as_ref().map(|origin| origin.tree.read().clone());
        add_buffered(disk);
        if !self.each_leaf(disk, |block| self.step(disk, base().as_ref(), block)).await {
            return;
        }
        let snapshots = snapshots_of(&self.catalogue, disk.id());
        for pair in snapshots.windows(2) {
            let [older, newer] = pair else { continue };
            let kept =
                |block| self.kept_step(older, &newer.tree.read().clone(), None, base().as_ref(), block);
            if !self.each_leaf(disk, kept).await {
                return;
            }
        }
        if let Some(newest) = snapshots.last() {
            let is_newest =
                || disk.occupied.newest().is_some_and(|kept| Arc::ptr_eq(&kept, &newest.occupied));
            let step = |block| match is_newest() {
                true => self.newest_step(disk, newest, base().as_ref(), block),
                false => Ok(u64::MAX),
            };
            if !self.each_leaf(disk, step).await {
                return;
            }
            if !is_newest() {
                // A further snapshot was made, so the count begins again.
                return self.request(disk.clone());
            }
        }
        if !self.queue.lock().ids.contains(&disk.id()) {
            disk.occupied.complete();
        }
    }

    /// Calls `step` with the first block of each part of the map, and loads the nodes that `step` needs.
    /// Returns false if the volume need not be counted any more.
    async fn each_leaf(&self, disk: &Disk, step: impl Fn(u64) -> Result<u64, NeedNode>) -> bool {
        let (mut block, mut steps, mut tries) = (0, 0u64, 0);
        while disk.occupied.has_quota() && block < disk.tree.read().blocks() {
            block = match step(block) {
                Ok(next) => next,
                Err(need) => match self.reader.nodes.load(need).await {
                    Ok(_) => block,
                    Err(Error::Latched(_) | Error::Closed | Error::Fenced) => return false,
                    // The node's segment was freed after the look-up: the node was moved or replaced.
                    Err(Error::Store(StoreError::NotFound(_))) if tries < READ_RETRIES => {
                        tries += 1;
                        block
                    }
                    Err(e) => {
                        tracing::warn!(disk = %disk.record().name, "cannot count a part of a volume: {e}");
                        need.last_block() + 1
                    }
                },
            };
            steps += 1;
            if steps.is_multiple_of(TURN) {
                yield_now().await;
                if self.reader.context().check_running().is_err() {
                    return false;
                }
            }
        }
        true
    }

    /// Counts the blocks from `block` on, up to the end of their leaf, or skips a subtree. Returns the first
    /// block that remains.
    fn step(&self, disk: &Disk, base: Option<&Tree>, block: u64) -> Result<u64, NeedNode> {
        let nodes = &self.reader.nodes.cache;
        let buffers = disk.buffers.lock();
        let tree = disk.tree.read();
        let end = tree.shared_until(nodes, base, block)?;
        if end > block && !disk.occupied.has_any(block..end) {
            return Ok(end);
        }
        let end = (block / FANOUT as u64 + 1) * FANOUT as u64;
        let (mut own, mut inherited) = ([MapValue::Hole; FANOUT], [MapValue::Hole; FANOUT]);
        let len = (end - block) as usize;
        if let (_, Some(need)) = tree.get_range(nodes, block, &mut own[..len]) {
            return Err(need);
        }
        if let Some(base) = base
            && let (_, Some(need)) = base.get_range(nodes, block, &mut inherited[..len])
        {
            return Err(need);
        }
        let is_stored = |i: usize| matches!(own[i], MapValue::At(_)) && own[i] != inherited[i];
        let occupied =
            (0..len).filter(|i| buffers.has_data(block + *i as u64).unwrap_or_else(|| is_stored(*i)));
        disk.occupied.correct(block..end, occupied.map(|i| block + i as u64));
        Ok(end)
    }

    /// Determines which blocks only a snapshot keeps, from `block` on up to the end of its leaf: the blocks
    /// that are not in the next snapshot, or in the volume after the newest snapshot; for the volume, its
    /// buffers are given. It may skip a subtree. Returns the first block that remains.
    fn kept_step(
        &self,
        snapshot: &Disk,
        newer: &Tree,
        buffers: Option<&Buffers>,
        base: Option<&Tree>,
        block: u64,
    ) -> Result<u64, NeedNode> {
        let nodes = &self.reader.nodes.cache;
        let older = snapshot.tree.read().clone();
        if block >= older.blocks() {
            return Ok(u64::MAX);
        }
        let leaf = block / FANOUT as u64 * FANOUT as u64;
        let shared = older.shared_until(nodes, Some(newer), block)?;
        // A step ends at the first leaf with a block in the buffers.
        let buffered =
            |range| buffers.and_then(|b| b.runs(range).into_iter().map(|(run, _)| run.start).min());
        let end = buffered(block..shared).map_or(shared, |first| first / FANOUT as u64 * FANOUT as u64);
        if end > block {
            snapshot.occupied.correct(block..end, std::iter::empty());
            return Ok(end);
        }
        let end = leaf + FANOUT as u64;
        let own = leaf_values(nodes, Some(&older), block..end)?;
        let (next, inherited) =
            (leaf_values(nodes, Some(newer), block..end)?, leaf_values(nodes, base, block..end)?);
        let is_buffered = |b| buffers.is_some_and(|buffers| buffers.has_data(b).is_some());
        let is_kept = |(i, b): (usize, u64)| {
            matches!(own[i], MapValue::At(_))
                && own[i] != inherited[i]
                && (own[i] != next[i] || is_buffered(b))
        };
        let kept = (block..end).enumerate().filter(|at| is_kept(*at)).map(|(_, b)| b);
        snapshot.occupied.correct(block..end, kept);
        Ok(end)
    }

    /// Works like [`Counter::kept_step`] for the newest snapshot of a volume; also determines which blocks of
    /// the volume were written since.
    fn newest_step(
        &self,
        disk: &Disk,
        newest: &Disk,
        base: Option<&Tree>,
        block: u64,
    ) -> Result<u64, NeedNode> {
        let nodes = &self.reader.nodes.cache;
        let buffers = disk.buffers.lock();
        let tree = disk.tree.read().clone();
        let older = newest.tree.read().clone();
        let end = self.kept_step(newest, &tree, Some(&buffers), base, block)?;
        let shared = tree.shared_until(nodes, Some(&older), block)?;
        let buffered = buffers.runs(block..shared).into_iter().map(|(run, _)| run.start).min();
        let same = buffered.map_or(shared, |first| first / FANOUT as u64 * FANOUT as u64).min(end);
        if same > block {
            disk.occupied.correct_written(&newest.occupied, block..same, std::iter::empty());
            return Ok(same);
        }
        let end = (block / FANOUT as u64 + 1) * FANOUT as u64;
        let (now, then) =
            (leaf_values(nodes, Some(&tree), block..end)?, leaf_values(nodes, Some(&older), block..end)?);
        let written = (block..end).enumerate().filter(|(i, b)| match buffers.has_data(*b) {
            Some(has_data) => has_data,
            None => matches!(now[*i], MapValue::At(_)) && now[*i] != then[*i],
        });
        disk.occupied.correct_written(&newest.occupied, block..end, written.map(|(_, b)| b));
        Ok(end)
    }
}

/// What a map has for blocks of one leaf; holes without a map.
pub(super) fn leaf_values(
    nodes: &NodeCache,
    map: Option<&Tree>,
    blocks: Range<u64>,
) -> Result<[MapValue; FANOUT], NeedNode> {
    let mut values = [MapValue::Hole; FANOUT];
    let len = (blocks.end - blocks.start) as usize;
    match map.and_then(|map| map.get_range(nodes, blocks.start, &mut values[..len]).1) {
        Some(need) => Err(need),
        None => Ok(values),
    }
}

/// Adds the blocks in the buffers of a volume, which may reach the map only after a long time.
fn add_buffered(disk: &Disk) {
    let buffers = disk.buffers.lock();
    let runs: Vec<Range<u64>> = {
        let all = buffers.runs(0..u64::MAX).into_iter();
        all.filter(|(_, zeroes)| zeroes.is_none()).map(|(run, _)| run).collect()
    };
    for run in runs {
        disk.occupied.correct(run.clone(), run.filter(|block| buffers.has_data(*block) == Some(true)));
    }
}
