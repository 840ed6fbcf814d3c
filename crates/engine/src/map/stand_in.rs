//! Standing in for a node that cannot be read, so that the map takes changes below it all the same.
//!
//! **What stands there** says no more than the damaged node did, which is nothing, and goes on pointing at it:
//!
//! - for a leaf, a sparse leaf without a listed place, with the damaged one as its base;
//! - for a higher node, one whose 256 places all hold the address of the damaged one. A descent there meets
//!   the same damage; should those bytes be readable again, they are refused for being the node of another place;
//! - for the base of a leaf, when the leaf must be merged with it or is copied value by value: the leaf without a base,
//!   with a lost block ([`crate::damage::lost`]) in each place that it does not list.
//!
//! So a change makes readable what it sets, and nothing that could be read before is lost. Every other block below
//! reads as damaged, never as what it was or as zeroes. A checkpoint stores stand-ins like all nodes: the damage stays
//! where it is, in this map and in each that shares it, until all below is overwritten, discarded or replaced. A leaf
//! that only got a base is whole again if the damaged node is ever readable again.

use forebay_format::MapValue;
use triomphe::Arc;

use super::inner::{Child, Inner};
use super::node::{Base, Node};
use super::{NeedNode, NodeCache, Place, Tree, place_in};
use crate::damage::lost;

impl Tree {
    /// Replaces the node that is needed and damaged. False if the tree does not refer to it there.
    pub(crate) fn stand_in(&mut self, cache: &NodeCache, need: NeedNode) -> Result<bool, NeedNode> {
        let root = Place::root(self.height);
        if need.place.level() > root.level() || need.place.span().1 > root.span().1 {
            return Ok(false);
        }
        stand_in(&mut self.root, cache, root, &need)
    }
}

fn stand_in(child: &mut Child, cache: &NodeCache, here: Place, need: &NeedNode) -> Result<bool, NeedNode> {
    if here != need.place {
        if matches!(child, Child::Hole | Child::Zero) {
            return Ok(false);
        }
        let i = place_in(here.level(), need.place.span().0);
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
