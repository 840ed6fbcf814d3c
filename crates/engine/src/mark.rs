//! The mark: which slots are live, whose they are alone, and how much each disk holds.
//!
//! A slot is live if a block map of the checkpoint reaches it: the node or block in it can be read by way of
//! some disk. Of the base of a leaf only the blocks count that the leaf does not list itself
//! ([`Node::uncovered`]); a base may stand under several leaves, and be a leaf of its own in another map:
//! what is reached in any of these ways is live.
//!
//! **It is safe beside guests**, because what they do cannot bring a dead slot back. A write makes new slots.
//! A clone, a rollback or a reset shares nodes that a disk of the checkpoint had, or that were made since. A
//! leaf never loses an entry that hides its base: to discard is to list a hole. There is one way back, a
//! reference that a commit makes to a block which is stored already; those are noted in the barrier of the
//! log, and the cleaner looks at it before it drops a slot ([`crate::clean`]).
//!
//! **Each distinct node is walked once**, however many clones share it, and once more when a second disk
//! turns out to share it: then all below is *shared*. A third walk, over the nodes that one disk has for
//! itself, adds up what only that disk holds: slots reached by one disk alone. The walk gives way to other
//! tasks after each few nodes, and holds no lock while it waits.

use std::collections::BTreeMap;

use forebay_format::{BLOCK, BlockRef, Codec, DiskId, DiskRecord, Role, SegmentId};
use futures_util::future::join_all;
use hashbrown::HashMap;
use roaring::RoaringBitmap;
use tokio::task::yield_now;

use crate::checkpoint::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::MARK_READS;
use crate::map::{NeedNode, Node, Ref, Tree};
use crate::pool::Pool;
use crate::volume::blocks;
use crate::{BoxFuture, DiskSpace, Mutation, Result};

/// The live slots of a segment.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Their numbers.
    pub slots: RoaringBitmap,
    /// Bytes that they took where they were written.
    pub bytes: u64,
    /// Bytes that they take where they rest now; the same until the segment is moved.
    pub stored: u64,
    /// How many of them an image reaches.
    pub of_images: u64,
}

/// What a mark has found.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// Live slots.
    pub live: BTreeMap<SegmentId, Live>,
    /// Distinct live blocks; the other slots are nodes.
    pub blocks: u64,
    /// What each disk holds.
    pub disks: HashMap<DiskId, DiskSpace, BuildU64Hasher>,
    /// Sizes of all disks.
    pub logical_bytes: u64,
}

/// Bytes of a block or node where it was written.
pub(crate) fn written_len(at: &BlockRef) -> u64 {
    match at.form.codec() {
        Some(Codec::Raw | Codec::Lz4) => at.form.stored_len() as u64,
        // Nothing is written as a member of a group, and damage is for its reader to find.
        _ => BLOCK as u64,
    }
}

/// Slots by segment.
#[derive(Default)]
pub(crate) struct Slots(HashMap<SegmentId, RoaringBitmap, BuildU64Hasher>);

impl Slots {
    /// Adds a slot; false if it is in here already.
    pub fn insert(&mut self, at: &BlockRef) -> bool {
        self.0.entry(at.addr.segment).or_default().insert(at.addr.slot.0)
    }
    fn has(&self, at: &BlockRef) -> bool {
        self.0.get(&at.addr.segment).is_some_and(|slots| slots.contains(at.addr.slot.0))
    }
}

/// A node that was reached.
struct Seen {
    /// The first disk that reached it.
    owner: DiskId,
    /// Others reached it, too.
    shared: bool,
    /// Blocks below.
    blocks: u64,
}

/// Why a node is walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// It was not reached before.
    New,
    /// A second disk reached it.
    Share,
    /// To add up what the disk holds alone.
    Own,
}

/// What a node says, once its base is loaded.
#[derive(Default)]
struct Said {
    blocks: Vec<BlockRef>,
    children: Vec<NeedNode>,
    base: Option<NeedNode>,
}

/// A mark under way.
pub(crate) struct Mark<'a> {
    pool: &'a Pool,
    found: Marked,
    seen: HashMap<u64, Seen, BuildU64Hasher>,
    /// Slots that several disks reach.
    shared: Slots,
    /// Slots that the disk at hand was the first to reach; in the last walk, those that it has alone.
    mine: Slots,
    disk: DiskId,
    disk_is_image: bool,
    /// Bytes that the disk at hand has alone.
    alone: u64,
}

