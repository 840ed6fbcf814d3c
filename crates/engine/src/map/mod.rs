//! The block map of a disk: from logical block number to stored block.
//!
//! # Shape
//!
//! A radix tree with 256 places in a node, as high as the disk's size needs (five levels for 64 TiB). A place
//! of a leaf holds a block; above, a place holds a node of the level below, or says that all below it is holes
//! or allocated zeroes. A node's number in its level follows from the blocks it is for, so a node that is read
//! from the wrong place is noticed.
//!
//! # Invariants
//!
//! 1. *Shared means immutable.* A snapshot or clone copies the root: O(1). A node is changed in place only while
//!    one tree alone holds it and it is not stored; else the change goes to a copy, and so do its ancestors.
//! 2. *Stored means final.* A node is given its address once, when a checkpoint has decided it, and does not
//!    change from then on. All below a stored node is stored. When the checkpoint is durable the tree settles:
//!    it lets go of the node, and the reference in the parent is enough to read it back.
//! 3. *Chains end after one step.* A sparse leaf may stand on a base: a leaf that says what the sparse one does
//!    not list. A base has no base, in memory as on the store. To write to a leaf that has a base, its list is
//!    copied and keeps the base; only a leaf without one becomes a base.
//! 4. *A hole in a list hides the base*: a tombstone. Without a base it is not listed.
//!
//! # Why a leaf need not be read to be written
//!
//! The first write of a clone to a leaf of its image makes a sparse leaf of one place on that leaf. Whether the
//! image's leaf may be a base must be known; the form in its reference tells whether it is full. A sparse leaf may
//! have a base, and is read first if it is not in memory. Lists of more than [`MERGE_AT`] places are merged with their base when that is in memory, and
//! must be at [`SPARSE_MAX`]. This bounds both what a checkpoint writes for a leaf in which few places changed
//! (64 bytes for one or two, not 1 to 2 KiB) and what a base keeps alive.
//!
//! # Copies
//!
//! A range may take what another map says of as many blocks ([`Tree::copy`]). A node knows its place, so whole
//! subtrees are shared only where a range is copied to the same blocks of another disk; anywhere else the values
//! are copied, a leaf at a time.
//!
//! # Damage
//!
//! A stored node that cannot be read is damage of what is below it and of nothing else: a reader learns of it when it
//! gets there, and a change puts a stand-in in its place and goes on ([`stand_in`]).
//!
//! # Loading
//!
//! Operations never wait. One that meets a node which is not in memory returns [`NeedNode`]; the caller reads
//! the bytes, has them checked by [`NeedNode::accept`], gives the node to the [`NodeCache`] and calls again.
//! That is sound because every operation can be repeated: what an interrupted one has done, the next does
//! again with the same outcome. The cache always holds at least what one descent needs, so repeating ends.
//!
//! # Memory
//!
//! A value takes ten bytes in a dense node, eleven with its key in a sparse one, and a node some 80 more: see
//! [`node`]. The map of a full 40 GiB image takes 110 MB when all of it is cached, once for all clones. An idle
//! clone takes the 32 bytes of its [`Tree`]. A clone in which 10 % of the blocks of such an image were written
//! at random takes 15.1 bytes for each of these blocks until the next checkpoint and 15.9 in the cache after it
//! (5 %: 19 and 21; 1 %, where most leaves have two or three: 48 and 55); above 37 % the leaves are dense again,
//! which is 26 bytes for each written block at first and 10 in the end. Changed inner nodes take 4 KiB each until
//! the next checkpoint. `figures` measures this.
//!
//! # Concurrency
//!
//! One writer or many readers for each tree; the disk's lock sees to that. Nodes are shared freely between
//! trees and threads. Locks of the cache are held for one look-up.

mod cache;
mod checkpoint;
mod copy;
#[cfg(test)]
mod figures;
mod hold;
mod inner;
mod node;
mod read;
mod stand_in;
#[cfg(test)]
mod tests;
mod write;

use forebay_format::{BlockRef, FormatError, MapNode, MapValue};

pub(crate) use cache::NodeCache;
pub(crate) use checkpoint::{Dirty, Ref, collect_dirty};
pub(crate) use hold::{Held, Touch};
use inner::Child;
pub(crate) use node::Node;
#[allow(unused_imports, reason = "as the function")]
pub(crate) use node::unstored_bytes;
pub(crate) use read::RunKind;

