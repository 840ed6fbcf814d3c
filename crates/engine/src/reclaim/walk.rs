//! Changes of roots, carried down to the counts of all slots.
//!
//! Changes of the counts of nodes are collected for each level, from the roots down, and applied level by
//! level: all references to the nodes of a level are in the level above. A node whose count rises from zero
//! is read, and adds its references; a node whose count falls to zero is read and removes them. All other
//! nodes are not read: the counts below them do not change. When a leaf changes, the references of the old
//! leaf are removed and the references of the new leaf are added. For unchanged entries, the two changes
//! cancel before they reach the counts.
//!
//! Within a level, nodes are visited in the order in which they are stored, so that many are read at once.

use std::collections::BTreeSet;

use forebay_format::{Address, BlockRef, SegmentId};
use hashbrown::HashMap;
use tokio::task::yield_now;

use super::counts::Counts;
use super::deltas::{Delta, Deltas};
use super::scratch::Scratch;
use super::table::apply;
use crate::commit::Committer;
use crate::hash::BuildU64Hasher;
use crate::limits::{MARK_NODES, MARK_RUN, MARK_TURN};
use crate::map::{MAX_HEIGHT, NeedNode, Node, Ref};
use crate::read::Reader;
use crate::{Error, Mutation, Result};

/// Number of levels of a block map.
const LEVELS: usize = MAX_HEIGHT as usize;

/// For which purpose the maps are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The walk counts everything. A node that cannot be read is recorded.
    Full,
    /// The walk counts what has changed. A node that cannot be read ends the walk.
    Difference,
    /// The walk determines what a change would free, and reads at most this many nodes. The counts do not
    /// change; nodes that cannot be read are ignored.
    Trial { nodes: u64 },
}

/// Why a walk could not be completed.
#[derive(Debug)]
pub(super) enum Stop {
    /// The counts contradict the maps, or a node cannot be read.
    Doubtful,
    /// The trial would have to read too many nodes.
    TooMany,
    Failed(Error),
}

/// The result of a part of a walk.
pub(super) type Walked<T = ()> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

/// A node that cannot be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unreadable {
    pub node: NeedNode,
    /// The node is corrupt, not only temporarily unreadable.
    pub is_damaged: bool,
}

/// A node that is to be read.
struct Visit {
    node: NeedNode,
    /// 1: the references of the node are added; -1: they are removed; 0: they are only recorded as references
    /// from an image.
    by: i64,
    of_image: bool,
}

/// What a walk uses to read and to write.
#[derive(Clone, Copy)]
pub(super) struct Tools<'a> {
    pub reader: &'a Reader,
    pub committer: &'a Committer,
    pub scratch: &'a Scratch,
}

/// A walk over block maps that is in progress.
pub(super) struct Walk<'a> {
    tools: Tools<'a>,
    counts: &'a mut Counts,
    purpose: Purpose,
    progress: &'a (dyn Fn(u64) + Send + Sync),
    levels: [Deltas; LEVELS],
    slots: Deltas,
    /// Inner nodes whose values are to be computed.
    new: [Vec<NeedNode>; LEVELS],
    pub unreadable: Vec<Unreadable>,
    unreadable_at: BTreeSet<Address>,
    /// Number of nodes that the walk has visited.
    pub visited: u64,
    /// Bytes that a trial would free.
    pub freed: u64,
    /// No room for a checkpoint or for temporary data was found.
    is_full: bool,
}