impl<'a> Mark<'a> {
    pub fn new(pool: &'a Pool) -> Mark<'a> {
        Mark {
            pool,
            found: Marked::default(),
            seen: HashMap::default(),
            shared: Slots::default(),
            mine: Slots::default(),
            disk: DiskId(0),
            disk_is_image: false,
            alone: 0,
        }
    }

    /// Finds what is live. `disk_done` is told after each disk how many are done.
    pub async fn find(&mut self, taken: &Taken, disk_done: &(dyn Fn(u64) + Send + Sync)) -> Result<()> {
        let disks = &taken.checkpoint.disks;
        // Images go first, so that it is they who are seen to reach what their clones reach, too.
        let (images, others): (Vec<_>, Vec<_>) = disks.iter().partition(|d| d.role == Role::Image);
        for (disk, done) in images.into_iter().chain(others).zip(1..) {
            self.begin(disk);
            let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
            let count = match tree.root() {
                Some(Ref::Node(root)) => self.walk(vec![root], false).await?,
                _ => 0,
            };
            self.found.logical_bytes += disk.size;
            let space = DiskSpace { mapped_bytes: count * BLOCK as u64, exclusive_bytes: 0 };
            self.found.disks.insert(disk.id, space);
            disk_done(done);
        }
        self.found.live.values_mut().for_each(|live| live.stored = live.bytes);
        Ok(())
    }

    /// What was found so far; the bytes that live slots take now are for the caller to correct.
    pub fn found(&mut self) -> &mut Marked {
        &mut self.found
    }

    /// Adds up what each disk has for itself.
    pub async fn add_up(mut self, taken: &Taken) -> Result<Marked> {
        for disk in &taken.checkpoint.disks {
            self.begin(disk);
            let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
            if let Some(Ref::Node(root)) = tree.root() {
                self.walk(vec![root], true).await?;
            }
            let alone = self.alone;
            if let Some(space) = self.found.disks.get_mut(&disk.id) {
                space.exclusive_bytes = alone;
            }
        }
        Ok(self.found)
    }

    fn begin(&mut self, disk: &DiskRecord) {
        (self.disk, self.disk_is_image, self.alone) = (disk.id, disk.role == Role::Image, 0);
        self.mine.0.clear();
    }

    /// Walks over nodes of one level and all below; returns how many blocks there are.
    fn walk(&mut self, nodes: Vec<NeedNode>, own: bool) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let mut count = 0;
            for some in nodes.chunks(MARK_READS) {
                self.pool.check_running()?;
                let visits: Vec<(NeedNode, Visit)> = some
                    .iter()
                    .filter_map(|need| match if own { self.enter_own(need) } else { self.enter(need) } {
                        Ok(visit) => Some((*need, visit)),
                        Err(known) => {
                            count += known;
                            None
                        }
                    })
                    .collect();
                let loaded = join_all(visits.iter().map(|(need, _)| self.pool.pass_node(*need))).await;
                for ((need, visit), node) in visits.into_iter().zip(loaded) {
                    let node = node.map_err(|e| self.pool.lost(e))?;
                    let blocks = self.node(node, visit).await?;
                    count += blocks;
                    if visit == Visit::New
                        && let Some(seen) = self.seen.get_mut(&need.at.addr.to_u64())
                    {
                        seen.blocks = blocks;
                    }
                }
                // Lets others have their turn, also those that wait for what another thread has done.
                yield_now().await;
            }
            Ok(count)
        })
    }

    /// Reaches a node; an error with the number of its blocks if it need not be walked.
    fn enter(&mut self, need: &NeedNode) -> std::result::Result<Visit, u64> {
        let key = need.at.addr.to_u64();
        let visit = match self.seen.get_mut(&key) {
            Some(seen) if seen.shared || seen.owner == self.disk => return Err(seen.blocks),
            Some(seen) => {
                seen.shared = true;
                Visit::Share
            }
            None => {
                self.seen.insert(key, Seen { owner: self.disk, shared: false, blocks: 0 });
                Visit::New
            }
        };
        self.reach(&need.at, visit);
        Ok(visit)
    }

    /// As [`Mark::enter`], in the last walk. The number of blocks does not matter there.
    fn enter_own(&mut self, need: &NeedNode) -> std::result::Result<Visit, u64> {
        match self.seen.get(&need.at.addr.to_u64()) {
            Some(seen) if !seen.shared => {
                self.reach(&need.at, Visit::Own);
                Ok(Visit::Own)
            }
            _ => Err(0),
        }
    }

    /// Notes a slot that the disk at hand reaches. True if that was a surprise.
    fn reach(&mut self, at: &BlockRef, visit: Visit) -> bool {
        match visit {
            Visit::New => {
                let live = self.found.live.entry(at.addr.segment).or_default();
                if live.slots.insert(at.addr.slot.0) {
                    live.bytes += written_len(at);
                    live.of_images += u64::from(self.disk_is_image);
                    self.mine.insert(at);
                    return true;
                }
                if !self.mine.has(at) {
                    self.shared.insert(at);
                }
            }
            Visit::Share => drop(self.shared.insert(at)),
            Visit::Own => {
                if !self.shared.has(at) && self.mine.insert(at) {
                    let live = self.found.live.get(&at.addr.segment);
                    let (stored, bytes) = live.map_or((1, 1), |l| (l.stored, l.bytes.max(1)));
                    self.alone +=
                        (u128::from(written_len(at)) * u128::from(stored) / u128::from(bytes)) as u64;
                }
            }
        }
        false
    }

    /// Walks over one node and all below.
    async fn node(&mut self, node: Node, visit: Visit) -> Result<u64> {
        let mut said = Said::default();
        node.references(|r| match r {
            Ref::Block(block) => said.blocks.push(block),
            Ref::Node(child) => said.children.push(child),
            Ref::Base(base) => said.base = Some(base),
            Ref::Memory(_) => unreachable!("a node that was read refers to stored nodes only"),
        });
        if let Some(base) = said.base {
            self.reach(&base.at, visit);
            // Many leaves stand on it, of guests too: it may well be in the cache, or come to be of use
            // there.
            let base = self.pool.load_node(base).await.map_err(|e| self.pool.lost(e))?;
            if self.pool.config.mutation != Mutation::ForgetBases {
                node.uncovered(&base, |block| said.blocks.push(block));
            }
        }
        for block in &said.blocks {
            self.found.blocks += u64::from(self.reach(block, visit));
        }
        let below = match said.children.is_empty() {
            true => 0,
            false => self.walk(said.children, visit == Visit::Own).await?,
        };
        Ok(said.blocks.len() as u64 + below)
    }
}