/// Most levels: enough for 64 TiB.
const MAX_HEIGHT: u8 = 5;
/// Most places that a sparse node lists, in memory and on the store.
const SPARSE_MAX: usize = 224;
/// A sparse leaf with a base that lists more than this is merged with it when the base is in memory.
const MERGE_AT: usize = 96;
/// A stored or shared leaf without a base that lists no more than this is copied to be changed; a larger one
/// becomes the base of a sparse leaf.
const COPY_MAX: usize = 48;
/// Whether the node stored at `at` is full. A node that is not may have a base.
fn is_full(at: BlockRef) -> bool {
    at.form.of_node() == Some(true)
}

/// A block reference in the twelve bytes that it has on the store; it is in memory by the million.
#[derive(Debug, Clone, Copy)]
struct At([u32; 3]);

impl From<BlockRef> for At {
    fn from(at: BlockRef) -> At {
        At(MapValue::At(at).to_words())
    }
}

impl At {
    fn get(self) -> BlockRef {
        match MapValue::from_words(self.0) {
            Some(MapValue::At(at)) => at,
            _ => unreachable!("made from a block reference"),
        }
    }
}

/// Which node: its level, and its number in the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Place {
    fn root(height: u8) -> Place {
        Place(u32::from(height - 1) << 28)
    }
    /// The place, if a tree of the highest kind has it.
    fn checked(level: u8, index: u64) -> Option<Place> {
        let fits = level < MAX_HEIGHT && index < 1 << (34u32.saturating_sub(8 * (u32::from(level) + 1)));
        fits.then(|| Place(u32::from(level) << 28 | index as u32))
    }
    /// The node of `level` in which `block` is.
    fn of(level: u8, block: u64) -> Place {
        Place(u32::from(level) << 28 | (block >> (8 * (u32::from(level) + 1))) as u32)
    }
    fn level(self) -> u8 {
        (self.0 >> 28) as u8
    }
    fn index(self) -> u64 {
        (self.0 & ((1 << 28) - 1)).into()
    }
    fn child(self, place: u8) -> Place {
        Place(u32::from(self.level() - 1) << 28 | (self.index() as u32) << 8 | u32::from(place))
    }
    /// Its first and its last block.
    fn span(self) -> (u64, u64) {
        let shift = 8 * (u32::from(self.level()) + 1);
        (self.index() << shift, ((self.index() + 1) << shift) - 1)
    }
}

/// The place of `block` in a node of `level`.
fn place_in(level: u8, block: u64) -> u8 {
    (block >> (8 * u32::from(level))) as u8
}

/// A stored node that an operation lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedNode {
    /// Where it is.
    pub at: BlockRef,
    place: Place,
    base: bool,
}

impl NeedNode {
    fn child(at: BlockRef, place: Place) -> NeedNode {
        NeedNode { at, place, base: false }
    }
    fn base(at: BlockRef, place: Place) -> NeedNode {
        NeedNode { at, place, base: true }
    }

    /// Whether it is the right node, fit for its use.
    fn fits(&self, node: &Node) -> bool {
        node.place() == self.place && !(self.base && node.has_base())
    }

    /// Decodes the stored bytes of the node, whose checksum the caller has verified, and checks that it is the
    /// node of the place that needs it.
    pub(crate) fn accept(&self, bytes: &[u8]) -> Result<Node, FormatError> {
        let node = Node::from_format(MapNode::decode(bytes)?)?;
        if node.place() != self.place {
            return Err(FormatError::Foreign { what: "map node", field: "index" });
        }
        if !self.fits(&node) {
            return Err(FormatError::Value { what: "map node", field: "base" });
        }
        Ok(node)
    }
}

/// A block map. Cloning it is O(1) and shares all nodes.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: Child,
    height: u8,
    blocks: u64,
}

/// Levels that so many blocks need; at least one.
fn height_for(blocks: u64) -> u8 {
    let bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
    bits.div_ceil(8).max(1) as u8
}

impl Tree {
    /// All holes.
    pub(crate) fn new(blocks: u64) -> Tree {
        let height = height_for(blocks);
        assert!(height <= MAX_HEIGHT, "sizes are checked where they come in");
        Tree { root: Child::Hole, height, blocks }
    }

    /// The tree that a disk record names.
    pub(crate) fn from_record(root: MapValue, height: u8, blocks: u64) -> Result<Tree, FormatError> {
        if height != height_for(blocks) || height > MAX_HEIGHT {
            return Err(FormatError::Value { what: "disk record", field: "height" });
        }
        Ok(Tree { root: Child::from_value(root), height, blocks })
    }

    /// What a disk record says of the tree; `None` while its root is only in memory.
    pub(crate) fn record(&self) -> Option<(MapValue, u8)> {
        self.root.to_value().map(|root| (root, self.height))
    }

    /// Size in blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
}
