//! Operations on maps for checkpoints, and the tree walks for mark and check.
//!
//! A checkpoint copies the trees, collects the nodes that are not stored, and appends them in groups: each
//! group refers only to nodes of earlier groups, which already have addresses. The trees may change
//! concurrently: a node that the copies hold is shared, so it stays unchanged. When the checkpoint is
//! durable, the trees settle: pointers to nodes become addresses. A node has its address before that, but it
//! is not read from the address until the tree has settled.

use std::collections::HashSet;

use forebay_format::{BlockRef, MapNode, MapValue};
use triomphe::Arc;

use super::cache::NodeCache;
use super::index::{MAX_HEIGHT, NodeIndex, slot_of};
use super::inner::{Child, Inner};
use super::need::NeedNode;
use super::node::{Base, Node};
use super::tree::Tree;

/// A node that is in memory only.
#[derive(Debug, Clone)]
pub(crate) enum Dirty {
    /// A leaf of the map.
    Leaf(Node),
    /// An inner node of the map.
    Inner(Arc<Inner>),
}

impl Dirty {
    /// The node in its stored layout. Nodes of earlier groups must be stored by now.
    pub(crate) fn encode(&self) -> MapNode {
        match self {
            Dirty::Leaf(node) => node.to_format(),
            Dirty::Inner(node) => node.to_format(),
        }
    }

    /// Address of the node, if it was assigned.
    pub(crate) fn stored(&self) -> Option<BlockRef> {
        match self {
            Dirty::Leaf(node) => node.stored(),
            Dirty::Inner(node) => node.stored.get(),
        }
    }

    /// Assigns the address of the node. Only the first call has an effect.
    pub(crate) fn set_stored(&self, at: BlockRef) {
        match self {
            Dirty::Leaf(node) => node.set_stored(at),
            Dirty::Inner(node) => node.stored.set(at),
        }
    }
}

/// The distinct nodes of `trees` that are not stored, in groups that refer only to earlier groups: leaves
/// without a base, then leaves with a base, then the inner nodes level by level. Empty groups are omitted.
pub(crate) fn collect_dirty<'a>(trees: impl Iterator<Item = &'a Tree>) -> Vec<Vec<Dirty>> {
    let mut groups: [Vec<Dirty>; MAX_HEIGHT as usize + 1] = Default::default();
    let mut seen = HashSet::new();
    for tree in trees {
        collect(&tree.root, &mut groups, &mut seen);
    }
    groups.into_iter().filter(|g| !g.is_empty()).collect()
}

fn collect(child: &Child, groups: &mut [Vec<Dirty>], seen: &mut HashSet<*const u8>) {
    match child {
        Child::Hole | Child::Zero | Child::Stored(_) => {}
        Child::Leaf(node) => collect_leaf(node, groups, seen),
        Child::Inner(node) => {
            if node.stored.get().is_none() && seen.insert(Arc::as_ptr(node).cast()) {
                node.children.iter().for_each(|c| collect(c, groups, seen));
                groups[usize::from(node.place.level()) + 1].push(Dirty::Inner(node.clone()));
            }
        }
    }
}

fn collect_leaf(node: &Node, groups: &mut [Vec<Dirty>], seen: &mut HashSet<*const u8>) {
    if node.stored().is_none() && seen.insert(node.ptr()) {
        if let Base::Mem(base) = node.base() {
            collect_leaf(base, groups, seen);
        }
        groups[usize::from(node.has_base())].push(Dirty::Leaf(node.clone()));
    }
}

impl Tree {
    /// Releases stored nodes into the cache. Called after a checkpoint is durable, and before the next one
    /// begins to assign addresses. The tree may have changed since the checkpoint began. The cost is
    /// proportional to the number of nodes that had changed. A node that is not stored and that another tree
    /// holds, too, is left unchanged until it is stored.
    pub(crate) fn settle(&mut self, cache: &NodeCache) {
        settle(&mut self.root, cache);
    }
}

fn settle(child: &mut Child, cache: &NodeCache) {
    match child {
        Child::Hole | Child::Zero | Child::Stored(_) => {}
        Child::Leaf(node) => match node.stored() {
            Some(at) => {
                release_leaf(node, at, cache);
                *child = Child::Stored(at.into());
            }
            None => settle_base(node, cache),
        },
        Child::Inner(node) => match node.stored.get() {
            Some(at) => {
                release_inner(node, at, cache);
                *child = Child::Stored(at.into());
            }
            None => {
                if let Some(node) = Arc::get_mut(node) {
                    node.children.iter_mut().for_each(|c| settle(c, cache));
                }
            }
        },
    }
}

/// Replaces the base in memory of an unstored leaf by the address of the base, if the base is stored.
fn settle_base(node: &mut Node, cache: &NodeCache) {
    if let Base::Mem(base) = node.base()
        && let Some(at) = base.stored()
    {
        let base = base.clone();
        if node.set_base(Base::Stored(at.into())) {
            release_leaf(&base, at, cache);
        }
    }
}

