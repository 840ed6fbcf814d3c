//! Replaces a node that cannot be read, so that the map still accepts changes below it.
//!
//! **A stand-in** has no content, because the damaged node supplies none, and keeps a reference to the
//! damaged node:
//!
//! - for a leaf: a sparse leaf without listed entries, with the damaged leaf as its base;
//! - for a higher node: a node whose 256 entries all hold the address of the damaged node. A descent through
//!   an entry meets the same damage; if the damaged node becomes readable again, it is refused at this place
//!   because its node index differs;
//! - for the base of a leaf, if the leaf must be merged with it or is copied value by value: the leaf without
//!   a base, with a lost block ([`crate::lost::lost`]) in each entry that it does not list.
//!
//! A change therefore makes its own blocks readable, and no block that was readable is lost. Every other
//! block below reads as damaged, never as its old content or as zeroes. A checkpoint stores stand-ins like
//! all nodes: the damage persists, in this map and in each that shares it, until everything below is
//! overwritten, discarded or replaced. A leaf that was only made a base is intact again if the damaged node
//! becomes readable again.

use forebay_format::MapValue;
use triomphe::Arc;

use super::cache::NodeCache;
use super::index::{NodeIndex, slot_of};
use super::inner::{Child, Inner};
use super::need::NeedNode;
use super::node::{Base, Node};
use super::tree::Tree;
use crate::lost::lost;

impl Tree {
    /// Replaces the damaged node that `need` names by a stand-in. Returns false if the tree does not refer to
    /// the node at its place.
    pub(crate) fn stand_in(&mut self, cache: &NodeCache, need: NeedNode) -> Result<bool, NeedNode> {
        let root = NodeIndex::root(self.height);
        if need.index.level() > root.level() || need.index.span().1 > root.span().1 {
            return Ok(false);
        }
        stand_in(&mut self.root, cache, root, &need)
    }
}

fn stand_in(
    child: &mut Child,
    cache: &NodeCache,
    here: NodeIndex,
    need: &NeedNode,
) -> Result<bool, NeedNode> {
    if here != need.index {
        if matches!(child, Child::Hole | Child::Zero) {
            return Ok(false);
        }
        let i = slot_of(here.level(), need.index.span().0);
        let inner = child.own_inner(cache, here)?;
        return stand_in(&mut inner.children[usize::from(i)], cache, here.child(i), need);
    }
    let leaf = match child {
        Child::Stored(at) if !need.base && at.get() == need.at => {
            let at = *at;
            *child = match here.level() {
                0 => Child::Leaf(Node::build(here, Base::Stored(at), &[])),
                _ => Child::Inner(Arc::new(Inner::new(here, |_| Child::Stored(at)))),
            };
            return Ok(true);
        }
        Child::Stored(at) if need.base => cache.get(NeedNode::child(at.get(), here))?,
        Child::Leaf(leaf) if need.base => leaf.clone(),
        _ => return Ok(false),
    };
    let stands_on_it = leaf.stored_base().is_some_and(|base| base.at == need.at);
    if stands_on_it {
        *child = Child::Leaf(leaf.over(MapValue::At(lost(need.at))));
    }
    Ok(stands_on_it)
}
