//! The mark: finds the live slots, and adds up the space that each disk uses, in total and exclusively.
//!
//! A slot is live if a block map of the checkpoint reaches it: the node or block in it can be read through
//! some disk. Of the base of a leaf, only the blocks count that the leaf does not list itself
//! ([`Node::uncovered`]). A base may belong to several leaves, and be an ordinary leaf of another map: a slot
//! is live if it is reached in any of these ways.
//!
//! **Why the mark is safe while guests write.** Guests cannot make a dead slot live again. A write creates
//! new slots. A clone, a rollback or a reset shares nodes that a disk of the checkpoint had, or that were
//! created since. So does a copy of a range, which shares nodes and the addresses in them: it copies the
//! source's map at that moment, and each address in that map is in the checkpoint, or newer, or was added by
//! a reference as described next, and was recorded then. A leaf never loses an entry that hides its base: a
//! discard lists a hole. The one way to make a dead slot live is a reference that a commit makes to a block
//! that is stored already. These references are recorded in the barrier of the log, and the cleaner checks
//! the barrier before it drops a slot ([`super::clean`]).
//!
//! **A node that cannot be read** does not end the walk. Its references are unknown, but older than the node:
//! a node is written after everything below it (children, base and blocks), and no address is assigned twice.
//! So each slot below it was written by a batch with a lower number than the last batch of the segment in
//! which the node was written. The highest of these numbers is the *horizon* of the mark. A segment that
//! began before the horizon may hold live slots that the mark cannot see: none of its slots is dropped or
//! moved, whether found live or not. A segment that began later cannot, and is treated as usual. So a pool
//! continues to free segments that were written since the damage; the others become reclaimable when no disk
//! reaches the damaged node any more. The affected disks are reported to the caller of the reclaim, and once
//! in the log. (If damage has cost the node's segment its entry in the table, the horizon is the end of
//! history as recovery found it: all segments written since the pool was opened are in the table.)
//!
//! **Each distinct node is walked once**, however many clones share it, and a second time when another disk
//! is found to share it: then everything below it is *shared*. A final walk, over the nodes that only one
//! disk reaches, adds up the exclusive space of each disk: slots that no other disk reaches. The walk yields
//! to other tasks after every few nodes, and holds no lock while it waits. A checkpoint writes nodes in the
//! order of the walk, so all children of a node are read at once, and nodes that are adjacent on the store in
//! one read ([`crate::read`]).

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::{BLOCK, BlockRef, Codec, DiskId, DiskRecord, Role, SegmentId, SegmentRecord};
use hashbrown::HashMap;
use roaring::RoaringBitmap;
use tokio::task::yield_now;

use crate::commit::Taken;
use crate::disk::blocks;
use crate::hash::BuildU64Hasher;
use crate::limits::{MARK_NODES, MARK_TURN};
use crate::log::SegmentTable;
use crate::map::{NeedNode, Node, Ref, Tree};
use crate::read::Reader;
use crate::{BoxFuture, DiskSpace, Error, Mutation, Result};

/// The live slots of a segment.
#[derive(Debug, Default)]
pub(super) struct LiveSlots {
    /// Their numbers.
    pub slots: RoaringBitmap,
    /// Bytes that they took when they were written.
    pub bytes: u64,
    /// Bytes that they take at their current location; differs from `bytes` once the segment is moved.
    pub stored: u64,
    /// How many of them an image reaches.
    pub of_images: u64,
}

/// The result of a mark.
#[derive(Debug, Default)]
pub(super) struct MarkResult {
    /// Live slots.
    pub live: BTreeMap<SegmentId, LiveSlots>,
    /// Distinct live blocks; the other slots are nodes.
    pub blocks: u64,
    /// The space used by each disk.
    pub disks: HashMap<DiskId, DiskSpace, BuildU64Hasher>,
    /// Sizes of all disks.
    pub logical_bytes: u64,
    /// Disks of which not all nodes could be read. Their figures cover the nodes that could be; blocks that
    /// another disk shares only through unreadable nodes count as exclusive to that disk.
    pub damaged: BTreeSet<DiskId>,
    /// Those of `damaged` with a node that is corrupt, not only temporarily unreadable.
    pub damaged_maps: BTreeSet<DiskId>,
    /// Segments in which the unreadable nodes were written.
    unreadable: BTreeSet<SegmentId>,
    /// See the module; 0 if all nodes were read.
    horizon: u64,
}

