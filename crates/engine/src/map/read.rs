//! Looking up blocks.

use forebay_format::{BlockRef, FANOUT, MapValue};

use super::cache::NodeCache;
use super::index::{NodeIndex, slot_of};
use super::inner::Child;
use super::need::NeedNode;
use super::node::{Base, Node};
use super::tree::Tree;
use crate::limits::{LEAF_STEPS, TURN_STEPS};

/// Kinds of blocks, for block status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// The blocks are not allocated.
    Hole,
    /// The blocks are allocated zeroes.
    Zero,
    /// The blocks are stored.
    Data,
}

impl RunKind {
    fn of(value: MapValue) -> RunKind {
        match value {
            MapValue::Hole => RunKind::Hole,
            MapValue::Zero => RunKind::Zero,
            MapValue::At(_) => RunKind::Data,
        }
    }
}

/// Where the descent to a block ends, or where it leaves the nodes that the tree itself holds in memory.
enum Reach<'a> {
    /// There is no leaf: all blocks up to and including this block are holes, or all are zeroes.
    All(MapValue, u64),
    /// The descent ends at this leaf.
    Leaf(&'a Node),
    /// The descent continues at a stored node of this level.
    Stored(BlockRef, u8),
}

/// What a leaf states about a block.
enum Said {
    Value(MapValue),
    AsIn(Base),
}

impl Said {
    fn by(leaf: &Node, place: u8) -> Said {
        match (leaf.own(place), leaf.base()) {
            (Some(value), _) => Said::Value(value),
            (None, Base::None) => Said::Value(MapValue::Hole),
            (None, base) => Said::AsIn(base.clone()),
        }
    }
}

impl Tree {
    /// The value of one block; a block beyond the end of the map is a hole.
    pub(crate) fn get(&self, cache: &NodeCache, block: u64) -> Result<MapValue, NeedNode> {
        let place = slot_of(0, block);
        let said = match self.reach(block) {
            Reach::All(value, _) => return Ok(value),
            Reach::Leaf(leaf) => Said::by(leaf, place),
            Reach::Stored(at, level) => match descend(cache, at, level, block)? {
                Ok(leaf) => cache.look(leaf, |leaf| Said::by(leaf, place))?,
                Err((value, _)) => return Ok(value),
            },
        };
        match said {
            Said::Value(value) => Ok(value),
            Said::AsIn(Base::None) => Ok(MapValue::Hole),
            Said::AsIn(Base::Mem(base)) => Ok(base.own(place).unwrap_or_default()),
            Said::AsIn(Base::Stored(at)) => {
                let need = NeedNode::base(at.get(), NodeIndex::of(0, block));
                cache.look(need, |base| base.own(place).unwrap_or_default())
            }
        }
    }