/// Releases a stored inner node and all nodes below it into the cache. If the node is cached already, the
/// nodes below it were released before.
fn release_inner(node: &Inner, at: BlockRef, cache: &NodeCache) {
    if cache.peek(NeedNode::child(at, node.place)).is_some() {
        return;
    }
    for child in &node.children {
        match child {
            Child::Hole | Child::Zero | Child::Stored(_) => {}
            Child::Leaf(leaf) => release_leaf(leaf, leaf.stored().expect("below a stored node"), cache),
            Child::Inner(inner) => {
                release_inner(inner, inner.stored.get().expect("below a stored node"), cache);
            }
        }
    }
    cache.insert(at, node.to_node());
}

fn release_leaf(leaf: &Node, at: BlockRef, cache: &NodeCache) {
    if cache.peek(NeedNode::child(at, leaf.index())).is_some() {
        return;
    }
    match leaf.base() {
        // The cache must not keep memory alive that its budget does not count.
        Base::Mem(base) => {
            let base_at = base.stored().expect("below a stored node");
            release_leaf(base, base_at, cache);
            cache.insert(at, leaf.on(Base::Stored(base_at.into())));
        }
        _ => cache.insert(at, leaf.clone()),
    }
}

/// A reference from a map.
#[derive(Debug, Clone)]
pub(crate) enum Ref {
    /// A block of the disk that is stored.
    Block(BlockRef),
    /// A node of a map that is stored.
    Node(NeedNode),
    /// The stored base of a leaf. Only those of its blocks are referenced that the leaf does not list: see
    /// [`Node::uncovered`]. Another tree may reference all of its blocks.
    Base(NeedNode),
    /// A node that is in memory only, or that was not yet released into the cache.
    Memory(Dirty),
}

impl Ref {
    fn child(child: &Child, place: NodeIndex) -> Option<Ref> {
        Some(match child {
            Child::Hole | Child::Zero => return None,
            Child::Stored(at) => Ref::Node(NeedNode::child(at.get(), place)),
            Child::Leaf(node) => Ref::Memory(Dirty::Leaf(node.clone())),
            Child::Inner(node) => Ref::Memory(Dirty::Inner(node.clone())),
        })
    }
}

impl Tree {
    /// The root, where a walk begins; `None` if the map is all holes or zeroes.
    pub(crate) fn root(&self) -> Option<Ref> {
        Ref::child(&self.root, NodeIndex::root(self.height))
    }
}

impl Dirty {
    /// Calls `f` with each reference from the node.
    pub(crate) fn references(&self, mut f: impl FnMut(Ref)) {
        match self {
            Dirty::Leaf(node) => node.references(f),
            Dirty::Inner(node) => {
                let places = (0..=u8::MAX).zip(&node.children);
                places.filter_map(|(i, c)| Ref::child(c, node.place.child(i))).for_each(&mut f);
            }
        }
    }
}

impl Node {
    /// Calls `f` with each reference from the node: its base; blocks, or nodes of the level below.
    pub(crate) fn references(&self, mut f: impl FnMut(Ref)) {
        match self.base() {
            Base::None => {}
            Base::Stored(at) => f(Ref::Base(NeedNode::base(at.get(), self.index()))),
            Base::Mem(base) => f(Ref::Memory(Dirty::Leaf(base.clone()))),
        }
        for (i, value) in self.iter() {
            if let MapValue::At(at) = value {
                f(match self.index().level() {
                    0 => Ref::Block(at),
                    _ => Ref::Node(NeedNode::child(at, self.index().child(i))),
                });
            }
        }
    }

    /// Base of the node, if the base is stored.
    pub(crate) fn stored_base(&self) -> Option<NeedNode> {
        match self.base() {
            Base::Stored(at) => Some(NeedNode::base(at.get(), self.index())),
            Base::None | Base::Mem(_) => None,
        }
    }

    /// The child on the path to the node that `need` names; `None` if there is no such child, or the named
    /// node is not below this node.
    pub(crate) fn child_towards(&self, need: &NeedNode) -> Option<NeedNode> {
        let (level, (first, _)) = (self.index().level(), need.index.span());
        if need.index.level() >= level || NodeIndex::of(level, first) != self.index() {
            return None;
        }
        let i = slot_of(level, first);
        match self.own(i)? {
            MapValue::At(at) => Some(NeedNode::child(at, self.index().child(i))),
            MapValue::Hole | MapValue::Zero => None,
        }
    }

    /// Calls `f` with the blocks of the node's base that the node does not list itself. `base` is the loaded
    /// base.
    pub(crate) fn uncovered(&self, base: &Node, mut f: impl FnMut(BlockRef)) {
        for (i, value) in base.iter() {
            if let MapValue::At(at) = value
                && self.own(i).is_none()
            {
                f(at);
            }
        }
    }
}

impl NodeCache {
    /// The node of a reference, if it is cached. If it is not, the caller loads it as for any operation.
    pub(crate) fn find(&self, need: NeedNode) -> Option<Node> {
        self.peek(need)
    }
}