impl MarkResult {
    /// Determines the horizon. `opened_at` is the last batch of history when the pool was opened.
    pub fn set_horizon(&mut self, table: &SegmentTable, opened_at: u64) {
        // A segment without a record has lost it through damage, so it was written before the pool was
        // opened.
        let last_seq = |segment: &SegmentId| table.get(*segment).map_or(opened_at, |r| r.last_seq);
        self.horizon = self.unreadable.iter().map(last_seq).max().unwrap_or(0);
    }

    /// Whether a segment may hold live slots that the mark could not find.
    pub fn is_uncertain(&self, record: &SegmentRecord) -> bool {
        record.first_seq <= self.horizon
    }

    /// Whether a segment that is in no table may hold live slots.
    pub fn may_be_in_use(&self, segment: SegmentId) -> bool {
        self.horizon > 0 || self.live.contains_key(&segment)
    }
}

/// Bytes that a block or node took when it was written.
fn written_len(at: &BlockRef) -> u64 {
    match at.form.codec() {
        Some(Codec::Raw | Codec::Lz4) => at.form.stored_len() as u64,
        // Blocks become members of a group only when they are moved; a damaged reference is detected when it
        // is read.
        _ => BLOCK as u64,
    }
}

/// A set of slots, by segment.
#[derive(Default)]
pub(crate) struct Slots(HashMap<SegmentId, RoaringBitmap, BuildU64Hasher>);

impl Slots {
    /// Adds a slot; false if the set contains it already.
    pub fn insert(&mut self, at: &BlockRef) -> bool {
        self.0.entry(at.addr.segment).or_default().insert(at.addr.slot.0)
    }

    fn contains(&self, at: &BlockRef) -> bool {
        self.0.get(&at.addr.segment).is_some_and(|slots| slots.contains(at.addr.slot.0))
    }
}

/// A node that was reached.
struct ReachedNode {
    /// The first disk that reached it.
    owner: DiskId,
    /// Another disk reached it as well.
    shared: bool,
    below: Subtree,
}

/// Totals of the subtree below a node, or of several subtrees.
#[derive(Debug, Clone, Copy, Default)]
struct Subtree {
    blocks: u64,
    /// A node could not be read.
    unreadable: bool,
    /// A node is corrupt.
    damaged: bool,
}

impl std::ops::AddAssign for Subtree {
    fn add_assign(&mut self, other: Subtree) {
        self.blocks += other.blocks;
        self.unreadable |= other.unreadable;
        self.damaged |= other.damaged;
    }
}

/// Why a node is walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// It is reached for the first time.
    First,
    /// A second disk reached it.
    Share,
    /// The final walk adds up the disk's exclusive slots.
    Exclusive,
}

/// The references of a node.
#[derive(Default)]
struct References {
    blocks: Vec<BlockRef>,
    children: Vec<NeedNode>,
    base: Option<BlockRef>,
}

/// A mark under way.
pub(crate) struct Mark<'a> {
    reader: &'a Reader,
    found: MarkResult,
    reached: HashMap<u64, ReachedNode, BuildU64Hasher>,
    /// Slots that several disks reach.
    shared: Slots,
    /// Slots that the current disk reached first; in the final walk, the slots that it has exclusively.
    mine: Slots,
    disk: DiskId,
    disk_is_image: bool,
    /// Bytes that the current disk has exclusively.
    exclusive: u64,
}

