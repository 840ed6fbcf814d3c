//! Counts the blocks that each disk uses, whether its tenant has a quota or not: blocks with data that the
//! disk does not share with its origin, the image or snapshot from which it was cloned. A snapshot has the
//! origin of its volume. Writes that are not committed yet do not count.
//!
//! **By difference.** A disk that changed is counted from a map whose number is known, by the parts in which
//! the present map differs from it. Subtrees that both maps share are skipped, so the work is proportional to
//! the number of changes; a clone that was not written costs one comparison of two roots. The known map is a
//! map of a checkpoint: it is only an address, and holds no node in memory that a write would have to copy.
//! Each checkpoint is counted once, and its map becomes the known map. Before the first count, the known map
//! is the map of the origin, because a disk uses no blocks of its origin.
//!
//! **Cost.** Nothing on the path of a request; a commit adds the number of each disk that it changed to a
//! set. The counter works for at most one part in [`PAUSE_FACTOR`] + 1 of the time of its thread, and begins
//! [`DELAY`] after the commit. So a number is some seconds old. It is older only while guests change more of
//! the maps than the counter can read in its share of the time: 1,000 leaves in a second if no leaf is
//! cached, where a leaf covers 1 MiB of a disk. Memory: some 100 bytes for each disk, 2 MB for 20,000 disks,
//! whether they have 1 TB of data or 100 TB.
//!
//! **After a start** nothing is known, and each disk is counted once from its origin. Only leaves that the
//! origin does not share are read: one for each MiB, 100 µs each (`used_by_size` in the tests measures it),
//! and thus 1 ms with the pauses. That is 20 minutes for each TB, and 30 hours for 100 TB in which no disk
//! shares a leaf with its origin. A large disk does not keep small ones waiting: disks are counted in turn,
//! [`SLICE`] steps at a time.
//!
//! A snapshot is counted after its volume, from whose map it differs little. The nodes of the maps are kept
//! in a small cache of the counter, so that a count does not evict the nodes that guests need.
//!
//! A known map may be too old: the nodes that only it has were freed. Then the disk is counted from its
//! origin again. A part of a map that cannot be read counts as not used.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{DiskId, FANOUT, MapValue};
use forebay_store::StoreError;
use hashbrown::HashSet;
use tokio::task::yield_now;

use super::counter::{TURN, leaf_values};
use crate::Error;
use crate::catalogue::{Catalogue, disk_by_id};
use crate::disk::Disk;
use crate::limits::READ_RETRIES;
use crate::map::{NeedNode, NodeCache, Tree};
use crate::read::Reader;
use crate::sync::{Mutex, RwLock};

/// From a change to the count, so that one count covers many commits.
const DELAY: Duration = Duration::from_secs(1);
/// After it has worked, the counter pauses for this many times as long.
const PAUSE_FACTOR: u32 = 9;
/// It pauses after the slice in which it has worked for this time.
const BURST: Duration = Duration::from_millis(5);

/// Steps of a disk until the next disk is counted: up to 4 GiB of its blocks.
const SLICE: u64 = 4096;
/// Maximum number of steps of the last part, between the newest checkpoint and the present map. A disk that
/// differs in more is counted after the next checkpoint: as long as the last part lasts, writes copy the
/// nodes of the map.
const LAST_PART: u64 = SLICE;
/// Budget of the cache of nodes, in bytes.
const NODES: u64 = 4 << 20;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The disks that have a job. It is removed before the last part of the job begins, so that a change
    /// during that part makes another job.
    ids: HashSet<DiskId>,
    /// The task that counts exists.
    is_running: bool,
}

/// The count of one disk.
struct Job {
    disk: DiskId,
    /// The comparison of a known map with that of a newer checkpoint, if it is under way.
    walk: Option<Walk>,
    /// The map of the volume of a snapshot cannot be used: nodes of it were freed.
    ignores_parent: bool,
}

/// The comparison of two maps, as far as it has come.
struct Walk {
    /// The origin of which the disk shares blocks.
    origin: Option<DiskId>,
    /// `None`: the map of the origin.
    from: Option<(Tree, u64)>,
    to: Tree,
    /// The blocks before this one were compared.
    at: u64,
    /// By how many blocks the second map uses more of them than the first.
    grown: i64,
}

/// Why a count ended without a result.
enum Stop {
    /// A node of a map does not exist any more.
    Stale,
    /// The store cannot be read. The number stays as it was until the disk or the checkpoint changes again.
    Failed,
    /// The pool stops.
    Closed,
}

/// Two maps of one disk, and that of its origin.
#[derive(Clone, Copy)]
struct Maps<'a> {
    from: &'a Tree,
    to: &'a Tree,
    base: Option<&'a Tree>,
}

