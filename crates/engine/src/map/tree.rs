//! The block map of a disk: its root, its height and its size.

use forebay_format::{FormatError, MapValue};

use super::index::MAX_HEIGHT;
use super::inner::Child;

/// A block map. Cloning it is O(1) and shares all nodes.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(super) root: Child,
    pub(super) height: u8,
    pub(super) blocks: u64,
}

/// Returns the number of levels that this number of blocks needs; at least one.
pub(super) fn height_for(blocks: u64) -> u8 {
    let bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
    bits.div_ceil(8).max(1) as u8
}

impl Tree {
    /// Returns a map of holes only, for a disk of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Tree {
        let height = height_for(blocks);
        assert!(height <= MAX_HEIGHT, "the caller checks the size");
        Tree { root: Child::Hole, height, blocks }
    }

    /// Returns the tree that a disk record describes.
    pub(crate) fn from_record(root: MapValue, height: u8, blocks: u64) -> Result<Tree, FormatError> {
        if height != height_for(blocks) || height > MAX_HEIGHT {
            return Err(FormatError::Value { what: "disk record", field: "height" });
        }
        Ok(Tree { root: Child::from_value(root), height, blocks })
    }

    /// The tree's fields of a disk record; `None` while the root of the tree is only in memory.
    pub(crate) fn record(&self) -> Option<(MapValue, u8)> {
        self.root.to_value().map(|root| (root, self.height))
    }

    /// Whether it is only the address of a map, or empty, so that it holds no nodes in memory.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.root, Child::Hole | Child::Zero | Child::Stored(_))
    }

    /// Whether both are one map: equal contents in other nodes do not count.
    pub(crate) fn is_same(&self, other: &Tree) -> bool {
        (self.height, self.blocks) == (other.height, other.blocks) && self.root.is_same(&other.root)
    }

    /// Size in blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
}