impl<'a> Mark<'a> {
    pub fn new(reader: &'a Reader) -> Mark<'a> {
        Mark {
            reader,
            found: MarkResult::default(),
            reached: HashMap::default(),
            shared: Slots::default(),
            mine: Slots::default(),
            disk: DiskId(0),
            disk_is_image: false,
            exclusive: 0,
        }
    }

    /// Finds the live slots. Calls `disk_done` after each disk with the number of disks done.
    pub async fn find(&mut self, taken: &Taken, disk_done: &(dyn Fn(u64) + Send + Sync)) -> Result<()> {
        let disks = &taken.checkpoint.disks;
        // Images are walked first, so that slots which they share with their clones are counted for the
        // image.
        let (images, others): (Vec<_>, Vec<_>) = disks.iter().partition(|d| d.role == Role::Image);
        for (disk, done) in images.into_iter().chain(others).zip(1..) {
            self.begin(disk);
            let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
            let below = match tree.root() {
                Some(Ref::Node(root)) => self.walk(vec![root], false).await?,
                _ => Subtree::default(),
            };
            if below.unreadable {
                self.found.damaged.insert(disk.id);
            }
            if below.damaged {
                self.found.damaged_maps.insert(disk.id);
            }
            self.found.logical_bytes += disk.size;
            let space = DiskSpace { mapped_bytes: below.blocks * BLOCK as u64, exclusive_bytes: 0 };
            self.found.disks.insert(disk.id, space);
            disk_done(done);
        }
        self.found.live.values_mut().for_each(|live| live.stored = live.bytes);
        Ok(())
    }

    /// The result so far. The caller corrects the bytes that live slots of moved segments take now.
    pub fn found(&mut self) -> &mut MarkResult {
        &mut self.found
    }

    /// Adds up the exclusive space of each disk.
    pub async fn add_up(mut self, taken: &Taken) -> Result<MarkResult> {
        for disk in &taken.checkpoint.disks {
            self.begin(disk);
            let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
            if let Some(Ref::Node(root)) = tree.root() {
                self.walk(vec![root], true).await?;
            }
            let exclusive = self.exclusive;
            if let Some(space) = self.found.disks.get_mut(&disk.id) {
                space.exclusive_bytes = exclusive;
            }
        }
        Ok(self.found)
    }

    fn begin(&mut self, disk: &DiskRecord) {
        (self.disk, self.disk_is_image, self.exclusive) = (disk.id, disk.role == Role::Image, 0);
        self.mine.0.clear();
    }

    /// Walks nodes of one level and everything below them; in the final walk, only nodes that are
    /// `exclusive`.
    fn walk(&mut self, nodes: Vec<NeedNode>, exclusive: bool) -> BoxFuture<'_, Result<Subtree>> {
        Box::pin(async move {
            let mut all = Subtree::default();
            for some in nodes.chunks(MARK_NODES) {
                self.reader.cx.check_running()?;
                let (mut needs, mut visits) = (Vec::new(), Vec::new());
                for need in some {
                    match if exclusive { self.enter_exclusive(need) } else { self.enter(need) } {
                        Ok(visit) => {
                            needs.push(*need);
                            visits.push(visit);
                        }
                        Err(known) => all += known,
                    }
                }
                let loaded = self.load(&needs).await;
                for (n, ((need, visit), (node, base))) in needs.iter().zip(visits).zip(loaded).enumerate() {
                    let below = match node {
                        Ok(node) => self.node(node, base, visit).await?,
                        Err(e) => self.record_unreadable(&need.at, e)?,
                    };
                    all += below;
                    if visit != Visit::Exclusive
                        && let Some(reached) = self.reached.get_mut(&need.at.addr.to_u64())
                    {
                        reached.below = below;
                    }
                    if n % MARK_TURN == 0 {
                        // Lets other tasks run, including those that another thread has woken.
                        yield_now().await;
                    }
                }
            }
            Ok(all)
        })
    }

    /// Loads nodes, and with each its base, if it has one.
    async fn load(&self, needs: &[NeedNode]) -> Vec<(Result<Node>, Option<Result<Node>>)> {
        let nodes = self.reader.nodes.read_uncached(needs).await;
        let bases: Vec<Option<NeedNode>> =
            nodes.iter().map(|node| node.as_ref().ok().and_then(Node::stored_base)).collect();
        let wanted: Vec<NeedNode> = bases.iter().flatten().copied().collect();
        let loaded = self.reader.nodes.read_uncached(&wanted).await;
        for (need, base) in wanted.iter().zip(&loaded) {
            // Many leaves share a base, including leaves that guests read: it is worth caching.
            if let Ok(base) = base
                && self.reader.nodes.cache.find(*need).is_none()
            {
                self.reader.nodes.cache.insert(need.at, base.clone());
            }
        }
        let mut loaded = loaded.into_iter();
        nodes.into_iter().zip(bases).map(|(node, base)| (node, base.and_then(|_| loaded.next()))).collect()
    }

