//! The mark: which slots are live, whose they are alone, and how much each disk holds.
//!
//! A slot is live if a block map of the checkpoint reaches it: the node or block in it can be read by way of
//! some disk. Of the base of a leaf only the blocks count that the leaf does not list itself
//! ([`Node::uncovered`]); a base may stand under several leaves, and be a leaf of its own in another map:
//! what is reached in any of these ways is live.
//!
//! **It is safe beside guests**, because what they do cannot bring a dead slot back. A write makes new slots.
//! A clone, a rollback or a reset shares nodes that a disk of the checkpoint had, or that were made since. So does a
//! copy of a range, of nodes and of what stands in them: it takes what its source's map says at that moment, and
//! what a map says is of the checkpoint, or newer, or came the way below, and was noted when it did. A
//! leaf never loses an entry that hides its base: to discard is to list a hole. There is one way back, a
//! reference that a commit makes to a block which is stored already; those are noted in the barrier of the
//! log, and the cleaner looks at it before it drops a slot ([`crate::clean`]).
//!
//! **A node that cannot be read** does not end the walk. What it refers to is not known, but it is older: a node
//! is written when all below it has been, children, base and blocks alike, and no address is given out twice. So
//! each slot below it was written by a batch with a lower number than the last one of the segment in which the
//! node was written. The highest of these numbers is the *horizon* of the mark. A segment that began before it
//! may hold what nobody can see any more: nothing of it is dropped and nothing moved out, dead or alive. One that
//! began later cannot, and is treated as ever. So a pool goes on to free what was written since the damage; the
//! rest comes back when no disk reaches the damaged node any more. Its disks are named to whoever asked, and once
//! in the log. (Where damage has cost the segment its place in the table, the horizon is the end of history as
//! recovery found it: what a pool has written since it was opened is in the table.)
//!
//! **Each distinct node is walked once**, however many clones share it, and once more when a second disk
//! turns out to share it: then all below is *shared*. A third walk, over the nodes that one disk has for
//! itself, adds up what only that disk holds: slots reached by one disk alone. The walk gives way to other
//! tasks after each few nodes, and holds no lock while it waits. A checkpoint writes nodes in the order of the
//! walk, so all children of a node are read at once, and what rests together in one store read ([`crate::bulk`]).

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::{BLOCK, BlockRef, Codec, DiskId, DiskRecord, Role, SegmentId, SegmentRecord};
use hashbrown::HashMap;
use roaring::RoaringBitmap;
use tokio::task::yield_now;

use crate::checkpoint::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::{MARK_NODES, MARK_TURN};
use crate::map::{NeedNode, Node, Ref, Tree};
use crate::pool::Pool;
use crate::volume::blocks;
use crate::{BoxFuture, DiskSpace, Error, Mutation, Result};

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
    /// Disks of which not all nodes could be read. What is known of them is of the others; and blocks that only
    /// they share with some disk count as that disk's alone.
    pub damaged: BTreeSet<DiskId>,
    /// Those of them of which a node is damaged, and was not only unreadable for now.
    pub damaged_maps: BTreeSet<DiskId>,
    /// Segments in which the nodes were written that could not be read.
    unread: BTreeSet<SegmentId>,
    /// See the module; 0 where all was read.
    horizon: u64,
}

impl Marked {
    /// Works out the horizon. `records` are all segments, in order; `opened_at` is the batch at which history ended
    /// when the pool was opened.
    pub fn set_horizon(&mut self, records: &[SegmentRecord], opened_at: u64) {
        let last_seq = |segment: &SegmentId| match records.binary_search_by_key(segment, |r| r.segment) {
            Ok(i) => records[i].last_seq,
            // Damage has cost its place in the table, so recovery did not find it: all in it is of an earlier life.
            Err(_) => opened_at,
        };
        self.horizon = self.unread.iter().map(last_seq).max().unwrap_or(0);
    }

    /// Whether slots of a segment may be in use of which the mark does not know.
    pub fn is_uncertain(&self, record: &SegmentRecord) -> bool {
        record.first_seq <= self.horizon
    }

    /// Whether slots of a segment that is in no table may be in use.
    pub fn may_be_in_use(&self, segment: SegmentId) -> bool {
        self.horizon > 0 || self.live.contains_key(&segment)
    }
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
    below: Below,
}

