//! Requests for nodes that are not in memory.

use forebay_format::{BlockRef, FormatError, MapNode};

use super::index::NodeIndex;
use super::node::Node;

/// A stored node that an operation needs and that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedNode {
    /// Location of the node.
    pub at: BlockRef,
    pub(super) index: NodeIndex,
    pub(super) base: bool,
}

impl NeedNode {
    pub(super) fn child(at: BlockRef, index: NodeIndex) -> NeedNode {
        NeedNode { at, index, base: false }
    }
    pub(super) fn base(at: BlockRef, index: NodeIndex) -> NeedNode {
        NeedNode { at, index, base: true }
    }

    /// Returns the index of the node as a number, with which [`NeedNode::from_bits`] makes the same request
    /// for a child.
    pub(crate) fn index_bits(&self) -> u32 {
        self.index.to_bits()
    }

    /// The request for the child at `at` with this index.
    pub(crate) fn from_bits(at: BlockRef, index: u32) -> NeedNode {
        NeedNode::child(at, NodeIndex::from_bits(index))
    }

    /// Level of the node: 0 for a leaf.
    pub(crate) fn level(&self) -> u8 {
        self.index.level()
    }

    /// Returns the last block that the node covers.
    pub(crate) fn last_block(&self) -> u64 {
        self.index.span().1
    }

    /// Whether `node` is the needed node and valid for its use.
    pub(super) fn fits(&self, node: &Node) -> bool {
        node.index() == self.index && !(self.base && node.has_base())
    }

    /// Decodes the stored bytes of the node, whose checksum the caller has verified, and checks that it has
    /// the needed index.
    pub(crate) fn accept(&self, bytes: &[u8]) -> Result<Node, FormatError> {
        let node = Node::from_format(MapNode::decode(bytes)?)?;
        if node.index() != self.index {
            return Err(FormatError::Foreign { what: "map node", field: "index" });
        }
        if !self.fits(&node) {
            return Err(FormatError::Value { what: "map node", field: "base" });
        }
        Ok(node)
    }
}
