//! The difference of two maps, by which the contents of two disks are compared without reading a block.
//!
//! **No difference is missed.** An address is never reused, and the block at an address never changes, so
//! blocks with the same address have the same contents. A subtree is skipped only if both maps have the same
//! node there ([`Child::is_same`]), or if both have no data there. All other blocks are compared one by one.
//! A block that was written again with its old contents can have another address, and then counts as changed.
//!
//! **Cost.** A node is needed only below two nodes that differ. So the nodes that a comparison reads are, for
//! each leaf that differs, at most the paths to the leaf in both maps, and the base of each leaf.

use forebay_format::{FANOUT, MapValue};

use super::cache::NodeCache;
use super::index::NodeIndex;
use super::inner::Child;
use super::need::NeedNode;
use super::tree::Tree;

/// How a block of the second map differs from the same block of the first map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The contents are equal.
    Same,
    /// The block now has data.
    Data,
    /// The block had data, and now reads as zeroes.
    Zero,
}

/// A subtree of a map, by its identity.
#[derive(Debug, Clone)]
pub(crate) struct Part(Child);

impl Part {
    /// Whether both subtrees certainly have the same contents.
    pub(crate) fn is_same(&self, other: &Part) -> bool {
        let has_no_data = |part: &Part| matches!(part.0, Child::Hole | Child::Zero);
        (has_no_data(self) && has_no_data(other)) || self.0.is_same(&other.0)
    }

    /// The value of all blocks of the subtree, if it is a hole or zeroes as a whole.
    pub(crate) fn value_of_all(&self) -> Option<MapValue> {
        match self.0 {
            Child::Hole => Some(MapValue::Hole),
            Child::Zero => Some(MapValue::Zero),
            Child::Stored(_) | Child::Leaf(_) | Child::Inner(_) => None,
        }
    }
}

/// Compares the values that two maps have for the same blocks.
pub(crate) fn changes<'a>(
    from: &'a [MapValue],
    to: &'a [MapValue],
) -> impl Iterator<Item = Change> + use<'a> {
    from.iter().zip(to).map(|(from, to)| match (from, to) {
        (from, to) if from == to => Change::Same,
        (_, MapValue::At(_)) => Change::Data,
        (MapValue::At(_), _) => Change::Zero,
        _ => Change::Same,
    })
}

impl Tree {
    /// The number of levels of the map.
    pub(crate) fn levels(&self) -> u8 {
        self.height
    }

    /// The subtree of a level that contains `block`. `None` if the map has fewer levels, so that a part of
    /// the subtree is beyond its root.
    pub(crate) fn part(&self, cache: &NodeCache, level: u8, block: u64) -> Result<Option<Part>, NeedNode> {
        if block >= self.blocks {
            return Ok(Some(Part(Child::Hole)));
        }
        if level >= self.height {
            return Ok(None);
        }
        self.subtree(cache, NodeIndex::of(level, block)).map(|child| Some(Part(child)))
    }

    /// The values of the blocks from `block` to the end of its leaf, and their number.
    pub(crate) fn rest_of_leaf(
        &self,
        cache: &NodeCache,
        block: u64,
    ) -> Result<([MapValue; FANOUT], usize), NeedNode> {
        let mut values = [MapValue::Hole; FANOUT];
        let count = FANOUT - (block % FANOUT as u64) as usize;
        match self.get_range(cache, block, &mut values[..count]) {
            (_, Some(need)) => Err(need),
            (_, None) => Ok((values, count)),
        }
    }
}

/// The block after the subtree of a level that contains `block`.
pub(crate) fn end_of_part(level: u8, block: u64) -> u64 {
    NodeIndex::of(level, block).span().1 + 1
}
