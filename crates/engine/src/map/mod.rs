//! The block map of a disk: from logical block number to stored block.
//!
//! # Shape
//!
//! A radix tree with 256 entries per node, as high as the disk's size requires (five levels for 64 TiB). A
//! leaf entry holds a block; an inner entry holds a node of the level below, or states that everything below
//! it is holes or allocated zeroes. A node's index (its level, and its number in the level) follows from the
//! blocks that it covers, so a node read from the wrong location is detected.
//!
//! # Invariants
//!
//! 1. *Shared means immutable.* A snapshot or clone copies the root: O(1). A node is changed in place only
//!    while exactly one tree holds it and it is not stored; otherwise the node and its ancestors are copied.
//! 2. *Stored means final.* A node gets its address once, when a checkpoint assigns it, and does not change
//!    from then on. Everything below a stored node is stored. When the checkpoint is durable the tree
//!    settles: it releases the node, and the reference in the parent suffices to read it back.
//! 3. *A chain of bases has one step.* A sparse leaf may have a base: a leaf that supplies the entries that
//!    the sparse one does not list. A base has no base itself, in memory as on the store. To write to a leaf
//!    that has a base, its list is copied and keeps the base; only a leaf without a base becomes a base.
//! 4. *A listed hole hides the base's entry*: a tombstone. In a leaf without a base, holes are not listed.
//!
//! # Why a leaf need not be read to be written
//!
//! The first write of a clone to a leaf of its image creates a sparse leaf with one entry, based on that
//! leaf. This requires knowing whether the image's leaf can be a base; the form in its reference states
//! whether it is full. A sparse leaf may have a base itself, and is read first if it is not in memory. Lists
//! of more than [`index::MERGE_AT`] entries are merged with their base if that is in memory, and must be
//! merged at [`index::SPARSE_MAX`]. This bounds both the bytes that a checkpoint writes for a leaf with few
//! changed entries (64 bytes for one or two, not 1 to 2 KiB) and the space that a base keeps alive.
//!
//! # Copies
//!
//! [`Tree::copy`] copies a range of equal length from another map. A node contains its index, so whole
//! subtrees are shared only if a range is copied to the same blocks of another disk; otherwise the values are
//! copied, one leaf at a time.
//!
//! # Damage
//!
//! An unreadable stored node damages only the blocks below it: a read fails when it reaches the node, and a
//! change replaces the node with a stand-in and continues ([`stand_in`]).
//!
//! # Loading
//!
//! Operations never wait. An operation that reaches a node which is not in memory returns [`NeedNode`]. The
//! caller reads the bytes, has them checked by [`NeedNode::accept`], inserts the node into the [`NodeCache`]
//! and retries the operation. This is correct because every operation is idempotent: a retry repeats the work
//! of the interrupted attempt with the same outcome. The cache always holds at least the nodes of one
//! descent, so retrying terminates.
//!
//! # Memory
//!
//! A value takes ten bytes in a dense node, eleven with its key in a sparse one, and a node some 80 more: see
//! [`node`]. The map of a full 40 GiB image takes 110 MB when it is cached completely, once for all clones.
//! An idle clone takes the 32 bytes of its [`Tree`]. A clone of such an image with 10 % of its blocks written
//! at random takes 15.1 bytes per written block until the next checkpoint, and 15.9 in the cache after it (5
//! %: 19 and 21; 1 %, where most leaves have two or three: 48 and 55); above 37 % the leaves are dense again,
//! which is 26 bytes per written block at first and 10 in the end. Changed inner nodes take 4 KiB each until
//! the next checkpoint. `figures` measures this.
//!
//! # Concurrency
//!
//! Each tree has one writer or many readers at a time, enforced by the disk's lock. Nodes are shared freely
//! between trees and threads. A cache lock is held for one look-up.

mod build;
mod cache;
mod checkpoint;
mod copy;
mod difference;
#[cfg(test)]
mod figures;
mod hold;
mod index;
mod inner;
mod need;
mod node;
mod read;
mod shared;
mod stand_in;
#[cfg(test)]
mod tests;
mod tree;
mod write;

pub(crate) use build::{EncodedNode, MapBuilder};
pub(crate) use cache::NodeCache;
pub(crate) use checkpoint::{Dirty, Ref, collect_dirty};
pub(crate) use difference::{Change, changes, end_of_part};
pub(crate) use hold::{Held, Touch};
pub(crate) use index::MAX_HEIGHT;
pub(crate) use need::NeedNode;
pub(crate) use node::Node;
pub(crate) use read::RunKind;
pub(crate) use tree::Tree;