    /// Records a node that cannot be read. Any other error ends the mark.
    fn record_unreadable(&mut self, at: &BlockRef, e: Error) -> Result<Subtree> {
        let damaged = match self.reader.source.not_found_is_corruption(e) {
            Error::Damaged(_) | Error::Format(_) => true,
            Error::Store(_) => false,
            other => return Err(other),
        };
        self.found.unreadable.insert(at.addr.segment);
        Ok(Subtree { blocks: 0, unreadable: true, damaged })
    }

    /// Reaches a node. Returns `Err` with the totals of its subtree if it does not have to be walked.
    fn enter(&mut self, need: &NeedNode) -> std::result::Result<Visit, Subtree> {
        let key = need.at.addr.to_u64();
        let visit = match self.reached.get_mut(&key) {
            Some(node) if node.shared || node.owner == self.disk => return Err(node.below),
            Some(node) => {
                node.shared = true;
                Visit::Share
            }
            None => {
                let node = ReachedNode { owner: self.disk, shared: false, below: Subtree::default() };
                self.reached.insert(key, node);
                Visit::First
            }
        };
        self.reach(&need.at, visit);
        Ok(visit)
    }

    /// As [`Mark::enter`], in the final walk, which does not use the totals.
    fn enter_exclusive(&mut self, need: &NeedNode) -> std::result::Result<Visit, Subtree> {
        match self.reached.get(&need.at.addr.to_u64()) {
            Some(node) if !node.shared => {
                self.reach(&need.at, Visit::Exclusive);
                Ok(Visit::Exclusive)
            }
            _ => Err(Subtree::default()),
        }
    }

    /// Records a slot that the current disk reaches. Returns true if it was not known to be live.
    fn reach(&mut self, at: &BlockRef, visit: Visit) -> bool {
        match visit {
            Visit::First => {
                let live = self.found.live.entry(at.addr.segment).or_default();
                if live.slots.insert(at.addr.slot.0) {
                    live.bytes += written_len(at);
                    live.of_images += u64::from(self.disk_is_image);
                    self.mine.insert(at);
                    return true;
                }
                if !self.mine.contains(at) {
                    self.shared.insert(at);
                }
            }
            Visit::Share => drop(self.shared.insert(at)),
            Visit::Exclusive => {
                if !self.shared.contains(at) && self.mine.insert(at) {
                    let live = self.found.live.get(&at.addr.segment);
                    let (stored, bytes) = live.map_or((1, 1), |l| (l.stored, l.bytes.max(1)));
                    self.exclusive +=
                        (u128::from(written_len(at)) * u128::from(stored) / u128::from(bytes)) as u64;
                }
            }
        }
        false
    }

    /// Walks one node and everything below it; its base was loaded with it.
    async fn node(&mut self, node: Node, base: Option<Result<Node>>, visit: Visit) -> Result<Subtree> {
        let (mut references, mut below) = (References::default(), Subtree::default());
        node.references(|r| match r {
            Ref::Block(block) => references.blocks.push(block),
            Ref::Node(child) => references.children.push(child),
            Ref::Base(base) => references.base = Some(base.at),
            Ref::Memory(_) => unreachable!("a node read from the store refers to stored nodes only"),
        });
        if let Some((at, base)) = references.base.zip(base) {
            self.reach(&at, visit);
            match base {
                Err(e) => below += self.record_unreadable(&at, e)?,
                Ok(_) if self.reader.cx.config.mutation == Mutation::ForgetBases => {}
                Ok(base) => node.uncovered(&base, |block| references.blocks.push(block)),
            }
        }
        for block in &references.blocks {
            self.found.blocks += u64::from(self.reach(block, visit));
        }
        below.blocks += references.blocks.len() as u64;
        if !references.children.is_empty() {
            below += self.walk(references.children, visit == Visit::Exclusive).await?;
        }
        Ok(below)
    }
}
