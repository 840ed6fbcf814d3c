//! Loads nodes into memory before they are needed, and keeps them there.

use forebay_format::{BlockRef, MapValue};
use hashbrown::HashSet;

use super::cache::NodeCache;
use super::index::{NodeIndex, SPARSE_MAX, is_full, slot_of};
use super::inner::Child;
use super::need::NeedNode;
use super::node::Node;
use super::tree::Tree;

/// Blocks of one leaf that are to be changed, or one block that is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    /// Number of one of the node's blocks.
    pub block: u64,
    /// Number of blocks of the leaf that change.
    pub count: usize,
    /// Whether the current value of `block` is needed as well.
    pub is_read: bool,
}

/// Keeps nodes in memory while it exists, regardless of eviction.
pub(crate) struct Held<'a> {
    cache: &'a NodeCache,
    keys: HashSet<u64>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(cache: &'a NodeCache) -> Held<'a> {
        Held { cache, keys: HashSet::new() }
    }

    /// Keeps a node that is stored at `at`.
    pub(crate) fn keep(&mut self, at: BlockRef, node: &Node) {
        let key = at.addr.to_u64();
        if self.keys.insert(key) {
            self.cache.pin(key, node);
        }
    }

    fn find(&mut self, need: NeedNode) -> Result<Node, NeedNode> {
        let node = self.cache.peek(need).ok_or(need)?;
        self.keep(need.at, &node);
        Ok(node)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cache.unpin(&self.keys);
    }
}

impl Tree {
    /// Holds the nodes that a change needs.
    ///
    /// # Errors
    /// The next one that is not in memory.
    pub(crate) fn hold(&self, held: &mut Held<'_>, touch: Touch) -> Result<(), NeedNode> {
        self.visit(touch, &mut |need| held.find(need))
    }

    /// Whether the nodes that a change needs are in memory. The base of a changed leaf is not checked: the
    /// leaf is merged with it only once in [`SPARSE_MAX`] changes, which does not justify a check at each
    /// change.
    pub(crate) fn is_warm(&self, cache: &NodeCache, touch: Touch) -> bool {
        debug_assert!(!touch.is_read);
        match self.descend(touch.block) {
            Some((Child::Stored(at), level)) => {
                visit_stored(at.get(), level, touch, &mut |need| cache.peek(need).ok_or(need)).is_ok()
            }
            _ => true,
        }
    }

    /// Looks up the stored nodes that a change needs, from the root down.
    fn visit(
        &self,
        touch: Touch,
        find: &mut impl FnMut(NeedNode) -> Result<Node, NeedNode>,
    ) -> Result<(), NeedNode> {
        match self.descend(touch.block) {
            Some((Child::Leaf(leaf), _)) => visit_base(leaf, touch, find),
            Some((Child::Stored(at), level)) => visit_stored(at.get(), level, touch, find),
            _ => Ok(()),
        }
    }

    /// Returns where the path to a block leaves the changed inner nodes, and at which level; `None` for a
    /// block beyond the end.
    fn descend(&self, block: u64) -> Option<(&Child, u8)> {
        if block >= self.blocks {
            return None;
        }
        let (mut child, mut level) = (&self.root, self.height - 1);
        while let Child::Inner(node) = child {
            child = &node.children[usize::from(slot_of(level, block))];
            level -= 1;
        }
        Some((child, level))
    }
}

fn visit_stored(
    mut at: BlockRef,
    mut level: u8,
    touch: Touch,
    find: &mut impl FnMut(NeedNode) -> Result<Node, NeedNode>,
) -> Result<(), NeedNode> {
    while level > 0 {
        let node = find(NeedNode::child(at, NodeIndex::of(level, touch.block)))?;
        match node.own(slot_of(level, touch.block)) {
            Some(MapValue::At(next)) => at = next,
            _ => return Ok(()),
        }
        level -= 1;
    }
    // A full leaf becomes the base of a sparse leaf without being read, until the sparse leaf lists too many
    // blocks.
    if is_full(at) && touch.count < SPARSE_MAX && !touch.is_read {
        return Ok(());
    }
    let leaf = find(NeedNode::child(at, NodeIndex::of(0, touch.block)))?;
    visit_base(&leaf, touch, find)
}

fn visit_base(
    leaf: &Node,
    touch: Touch,
    find: &mut impl FnMut(NeedNode) -> Result<Node, NeedNode>,
) -> Result<(), NeedNode> {
    let merges = leaf.count() + touch.count >= SPARSE_MAX;
    let reads = touch.is_read && leaf.own(slot_of(0, touch.block)).is_none();
    match leaf.stored_base() {
        Some(base) if merges || reads => find(base).map(drop),
        _ => Ok(()),
    }
}
