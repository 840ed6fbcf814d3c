//! Reads what a commit needs before the commit needs it.
//!
//! A commit changes map nodes, and completes blocks that were written partially. Nodes and base blocks that
//! are not in memory have to be read, and while the log is locked every flush of every disk waits. So that a
//! guest with scattered writes does not stall all other guests:
//!
//! - **Cold writes are limited.** A write is *cold* if its map nodes are not in memory, or if it covers a
//!   block partially and the base of this block (its present content) is not in memory. A cold write is
//!   accepted at once while its disk has fewer than [`COLD_BLOCKS`] cold blocks outstanding. The next write
//!   to this disk waits until a task has read the nodes and bases of the outstanding blocks ([`COLD_READS`]
//!   at a time, since other disks use the store too).
//! - **The commit reads before it locks.** It examines all dirty buffers, reads the missing nodes and bases,
//!   many at a time, and holds the nodes so that the cache cannot evict them. Under the lock it repeats this
//!   for the writes that were accepted since then, which are few.
//!
//! All of this is best effort: a node or block that cannot be read here is read again by the commit or the
//! read that needs it, which classifies the failure ([`crate::read::damage`]).
//!
//! [`COLD_BLOCKS`]: crate::limits::COLD_BLOCKS
//! [`COLD_READS`]: crate::limits::COLD_READS

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, DiskId, FANOUT, MapValue};
use futures_util::future::join_all;
use hashbrown::HashMap;

use crate::buffer::{ALL_SECTORS, BlockBox};
use crate::cache::Owner;
use crate::disk::Disk;
use crate::hash::BuildU64Hasher;
use crate::limits::{CHUNK_BLOCKS, WARM_ROUNDS};
use crate::lost::is_lost;
use crate::map::{Held, NeedNode, NodeCache, Touch};
use crate::read::{Gap, ReadMode, Reader};

/// Disks with the upcoming changes to their maps, as returned by [`by_leaf`].
pub(crate) type Touched = Vec<(Arc<Disk>, Vec<Touch>)>;

/// The nodes and blocks that were read ahead for a group. They stay in memory until this value is dropped.
pub(crate) struct Warm<'a> {
    reader: &'a Reader,
    held: Held<'a>,
    /// Bases of partial writes, each with its reference in the map when it was read.
    bases: HashMap<(DiskId, u64), (BlockRef, BlockBox)>,
}

/// A base of a partial write that is to be read.
struct Wanted {
    block: u64,
    target: BlockRef,
}

impl<'a> Warm<'a> {
    pub fn new(reader: &'a Reader) -> Warm<'a> {
        Warm { held: Held::new(&reader.nodes.cache), bases: HashMap::new(), reader }
    }

    /// Reads the nodes and bases that these changes need, with at most `at_once` concurrent reads.
    pub async fn read_ahead(&mut self, touched: Touched, at_once: usize) {
        let mut todo: Vec<(&Arc<Disk>, Touch)> =
            touched.iter().flat_map(|(disk, touches)| touches.iter().map(move |t| (disk, *t))).collect();
        for _ in 0..WARM_ROUNDS {
            let mut needs = BTreeMap::new();
            let mut missing = Vec::new();
            for some in todo.chunks(CHUNK_BLOCKS) {
                for (disk, touch) in some {
                    if let Err(need) = disk.tree.read().hold(&mut self.held, *touch) {
                        needs.insert(need.at.addr.to_u64(), need);
                        missing.push((*disk, *touch));
                    }
                }
            }
            let needs: Vec<NeedNode> = needs.into_values().collect();
            if needs.is_empty() || !self.reader.nodes.load_and_hold(&needs, &mut self.held, at_once).await {
                break;
            }
            todo = missing;
        }
        self.read_bases_ahead(&touched, at_once).await;
    }

    /// Reads ahead the stored blocks on which partial writes are based.
    async fn read_bases_ahead(&mut self, touched: &Touched, at_once: usize) {
        let mut jobs: Vec<(&Arc<Disk>, Vec<Wanted>)> = Vec::new();
        for (disk, touches) in touched {
            let mut wanted: Vec<Wanted> = Vec::new();
            for touch in touches.iter().filter(|t| t.is_read) {
                let Ok(Some(target)) = base_at(&self.reader.nodes.cache, disk, touch.block) else {
                    continue;
                };
                let key = (disk.id(), touch.block);
                if self.bases.get(&key).is_some_and(|(at, _)| *at == target) {
                    continue;
                }
                // The block is copied, since the cache may evict it before the commit needs it.
                let mut page = Box::new([0; BLOCK]);
                if self.reader.cache.probe(target.addr, 0, &mut page[..], Owner::of(disk.id())) {
                    self.bases.insert(key, (target, page));
                } else {
                    wanted.push(Wanted { block: touch.block, target });
                }
            }
            wanted.sort_unstable_by_key(|w| (w.target.addr.to_u64(), w.block));
            while !wanted.is_empty() {
                let rest = wanted.split_off(wanted.len().min(at_once));
                jobs.push((disk, std::mem::replace(&mut wanted, rest)));
            }
        }
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() {
            let (mut some, mut reads) = (Vec::new(), 0);
            while let Some(job) =
                jobs.next_if(|(_, wanted)| some.is_empty() || reads + wanted.len() <= at_once)
            {
                reads += job.1.len();
                some.push(read_bases(self.reader, job.0, job.1));
            }
            self.bases.extend(join_all(some).await.into_iter().flatten());
        }
    }

    /// The base of a partial write, if it was read ahead and the map still references it.
    pub fn base(&self, disk: &Disk, block: u64) -> Option<BlockBox> {
        let (at, page) = self.bases.get(&(disk.id(), block))?;
        let now = base_at(&self.reader.nodes.cache, disk, block).ok()??;
        (now == *at).then(|| page.clone())
    }
}

/// The reference of the base of a partial write; `None` if no block is stored there.
pub(super) fn base_at(nodes: &NodeCache, disk: &Disk, block: u64) -> Result<Option<BlockRef>, NeedNode> {
    let tree = disk.tree.read();
    if block >= tree.blocks() {
        return Ok(None);
    }
    match tree.get(nodes, block)? {
        MapValue::At(target) if !is_lost(&target) => Ok(Some(target)),
        _ => Ok(None),
    }
}

/// Reads several bases of one disk. Returns none of them if a read fails.
async fn read_bases(
    reader: &Reader,
    disk: &Disk,
    wanted: Vec<Wanted>,
) -> Vec<((DiskId, u64), (BlockRef, BlockBox))> {
    let mut pages = vec![0; wanted.len() * BLOCK];
    let gap = |(i, wanted): (usize, &Wanted)| {
        let (block, target) = (wanted.block, wanted.target);
        Gap { block, at: i * BLOCK, within: 0..BLOCK, have: !ALL_SECTORS, target }
    };
    let gaps = wanted.iter().enumerate().map(gap).collect();
    if reader.fill_gaps(disk, gaps, &mut pages, 0, ReadMode::Wait).await.is_err() {
        return Vec::new();
    }
    let pages = pages.chunks_exact(BLOCK).filter_map(|page| BlockBox::try_from(Box::<[u8]>::from(page)).ok());
    wanted.iter().zip(pages).map(|(w, page)| ((disk.id(), w.block), (w.target, page))).collect()
}

/// Merges touches: the result has one touch for each leaf, and one for each base that is read. It is sorted.
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