impl<'a> Walk<'a> {
    pub fn new(
        tools: Tools<'a>,
        counts: &'a mut Counts,
        purpose: Purpose,
        progress: &'a (dyn Fn(u64) + Send + Sync),
    ) -> Walk<'a> {
        let budget = tools.reader.context().config.mark_memory as usize;
        // A small share of the budget is for changes that are not encoded yet.
        let run = (budget / 16 / LEVELS / size_of::<Delta>()).clamp(16, MARK_RUN);
        Walk {
            tools,
            counts,
            purpose,
            progress,
            levels: std::array::from_fn(|_| Deltas::of_nodes(run)),
            slots: Deltas::of_slots(run),
            new: Default::default(),
            unreadable: Vec::new(),
            unreadable_at: BTreeSet::new(),
            visited: 0,
            freed: 0,
            is_full: false,
        }
    }

    /// Applies changes of the counts of roots, and all changes that follow from them.
    pub async fn run(&mut self, roots: Vec<Delta>) -> Walked {
        for root in roots {
            let level = NeedNode::from_bits(root.at, root.index).level();
            self.levels[usize::from(level)].push(root);
        }
        for level in (0..LEVELS).rev() {
            self.walk_level(level).await?;
        }
        self.change_slots().await?;
        self.sum_up().await
    }

    async fn walk_level(&mut self, level: usize) -> Walked {
        let mut deltas = self.levels[level].take(self.tools.scratch).await?;
        let mut visits = Vec::new();
        while let Some(deltas) = deltas.next_segment().await? {
            self.change_nodes(&deltas, &mut visits).await?;
            if visits.len() >= MARK_NODES {
                let some = std::mem::take(&mut visits);
                self.visit_all(&some).await?;
            }
        }
        self.visit_all(&visits).await
    }

    /// Applies changes of the counts of nodes of one segment.
    async fn change_nodes(&mut self, deltas: &[Delta], visits: &mut Vec<Visit>) -> Walked {
        let Some(segment) = deltas.first().map(|d| d.at.addr.segment) else { return Ok(()) };
        let counts = self.counts.nodes.get(segment, self.tools.scratch).await?;
        let mut again = Vec::new();
        let changed = |delta: &Delta, before: u64, after: u64| {
            let by = i64::from(after > 0) - i64::from(before > 0);
            let node = NeedNode::from_bits(delta.at, delta.index);
            if by != 0 {
                self.slots.push(of_slot(&delta.at, by, false, delta.of_image));
            }
            if by != 0 || (delta.of_image && after > 0) {
                visits.push(Visit { node, by, of_image: delta.of_image });
            } else if self.unreadable_at.contains(&delta.at.addr) {
                // A stand-in refers to a damaged node by indexes that differ from the index of the node.
                again.push(node);
            }
        };
        let changed = apply(&counts, deltas, changed).ok_or(Stop::Doubtful)?;
        self.unreadable.extend(again.iter().map(|node| Unreadable { node: *node, is_damaged: true }));
        if !matches!(self.purpose, Purpose::Trial { .. }) {
            self.counts.nodes.set(segment, &changed);
        }
        Ok(())
    }

    async fn visit_all(&mut self, visits: &[Visit]) -> Walked {
        for some in visits.chunks(MARK_NODES) {
            self.visited += some.len() as u64;
            if matches!(self.purpose, Purpose::Trial { nodes } if self.visited > nodes) {
                return Err(Stop::TooMany);
            }
            self.pause().await?;
            let needs: Vec<NeedNode> = some.iter().map(|visit| visit.node).collect();
            let mut values = Vec::new();
            for (n, (visit, (node, base))) in
                some.iter().zip(load(self.tools.reader, &needs).await).enumerate()
            {
                match node {
                    Err(e) => self.record_unreadable(visit.node, e)?,
                    Ok(node) => {
                        let blocks = self.refer(visit, &node, base)?;
                        match visit.node.level() {
                            _ if visit.by <= 0 => {}
                            0 => values.push((visit.node.at.addr, blocks)),
                            level => self.new[usize::from(level)].push(visit.node),
                        }
                    }
                }
                if n % MARK_TURN == 0 {
                    // Yields to other tasks, including tasks that another thread has woken.
                    yield_now().await;
                }
            }
            self.set_values(&values).await?;
            (self.progress)(self.visited);
        }
        Ok(())
    }

    /// Called between two steps: makes a checkpoint if one is due, and keeps within the budget.
    async fn pause(&mut self) -> Walked {
        let Tools { reader, committer, scratch } = self.tools;
        reader.context().check_running()?;
        if committer.checkpoint_due() && !self.is_full {
            self.unless_full(committer.checkpoint().await)?;
        }
        let budget = reader.context().config.mark_memory as usize;
        let all = self.levels.iter_mut().chain([&mut self.slots]);
        let bytes: usize = all.map(|deltas| deltas.bytes()).sum();
        if bytes > budget / 4 && !self.is_full {
            let all = self.levels.iter_mut().chain([&mut self.slots]);
            if let Some(most) = all.max_by_key(|deltas| deltas.bytes()) {
                let spilled = most.spill(scratch).await;
                self.unless_full(spilled)?;
            }
        }
        if self.counts.bytes() > budget / 8 * 5 && !self.is_full {
            // The counts of nodes are needed more often, so the counts of slots are written out first.
            let spilled = match self.counts.slots.bytes() > budget / 16 {
                true => self.counts.slots.spill(budget / 32, scratch).await,
                false => self.counts.nodes.spill(budget / 4, scratch).await,
            };
            self.unless_full(spilled)?;
        }
        Ok(())
    }

    /// Ignores a lack of room: the mark continues in memory, since the mark is what leads to free room.
    fn unless_full(&mut self, done: Result<()>) -> Walked {
        match done {
            Err(Error::NoSpace) => {
                tracing::warn!("no room for temporary data: the mark may exceed its memory budget");
                self.is_full = true;
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Records a node that cannot be read. Any other error ends the walk.
    fn record_unreadable(&mut self, node: NeedNode, e: Error) -> Walked {
        let is_damaged = match self.tools.reader.source.not_found_is_corruption(e) {
            Error::Damaged(_) | Error::Format(_) => true,
            Error::Store(_) => false,
            other => return Err(other.into()),
        };
        match self.purpose {
            Purpose::Full => {
                self.unreadable.push(Unreadable { node, is_damaged });
                self.unreadable_at.insert(node.at.addr);
            }
            Purpose::Difference => return Err(Stop::Doubtful),
            Purpose::Trial { .. } => {}
        }
        Ok(())
    }

    /// Adds or removes the references of a node; its base was loaded with it. Returns the number of blocks to
    /// which it refers.
    fn refer(&mut self, visit: &Visit, node: &Node, base: Option<Result<Node>>) -> Walked<u64> {
        let Visit { by, of_image, .. } = *visit;
        let mutation = self.tools.reader.context().config.mutation;
        let level = usize::from(visit.node.level());
        let (mut blocks, mut base_ref) = (Vec::new(), None);
        node.references(|r| match r {
            Ref::Block(block) => blocks.push(block),
            Ref::Node(child) => {
                let (at, index) = (child.at, child.index_bits());
                let delta = Delta { at, by, index, is_block: false, of_image };
                if let Some(below) = level.checked_sub(1) {
                    self.levels[below].push(delta);
                }
            }
            Ref::Base(base) => base_ref = Some(base),
            Ref::Memory(_) => unreachable!("a node read from the store refers to stored nodes only"),
        });
        if let Some((need, base)) = base_ref.zip(base) {
            self.slots.push(of_slot(&need.at, by, false, of_image));
            match base {
                Err(e) => self.record_unreadable(need, e)?,
                Ok(_) if mutation == Mutation::ForgetBases => {}
                Ok(base) => node.uncovered(&base, |block| blocks.push(block)),
            }
        }
        let changes = self.purpose == Purpose::Difference;
        for (i, block) in blocks.iter().enumerate() {
            let by = match by {
                1 if i == 0 && changes && mutation == Mutation::LoseReference => 0,
                -1 if i == 0 && changes && mutation == Mutation::ReleaseTwice => -2,
                by => by,
            };
            self.slots.push(of_slot(block, by, true, of_image));
        }
        Ok(blocks.len() as u64)
    }

    /// Applies the changes of slots.
    async fn change_slots(&mut self) -> Walked {
        let mut deltas = self.slots.take(self.tools.scratch).await?;
        while let Some(deltas) = deltas.next_segment().await? {
            if let Purpose::Trial { .. } = self.purpose {
                self.freed += self.counts.freed_by(&deltas, self.tools.scratch).await?;
            } else if !self.counts.change_slots(&deltas, self.tools.scratch).await? {
                return Err(Stop::Doubtful);
            }
            self.pause().await?;
        }
        Ok(())
    }

    /// Computes the number of blocks below each new inner node, from the leaves up.
    async fn sum_up(&mut self) -> Walked {
        for level in 1..LEVELS {
            for some in std::mem::take(&mut self.new[level]).chunks(MARK_NODES) {
                self.pause().await?;
                let (mut children, mut values) = (Vec::new(), Vec::new());
                for (need, (node, _)) in some.iter().zip(load(self.tools.reader, some).await) {
                    match node {
                        Ok(node) => node.references(|r| {
                            if let Ref::Node(child) = r {
                                children.push((child.at.addr, need.at.addr));
                            }
                        }),
                        Err(e) => self.record_unreadable(*need, e)?,
                    }
                }
                children.sort_unstable();
                let mut sums: HashMap<u64, u64, BuildU64Hasher> = HashMap::default();
                for same in children.chunk_by(|a, b| a.0.segment == b.0.segment) {
                    let counts = self.counts.nodes.get(same[0].0.segment, self.tools.scratch).await?;
                    for (child, parent) in same {
                        if let Ok(i) = counts.binary_search_by_key(&child.slot.0, |c| c.slot) {
                            *sums.entry(parent.to_u64()).or_default() += counts[i].value;
                        }
                    }
                    yield_now().await;
                }
                values.extend(sums.into_iter().map(|(addr, sum)| (Address::from_u64(addr), sum)));
                values.sort_unstable();
                self.set_values(&values).await?;
            }
        }
        Ok(())
    }

    /// Sets the values of nodes, which are in order.
    async fn set_values(&mut self, values: &[(Address, u64)]) -> Walked {
        if matches!(self.purpose, Purpose::Trial { .. }) {
            return Ok(());
        }
        let segment = |(addr, _): &(Address, u64)| -> SegmentId { addr.segment };
        for same in values.chunk_by(|a, b| segment(a) == segment(b)) {
            let segment = segment(&same[0]);
            let mut counts = self.counts.nodes.get(segment, self.tools.scratch).await?;
            for (addr, value) in same {
                if let Ok(i) = counts.binary_search_by_key(&addr.slot.0, |c| c.slot) {
                    counts[i].value = *value;
                }
            }
            self.counts.nodes.set(segment, &counts);
        }
        Ok(())
    }
}

/// A change of the count of a slot.
fn of_slot(at: &BlockRef, by: i64, is_block: bool, of_image: bool) -> Delta {
    Delta { at: *at, by, index: 0, is_block, of_image }
}

/// Loads nodes, each with its base.
async fn load(reader: &Reader, needs: &[NeedNode]) -> Vec<(Result<Node>, Option<Result<Node>>)> {
    let nodes = reader.nodes.read_uncached(needs).await;
    let bases: Vec<Option<NeedNode>> =
        nodes.iter().map(|node| node.as_ref().ok().and_then(Node::stored_base)).collect();
    let wanted: Vec<NeedNode> = bases.iter().flatten().copied().collect();
    let loaded = reader.nodes.read_uncached(&wanted).await;
    for (need, base) in wanted.iter().zip(&loaded) {
        // Many leaves share a base, including leaves that guests read: it is worth caching.
        if let Ok(base) = base
            && reader.nodes.cache.find(*need).is_none()
        {
            reader.nodes.cache.insert(need.at, base.clone());
        }
    }
    let mut loaded = loaded.into_iter();
    nodes.into_iter().zip(bases).map(|(node, base)| (node, base.and_then(|_| loaded.next()))).collect()
}
