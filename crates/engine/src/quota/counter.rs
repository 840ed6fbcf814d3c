//! Counts the blocks that volumes occupy.
//!
//! A volume is counted leaf by leaf. Each step sees the volume's buffers and its map at one moment, under the
//! locks of both, and corrects the blocks of one leaf; or it skips a subtree that is empty or shared with
//! the origin. Writes between the steps change the set themselves. So the set is correct below the blocks
//! that were counted, whatever clients do at the same time. Nodes that are not in memory are read between the
//! steps.
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
use crate::catalogue::{Catalogue, disk_by_id};
use crate::disk::Disk;
use crate::limits::READ_RETRIES;
use crate::map::{NeedNode, Tree};
use crate::read::Reader;
use crate::sync::{Mutex, RwLock};

/// Steps after which other tasks run.
const TURN: u64 = 32;

#[derive(Default)]
struct Queue {
    disks: VecDeque<Arc<Disk>>,
    /// Those of `disks`.
    ids: HashSet<DiskId>,
    /// The task that counts exists.
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

    /// Requests that a volume be counted, from the beginning if that is under way.
    pub fn request(self: &Arc<Counter>, disk: Arc<Disk>) {
        disk.occupied.begin();
        let mut queue = self.queue.lock();
        if queue.ids.insert(disk.id()) {
            queue.disks.push_back(disk);
        }
        if !std::mem::replace(&mut queue.is_running, true) {
            let counter = self.clone();
            self.reader.cx.host.spawn("quota", Box::pin(async move { counter.count_all().await }));
        }
    }

    async fn count_all(&self) {
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

    /// Counts a volume, until its tenant has no quota any more or the pool stops.
    async fn count(&self, disk: &Disk) {
        let origin = disk.record().origin.and_then(|origin| disk_by_id(&self.catalogue, origin));
        add_buffered(disk);
        let (mut block, mut steps, mut tries) = (0, 0u64, 0);
        while disk.occupied.has_quota() && block < disk.tree.read().blocks() {
            // A clone of the origin's map: only one tree is locked at a time.
            let base = origin.as_ref().map(|origin| origin.tree.read().clone());
            let step = self.step(disk, base.as_ref(), block);
            drop(base);
            block = match step {
                Ok(next) => next,
                Err(need) => match self.reader.nodes.load(need).await {
                    Ok(_) => block,
                    Err(Error::Latched(_) | Error::Closed | Error::Fenced) => return,
                    // The segment was freed after the look-up: the node was moved or replaced.
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
                if self.reader.cx.check_running().is_err() {
                    return;
                }
            }
        }
        if !self.queue.lock().ids.contains(&disk.id()) {
            disk.occupied.complete();
        }
    }

    /// Counts the blocks from `block` on, up to the end of its leaf, or skips a subtree. Returns the block
    /// after them.
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
}

/// Adds the blocks in the buffers of a volume, which the map may not have for a long time.
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