    /// Fills `out` with the values of the blocks from `first` on. Returns the number of values filled and, if
    /// that is not all, the missing node; `None` if the map ends there.
    pub(crate) fn get_range(
        &self,
        cache: &NodeCache,
        first: u64,
        out: &mut [MapValue],
    ) -> (usize, Option<NeedNode>) {
        let mut done = 0;
        let inside = usize::try_from(self.blocks.saturating_sub(first)).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..inside];
        while done < out.len() {
            let block = first + done as u64;
            let left = &mut out[done..];
            let filled = self.leaf(cache, block).and_then(|found| match found {
                Err((value, last)) => {
                    let n = left.len().min(usize::try_from(last - block + 1).unwrap_or(usize::MAX));
                    left[..n].fill(value);
                    Ok(n)
                }
                Ok(leaf) => {
                    let place = slot_of(0, block);
                    let n = left.len().min(FANOUT - usize::from(place));
                    leaf.read(cache, place, &mut left[..n])?;
                    Ok(n)
                }
            });
            match filled {
                Ok(n) => done += n,
                Err(need) => return (done, Some(need)),
            }
        }
        (done, None)
    }

    /// Kind of `block`, and the number of blocks of the same kind from `block` on: at least 1, at most `max`.
    /// If a later node is missing, or after [`TURN_STEPS`] steps through the map, the run ends early; two
    /// adjacent runs may therefore be of the same kind. Blocks beyond the end are holes.
    pub(crate) fn run(&self, cache: &NodeCache, block: u64, max: u64) -> Result<(RunKind, u64), NeedNode> {
        let end = block.saturating_add(max).min(self.blocks);
        if block >= end {
            return Ok((RunKind::Hole, max));
        }
        let (mut kind, mut at, mut steps) = (None, block, 0);
        while at < end && steps < TURN_STEPS {
            let (found, last) = match self.stretch(cache, at, end - 1) {
                Ok(stretch) => stretch,
                Err(_) if kind.is_some() => break,
                Err(need) => return Err(need),
            };
            if kind.is_some_and(|k| k != found) {
                break;
            }
            kind = Some(found);
            // A run longer than a leaf is an absent subtree.
            steps += if last - at < FANOUT as u64 { LEAF_STEPS } else { 1 };
            at = last + 1;
            if at & (FANOUT as u64 - 1) != 0 {
                break;
            }
        }
        let kind = kind.expect("the run is not empty");
        Ok((kind, at - block))
    }

    /// Kind of a block, and the last block of that kind in its leaf or absent subtree, at most `end`.
    fn stretch(&self, cache: &NodeCache, block: u64, end: u64) -> Result<(RunKind, u64), NeedNode> {
        match self.leaf(cache, block)? {
            Err((value, last)) => Ok((RunKind::of(value), last.min(end))),
            Ok(leaf) => {
                let place = slot_of(0, block);
                let n = (FANOUT - usize::from(place)).min(usize::try_from(end - block).unwrap_or(FANOUT) + 1);
                let mut values = [MapValue::Hole; FANOUT];
                leaf.read(cache, place, &mut values[..n])?;
                let kind = RunKind::of(values[0]);
                let len = values[..n].iter().take_while(|v| RunKind::of(**v) == kind).count();
                Ok((kind, block + len as u64 - 1))
            }
        }
    }

    /// The common value of all blocks from `block` on, and the last of these blocks; `None` if there is a
    /// leaf.
    pub(super) fn absent(&self, cache: &NodeCache, block: u64) -> Result<Option<(MapValue, u64)>, NeedNode> {
        match self.reach(block) {
            Reach::All(value, last) => Ok(Some((value, last))),
            Reach::Leaf(_) => Ok(None),
            Reach::Stored(at, level) => Ok(descend(cache, at, level, block)?.err()),
        }
    }

    /// The leaf of `block`; without a leaf, the common value of all blocks from `block` on, and the last of
    /// these blocks.
    fn leaf(&self, cache: &NodeCache, block: u64) -> Result<Result<Node, (MapValue, u64)>, NeedNode> {
        match self.reach(block) {
            Reach::All(value, last) => Ok(Err((value, last))),
            Reach::Leaf(leaf) => Ok(Ok(leaf.clone())),
            Reach::Stored(at, level) => match descend(cache, at, level, block)? {
                Ok(leaf) => cache.get(leaf).map(Ok),
                Err(all) => Ok(Err(all)),
            },
        }
    }

    /// Descends as far as the nodes are held by pointer.
    ///
    /// A range that was checked against the size of a disk may be beyond the end of its map a moment later: a
    /// disk that is being scanned or prefetched has no client and can be shrunk concurrently.
    fn reach(&self, block: u64) -> Reach<'_> {
        if block >= self.blocks {
            return Reach::All(MapValue::Hole, u64::MAX);
        }
        let mut child = &self.root;
        let mut level = self.height;
        loop {
            level -= 1;
            match child {
                Child::Hole => return Reach::All(MapValue::Hole, last_block(level, block)),
                Child::Zero => return Reach::All(MapValue::Zero, last_block(level, block)),
                Child::Leaf(leaf) => return Reach::Leaf(leaf),
                Child::Inner(node) => child = &node.children[usize::from(slot_of(level, block))],
                Child::Stored(at) => return Reach::Stored(at.get(), level),
            }
        }
    }
}

/// Continues the descent in the cache, from a node of `level` that is stored at `at`. It ends at the leaf,
/// which is not looked up yet, or with the common value of all blocks up to a last block.
fn descend(
    cache: &NodeCache,
    mut at: BlockRef,
    mut level: u8,
    block: u64,
) -> Result<Result<NeedNode, (MapValue, u64)>, NeedNode> {
    loop {
        let need = NeedNode::child(at, NodeIndex::of(level, block));
        if level == 0 {
            return Ok(Ok(need));
        }
        let value = cache.look(need, |node| node.own(slot_of(level, block)).unwrap_or_default())?;
        level -= 1;
        match value {
            MapValue::At(next) => at = next,
            value => return Ok(Err((value, last_block(level, block)))),
        }
    }
}

/// Last block covered by the node of `level` that covers `block`.
fn last_block(level: u8, block: u64) -> u64 {
    NodeIndex::of(level, block).span().1
}

impl Node {
    /// The base of the node; `None` if the node has no base.
    pub(super) fn load_base(&self, cache: &NodeCache) -> Result<Option<Node>, NeedNode> {
        Ok(match self.base() {
            Base::None => None,
            Base::Mem(base) => Some(base.clone()),
            Base::Stored(at) => Some(cache.get(NeedNode::base(at.get(), self.index()))?),
        })
    }

    /// Reads the entries of a node from `first` on.
    fn read(&self, cache: &NodeCache, first: u8, out: &mut [MapValue]) -> Result<(), NeedNode> {
        if self.has_base() && self.copy_listed(first, out) == out.len() {
            return Ok(());
        }
        let base = self.load_base(cache)?;
        out.fill(MapValue::Hole);
        if let Some(base) = base {
            base.copy_listed(first, out);
        }
        self.copy_listed(first, out);
        Ok(())
    }

    /// Copies the listed entries from `first` on; returns their number.
    fn copy_listed(&self, first: u8, out: &mut [MapValue]) -> usize {
        let mut listed = 0;
        for (place, value) in self.listed(first) {
            match out.get_mut(usize::from(place - first)) {
                Some(out) => *out = value,
                None => break,
            }
            listed += 1;
        }
        listed
    }
}