/// What is below a node, or below several.
#[derive(Debug, Clone, Copy, Default)]
struct Below {
    blocks: u64,
    /// Something could not be read, ...
    unread: bool,
    /// ... for it is damaged.
    damaged: bool,
}

impl std::ops::AddAssign for Below {
    fn add_assign(&mut self, other: Below) {
        self.blocks += other.blocks;
        self.unread |= other.unread;
        self.damaged |= other.damaged;
    }
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
            let below = match tree.root() {
                Some(Ref::Node(root)) => self.walk(vec![root], false).await?,
                _ => Below::default(),
            };
            if below.unread {
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

    /// Walks over nodes of one level and all below.
    fn walk(&mut self, nodes: Vec<NeedNode>, own: bool) -> BoxFuture<'_, Result<Below>> {
        Box::pin(async move {
            let mut all = Below::default();
            for some in nodes.chunks(MARK_NODES) {
                self.pool.check_running()?;
                let (mut needs, mut visits) = (Vec::new(), Vec::new());
                for need in some {
                    match if own { self.enter_own(need) } else { self.enter(need) } {
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
                        Err(e) => self.unread(&need.at, e)?,
                    };
                    all += below;
                    if visit != Visit::Own
                        && let Some(seen) = self.seen.get_mut(&need.at.addr.to_u64())
                    {
                        seen.below = below;
                    }
                    if n % MARK_TURN == 0 {
                        // Lets others have their turn, also those that wait for what another thread has done.
                        yield_now().await;
                    }
                }
            }
            Ok(all)
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

    /// Notes a node that cannot be read. Any other error ends the mark.
    fn unread(&mut self, at: &BlockRef, e: Error) -> Result<Below> {
        let damaged = match self.pool.lost(e) {
            Error::Damaged(_) | Error::Format(_) => true,
            Error::Store(_) => false,
            other => return Err(other),
        };
        self.found.unread.insert(at.addr.segment);
        Ok(Below { blocks: 0, unread: true, damaged })
    }

    /// Reaches a node; an error with what is below it if it need not be walked.
    fn enter(&mut self, need: &NeedNode) -> std::result::Result<Visit, Below> {
        let key = need.at.addr.to_u64();
        let visit = match self.seen.get_mut(&key) {
            Some(seen) if seen.shared || seen.owner == self.disk => return Err(seen.below),
            Some(seen) => {
                seen.shared = true;
                Visit::Share
            }
            None => {
                self.seen.insert(key, Seen { owner: self.disk, shared: false, below: Below::default() });
                Visit::New
            }
        };
        self.reach(&need.at, visit);
        Ok(visit)
    }

    /// As [`Mark::enter`], in the last walk. What is below does not matter there.
    fn enter_own(&mut self, need: &NeedNode) -> std::result::Result<Visit, Below> {
        match self.seen.get(&need.at.addr.to_u64()) {
            Some(seen) if !seen.shared => {
                self.reach(&need.at, Visit::Own);
                Ok(Visit::Own)
            }
            _ => Err(Below::default()),
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

    /// Walks over one node and all below; its base was loaded with it.
    async fn node(&mut self, node: Node, base: Option<Result<Node>>, visit: Visit) -> Result<Below> {
        let (mut said, mut below) = (Said::default(), Below::default());
        node.references(|r| match r {
            Ref::Block(block) => said.blocks.push(block),
            Ref::Node(child) => said.children.push(child),
            Ref::Base(base) => said.base = Some(base.at),
            Ref::Memory(_) => unreachable!("a node that was read refers to stored nodes only"),
        });
        if let Some((at, base)) = said.base.zip(base) {
            self.reach(&at, visit);
            match base {
                Err(e) => below += self.unread(&at, e)?,
                Ok(_) if self.pool.config.mutation == Mutation::ForgetBases => {}
                Ok(base) => node.uncovered(&base, |block| said.blocks.push(block)),
            }
        }
        for block in &said.blocks {
            self.found.blocks += u64::from(self.reach(block, visit));
        }
        below.blocks += said.blocks.len() as u64;
        if !said.children.is_empty() {
            below += self.walk(said.children, visit == Visit::Own).await?;
        }
        Ok(below)
    }
}