/// Counts the blocks that disks use; see the module documentation.
pub(crate) struct UsedCounter {
    reader: Arc<Reader>,
    catalogue: Arc<RwLock<Catalogue>>,
    nodes: NodeCache,
    queue: Mutex<Queue>,
}

impl UsedCounter {
    pub fn new(reader: Arc<Reader>, catalogue: Arc<RwLock<Catalogue>>) -> UsedCounter {
        UsedCounter { reader, catalogue, nodes: NodeCache::new(NODES), queue: Mutex::default() }
    }

    /// Requests that all disks be counted, which recovery may have changed.
    pub fn request_all(self: &Arc<UsedCounter>) {
        let disks: Vec<Arc<Disk>> = self.catalogue.read().visible().cloned().collect();
        for disk in disks {
            disk.used.forget();
            self.request(disk.id());
        }
    }

    /// Requests that a disk be counted, whose map has changed.
    pub fn request(self: &Arc<UsedCounter>, disk: DiskId) {
        if self.reader.context().is_closing() {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.ids.insert(disk) {
            queue.jobs.push_back(Job { disk, walk: None, ignores_parent: false });
        }
        if !std::mem::replace(&mut queue.is_running, true) {
            let counter = self.clone();
            let task = async move { while counter.count_all().await {} };
            self.reader.context().host.spawn("used space", Box::pin(task));
        }
    }

    /// Counts the disks of the queue. Returns false if the queue is empty then, or if the pool stops.
    async fn count_all(&self) -> bool {
        let host = &self.reader.context().host;
        host.sleep(DELAY).await;
        let mut began = host.now();
        loop {
            let job = self.queue.lock().jobs.pop_front();
            let Some(job) = job else { break };
            if self.reader.context().check_running().is_err() || self.advance(job).await.is_err() {
                *self.queue.lock() = Queue::default();
                return false;
            }
            yield_now().await;
            if host.now().saturating_sub(began) >= BURST {
                self.pause(began).await;
                began = host.now();
            }
        }
        self.pause(began).await;
        let mut queue = self.queue.lock();
        queue.is_running = !queue.jobs.is_empty();
        queue.is_running
    }

    /// Pauses after work that began at `began`, in pieces, so that a pool that stops does not wait for long.
    async fn pause(&self, began: Duration) {
        let cx = self.reader.context();
        let mut left = cx.host.now().saturating_sub(began) * PAUSE_FACTOR;
        while !left.is_zero() && cx.check_running().is_ok() {
            let piece = left.min(DELAY);
            cx.host.sleep(piece).await;
            left -= piece;
        }
    }

    /// Continues the count of a disk. A job that is not at its end returns to the queue.
    async fn advance(&self, mut job: Job) -> Result<(), Stop> {
        let disk = disk_by_id(&self.catalogue, job.disk).filter(|disk| disk.role().is_visible());
        let Some(disk) = disk else {
            self.queue.lock().ids.remove(&job.disk);
            return Ok(());
        };
        for tries in 0..=READ_RETRIES {
            match self.count(&disk, &mut job, tries == READ_RETRIES).await {
                Ok(true) => break,
                Ok(false) => {
                    self.queue.lock().jobs.push_back(job);
                    break;
                }
                Err(Stop::Closed) => return Err(Stop::Closed),
                Err(Stop::Failed) => {
                    self.queue.lock().ids.remove(&job.disk);
                    break;
                }
                Err(Stop::Stale) => {
                    (job.walk, job.ignores_parent) = (None, true);
                    disk.used.set_counted(None);
                }
            }
        }
        Ok(())
    }

    /// Takes up to [`SLICE`] steps, and more if the last part follows. Returns whether the disk is counted.
    async fn count(&self, disk: &Disk, job: &mut Job, is_last_try: bool) -> Result<bool, Stop> {
        let record = disk.record();
        let parent = record.parent.and_then(|parent| disk_by_id(&self.catalogue, parent));
        let origin = parent.as_ref().map_or(record.origin, |parent| parent.record().origin);
        // A disk that gets another origin has its contents, and is counted from there.
        job.walk.take_if(|walk| walk.origin != origin);
        let base = origin.and_then(|origin| disk_by_id(&self.catalogue, origin));
        let base = base.map(|origin| origin.tree.read().clone());
        // What a snapshot has is close to what its volume has.
        let ignores_parent = job.ignores_parent;
        if let Some(parent) = parent.as_ref().filter(|_| !ignores_parent)
            && parent.used.maps().0.is_none()
            && disk.used.maps().0.is_none()
            && self.queue.lock().ids.contains(&parent.id())
        {
            return Ok(false);
        }
        let of_parent = || parent.as_ref().filter(|_| !ignores_parent)?.used.maps().0;
        let known = || disk.used.maps().0.or_else(of_parent);
        let empty = base.clone().unwrap_or_else(|| Tree::new(disk.tree.read().blocks()));
        if job.walk.is_none() {
            let is_newer = |to: &Tree| known().is_none_or(|(from, _)| !from.is_same(to));
            let to = disk.used.maps().1.filter(is_newer);
            job.walk = to.map(|to| Walk { origin, from: known(), to, at: 0, grown: 0 });
        }
        if let Some(walk) = &mut job.walk {
            let (from, blocks) = walk.from.as_ref().map_or((&empty, 0), |(map, blocks)| (map, *blocks));
            let maps = Maps { from, to: &walk.to, base: base.as_ref() };
            if !self.compare(disk, maps, (&mut walk.at, &mut walk.grown), SLICE, is_last_try).await? {
                return Ok(false);
            }
            if record.parent.is_none() && disk.record().origin != origin {
                return Ok(false);
            }
            disk.used.set_counted(Some((walk.to.clone(), blocks.saturating_add_signed(walk.grown))));
            job.walk = None;
        }
        self.queue.lock().ids.remove(&job.disk);
        let (from, blocks) = known().unwrap_or((empty, 0));
        // Writes copy the nodes that they change as long as this clone exists.
        let to = disk.tree.read().clone();
        let maps = Maps { from: &from, to: &to, base: base.as_ref() };
        let (mut at, mut grown) = (0, 0);
        let is_done = self.compare(disk, maps, (&mut at, &mut grown), LAST_PART, is_last_try).await?;
        // A disk that has got another origin has another job.
        if is_done && (record.parent.is_some() || disk.record().origin == origin) {
            disk.used.set(blocks.saturating_add_signed(grown));
        }
        Ok(true)
    }

    /// Compares two maps from block `at` on, for a number of steps, and loads the nodes that this needs.
    /// Returns whether it reached their end.
    async fn compare(
        &self,
        disk: &Disk,
        maps: Maps<'_>,
        (at, grown): (&mut u64, &mut i64),
        steps: u64,
        is_last_try: bool,
    ) -> Result<bool, Stop> {
        let end = maps.from.blocks().max(maps.to.blocks());
        let mut taken = 0;
        while *at < end && taken < steps {
            match self.step(maps, *at) {
                Ok((next, more)) => (*at, *grown) = (next, *grown + more),
                Err(need) => match self.load(need).await {
                    Ok(()) => {}
                    Err(Error::Latched(_) | Error::Closed | Error::Fenced) => return Err(Stop::Closed),
                    Err(Error::Store(StoreError::NotFound(_))) if !is_last_try => return Err(Stop::Stale),
                    Err(Error::Store(e)) if !is_of_one_place(&e) => {
                        tracing::debug!(disk = %disk.record().name, "cannot count a disk: {e}");
                        return Err(Stop::Failed);
                    }
                    Err(e) => {
                        tracing::debug!(disk = %disk.record().name, "cannot count a part of a disk: {e}");
                        *at = need.last_block() + 1;
                    }
                },
            }
            taken += 1;
            if taken.is_multiple_of(TURN) {
                yield_now().await;
                self.reader.context().check_running().map_err(|_| Stop::Closed)?;
            }
        }
        Ok(*at >= end)
    }

    /// Loads a node into the cache of the counter.
    async fn load(&self, need: NeedNode) -> crate::Result<()> {
        let node = self.reader.nodes.read_uncached(&[need]).await.pop();
        self.nodes.insert(need.at, node.expect("one node was requested")?);
        Ok(())
    }

    /// Compares the blocks from `block` on, up to the end of its leaf, or skips a subtree. Returns the block
    /// after them, and by how many of them the second map uses more.
    fn step(&self, maps: Maps<'_>, block: u64) -> Result<(u64, i64), NeedNode> {
        let Maps { from, to, base } = maps;
        let nodes = &self.nodes;
        let shared = |this: &Tree, other| match block < this.blocks() {
            true => this.shared_until(nodes, Some(other), block),
            false => Ok(u64::MAX),
        };
        let end = shared(from, to)?.min(shared(to, from)?);
        if end > block {
            return Ok((end, 0));
        }
        let end = (block / FANOUT as u64 + 1) * FANOUT as u64;
        let values = |map| leaf_values(nodes, map, block..end);
        let (from, to, base) = (values(Some(from))?, values(Some(to))?, values(base)?);
        let used = |map: &[MapValue; FANOUT]| {
            let own =
                map.iter().zip(&base).filter(|(own, base)| matches!(own, MapValue::At(_)) && own != base);
            own.count() as i64
        };
        Ok((end, used(&to) - used(&from)))
    }
}

/// Whether an error concerns one node only, so that the rest of the map can be counted.
fn is_of_one_place(e: &StoreError) -> bool {
    matches!(e, StoreError::NotFound(_)) || e.concerns_one_place()
}
