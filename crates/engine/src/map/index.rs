//! Indexes of map nodes, block references in their packed form, and the limits of a map.

use forebay_format::{BlockRef, MapValue};

/// Maximum number of levels: enough for 64 TiB.
pub(crate) const MAX_HEIGHT: u8 = 5;
/// Maximum number of entries that a sparse node lists, in memory and on the store.
pub(super) const SPARSE_MAX: usize = 224;
/// A sparse leaf that lists more entries than this is merged with its base when the base is in memory.
pub(super) const MERGE_AT: usize = 96;
/// A stored or shared leaf without a base that lists at most this many entries is copied to be changed; a
/// larger leaf becomes the base of a sparse leaf.
pub(super) const COPY_MAX: usize = 48;
/// Whether the node stored at `at` is full. A node that is not full may have a base.
pub(super) fn is_full(at: BlockRef) -> bool {
    at.form.of_node() == Some(true)
}

/// A block reference in the twelve bytes of its stored form; memory holds millions of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct At([u32; 3]);

impl From<BlockRef> for At {
    fn from(at: BlockRef) -> At {
        At(MapValue::At(at).to_words())
    }
}

impl At {
    pub(super) fn get(self) -> BlockRef {
        match MapValue::from_words(self.0) {
            Some(MapValue::At(at)) => at,
            _ => unreachable!("made from a block reference"),
        }
    }
}

/// Index of a node: its level, and its number in the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeIndex(u32);

impl NodeIndex {
    pub(super) fn root(height: u8) -> NodeIndex {
        NodeIndex(u32::from(height - 1) << 28)
    }
    /// The index of a node from its level and its number `index`; `None` if even the highest possible tree
    /// has no such node.
    pub(super) fn checked(level: u8, index: u64) -> Option<NodeIndex> {
        let fits = level < MAX_HEIGHT && index < 1 << (34u32.saturating_sub(8 * (u32::from(level) + 1)));
        fits.then(|| NodeIndex(u32::from(level) << 28 | index as u32))
    }
    /// Returns the node of `level` that covers `block`.
    pub(super) fn of(level: u8, block: u64) -> NodeIndex {
        NodeIndex(u32::from(level) << 28 | (block >> (8 * (u32::from(level) + 1))) as u32)
    }
    pub(super) fn to_bits(self) -> u32 {
        self.0
    }
    pub(super) fn from_bits(bits: u32) -> NodeIndex {
        NodeIndex(bits)
    }
    pub(super) fn level(self) -> u8 {
        (self.0 >> 28) as u8
    }
    pub(super) fn index(self) -> u64 {
        (self.0 & ((1 << 28) - 1)).into()
    }
    pub(super) fn child(self, place: u8) -> NodeIndex {
        NodeIndex(u32::from(self.level() - 1) << 28 | (self.index() as u32) << 8 | u32::from(place))
    }
    /// Returns the first and the last block of the node.
    pub(super) fn span(self) -> (u64, u64) {
        let shift = 8 * (u32::from(self.level()) + 1);
        (self.index() << shift, ((self.index() + 1) << shift) - 1)
    }
}

/// The index of the entry for `block` in a node of `level`.
pub(super) fn slot_of(level: u8, block: u64) -> u8 {
    (block >> (8 * u32::from(level))) as u8
}
