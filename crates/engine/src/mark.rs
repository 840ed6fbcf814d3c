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
use std::task::Poll;

use forebay_format::{BLOCK, BlockRef, Codec, DiskId, SegmentId};
use hashbrown::HashMap;
use roaring::RoaringBitmap;

use crate::checkpoint::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::{MARK_NODES, MARK_TURN};
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

/// Lets other tasks have their turn.
pub(crate) async fn give_way() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if waited {
            return Poll::Ready(());
        }
        waited = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
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

/// What a node says.
#[derive(Default)]
struct Said {
    blocks: Vec<BlockRef>,
    children: Vec<NeedNode>,
    base: Option<BlockRef>,
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
            alone: 0,
        }
    }

    /// Finds what is live. `disk_done` is told after each disk how many are done.
    pub async fn find(&mut self, taken: &Taken, disk_done: &(dyn Fn(u64) + Send + Sync)) -> Result<()> {
        for (disk, done) in taken.checkpoint.disks.iter().zip(1..) {
            self.begin(disk.id);
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
            self.begin(disk.id);
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

    fn begin(&mut self, disk: DiskId) {
        (self.disk, self.alone) = (disk, 0);
        self.mine.0.clear();
    }

    /// Walks over nodes of one level and all below; returns how many blocks there are.
    fn walk(&mut self, nodes: Vec<NeedNode>, own: bool) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let mut count = 0;
            for some in nodes.chunks(MARK_NODES) {
                self.pool.check_running()?;
                let (mut needs, mut visits) = (Vec::new(), Vec::new());
                for need in some {
                    match if own { self.enter_own(need) } else { self.enter(need) } {
                        Ok(visit) => {
                            needs.push(*need);
                            visits.push(visit);
                        }
                        Err(known) => count += known,
                    }
                }
                let loaded = self.load(&needs).await;
                for (n, ((need, visit), (node, base))) in needs.iter().zip(visits).zip(loaded).enumerate() {
                    let blocks = self.node(node.map_err(|e| self.pool.lost(e))?, base, visit).await?;
                    count += blocks;
                    if visit == Visit::New
                        && let Some(seen) = self.seen.get_mut(&need.at.addr.to_u64())
                    {
                        seen.blocks = blocks;
                    }
                    if n % MARK_TURN == 0 {
                        give_way().await;
                    }
                }
            }
            Ok(count)
        })
    }

    /// Loads nodes, and with each its base, if it has one.
    async fn load(&self, needs: &[NeedNode]) -> Vec<(Result<Node>, Option<Result<Node>>)> {
        let nodes = self.pool.pass_nodes(needs).await;
        let bases: Vec<Option<NeedNode>> =
            nodes.iter().map(|node| node.as_ref().ok().and_then(Node::stored_base)).collect();
        let wanted: Vec<NeedNode> = bases.iter().flatten().copied().collect();
        let loaded = self.pool.pass_nodes(&wanted).await;
        for (need, base) in wanted.iter().zip(&loaded) {
            // Many leaves stand on it, of guests too: it may come to be of use in the cache.
            if let Ok(base) = base
                && self.pool.nodes.find(*need).is_none()
            {
                self.pool.nodes.insert(need.at, base.clone());
            }
        }
        let mut loaded = loaded.into_iter();
        nodes.into_iter().zip(bases).map(|(node, base)| (node, base.and_then(|_| loaded.next()))).collect()
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

    /// Walks over one node and all below; its base was loaded with it.
    async fn node(&mut self, node: Node, base: Option<Result<Node>>, visit: Visit) -> Result<u64> {
        let mut said = Said::default();
        node.references(|r| match r {
            Ref::Block(block) => said.blocks.push(block),
            Ref::Node(child) => said.children.push(child),
            Ref::Base(base) => said.base = Some(base.at),
            Ref::Memory(_) => unreachable!("a node that was read refers to stored nodes only"),
        });
        if let Some((at, base)) = said.base.zip(base) {
            self.reach(&at, visit);
            let base = base.map_err(|e| self.pool.lost(e))?;
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
