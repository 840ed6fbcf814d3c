//! Changing blocks.

use forebay_format::MapValue;

use super::cache::NodeCache;
use super::index::{COPY_MAX, MAX_HEIGHT, MERGE_AT, NodeIndex, SPARSE_MAX, is_full, slot_of};
use super::inner::Child;
use super::need::NeedNode;
use super::node::{Base, Node};
use super::tree::{Tree, height_for};

impl Tree {
    /// Sets the value of one block.
    pub(crate) fn set(&mut self, cache: &NodeCache, block: u64, value: MapValue) -> Result<(), NeedNode> {
        assert!(block < self.blocks, "the caller checks the range");
        set(&mut self.root, cache, NodeIndex::root(self.height), block, value)
    }

    /// Makes a range holes or allocated zeroes. Whole subtrees are replaced, so only the edges of the range
    /// cost time. If interrupted, it may have changed a part of the range.
    pub(crate) fn fill(
        &mut self,
        cache: &NodeCache,
        first: u64,
        count: u64,
        value: MapValue,
    ) -> Result<(), NeedNode> {
        assert!(!matches!(value, MapValue::At(_)), "only holes and zeroes fill a range");
        assert!(first.checked_add(count).is_some_and(|end| end <= self.blocks));
        if count == 0 {
            return Ok(());
        }
        let to_end = value == MapValue::Hole && first + count == self.blocks;
        // Blocks beyond the end are holes anyway. Including them lets the last subtree be replaced as a
        // whole, too.
        let last = if to_end { self.span_end() } else { first + count - 1 };
        fill(&mut self.root, cache, NodeIndex::root(self.height), (first, last), value)
    }

    /// Changes the size. Blocks beyond the new end are discarded, and read as holes if the disk grows again.
    pub(crate) fn resize(&mut self, cache: &NodeCache, blocks: u64) -> Result<(), NeedNode> {
        let height = height_for(blocks);
        assert!(height <= MAX_HEIGHT, "the caller checks the size");
        if blocks < self.blocks {
            let beyond = (blocks, self.span_end());
            fill(&mut self.root, cache, NodeIndex::root(self.height), beyond, MapValue::Hole)?;
        }
        while self.height > height {
            if !matches!(self.root, Child::Hole | Child::Zero) {
                let root = self.root.own_inner(cache, NodeIndex::root(self.height))?;
                self.root = std::mem::take(&mut root.children[0]);
            }
            self.height -= 1;
            self.blocks = self.span_end() + 1;
        }
        while self.height < height {
            let top = NodeIndex::root(self.height + 1);
            if !matches!(self.root, Child::Hole) {
                let old = std::mem::take(&mut self.root);
                self.root.own_inner(cache, top)?.children[0] = old;
            }
            self.height += 1;
        }
        self.blocks = blocks;
        Ok(())
    }

    /// Last block that the tree's nodes can cover.
    fn span_end(&self) -> u64 {
        NodeIndex::root(self.height).span().1
    }
}

fn set(
    child: &mut Child,
    cache: &NodeCache,
    place: NodeIndex,
    block: u64,
    value: MapValue,
) -> Result<(), NeedNode> {
    if child.is_all(value) {
        return Ok(());
    }
    if place.level() == 0 {
        return set_leaf(child, cache, place, slot_of(0, block), value);
    }
    let i = slot_of(place.level(), block);
    let node = child.own_inner(cache, place)?;
    set(&mut node.children[usize::from(i)], cache, place.child(i), block, value)
}

fn fill(
    child: &mut Child,
    cache: &NodeCache,
    place: NodeIndex,
    (first, last): (u64, u64),
    value: MapValue,
) -> Result<(), NeedNode> {
    let (start, end) = place.span();
    if child.is_all(value) {
        return Ok(());
    }
    if first <= start && end <= last {
        *child = Child::from_value(value);
        return Ok(());
    }
    let level = place.level();
    let range = slot_of(level, first.max(start))..=slot_of(level, last.min(end));
    if level == 0 {
        for i in range {
            if !child.is_all(value) {
                set_leaf(child, cache, place, i, value)?;
            }
        }
        return Ok(());
    }
    let node = child.own_inner(cache, place)?;
    for i in range {
        fill(&mut node.children[usize::from(i)], cache, place.child(i), (first, last), value)?;
    }
    if node.children.iter().all(|c| c.is_all(MapValue::Hole)) {
        *child = Child::Hole;
    }
    Ok(())
}

/// Sets an entry of a leaf. The caller has checked that `child` does not consist of `value` alone.
fn set_leaf(
    child: &mut Child,
    cache: &NodeCache,
    place: NodeIndex,
    i: u8,
    value: MapValue,
) -> Result<(), NeedNode> {
    let leaf = match child {
        Child::Hole => Node::build(place, Base::None, &[(i, value)]),
        Child::Zero => {
            let mut zeroes = Node::uniform(place, MapValue::Zero);
            zeroes.set(i, value);
            zeroes
        }
        Child::Stored(at) if is_full(at.get()) => Node::build(place, Base::Stored(*at), &[(i, value)]),
        Child::Stored(at) => {
            let node = cache.get(NeedNode::child(at.get(), place))?;
            changed(&node, Base::Stored(*at), cache, i, value)?
        }
        Child::Leaf(leaf) if leaf.is_changeable() => {
            if let Some(merged) = merged_for_room(leaf, cache, i)? {
                *leaf = merged;
            }
            leaf.set(i, value);
            match tidied(leaf, cache) {
                Some(tidy) => *child = tidy,
                None => debug_assert!(leaf.is_changeable()),
            }
            return Ok(());
        }
        // The leaf may have an address already, but only settling decides whether it can be read back from
        // there.
        Child::Leaf(leaf) => changed(leaf, Base::Mem(leaf.clone()), cache, i, value)?,
        Child::Inner(_) => unreachable!("an inner node at level 0"),
    };
    *child = tidied(&leaf, cache).unwrap_or(Child::Leaf(leaf));
    Ok(())
}

/// A leaf that equals `leaf`, which is shared or stored, except for one entry. `this` is a reference to
/// `leaf` as a base.
fn changed(leaf: &Node, this: Base, cache: &NodeCache, i: u8, value: MapValue) -> Result<Node, NeedNode> {
    if !leaf.has_base() && leaf.count() > COPY_MAX {
        return Ok(Node::build(leaf.index(), this, &[(i, value)]));
    }
    let merged = merged_for_room(leaf, cache, i)?;
    Ok(merged.as_ref().unwrap_or(leaf).with(i, value))
}

/// The leaf merged with its base, if it cannot list another entry and `i` is not listed.
fn merged_for_room(leaf: &Node, cache: &NodeCache, i: u8) -> Result<Option<Node>, NeedNode> {
    if leaf.count() < SPARSE_MAX || leaf.own(i).is_some() {
        return Ok(None);
    }
    Ok(leaf.load_base(cache)?.map(|base| leaf.merged(&base)))
}

/// A better replacement for a changed leaf, if it has one: a hole, or the leaf merged with its base.
fn tidied(leaf: &Node, cache: &NodeCache) -> Option<Child> {
    let merged = match leaf.base() {
        Base::None => None,
        _ if leaf.count() <= MERGE_AT => return None,
        Base::Mem(base) => Some(leaf.merged(base)),
        Base::Stored(at) => Some(leaf.merged(&cache.peek(NeedNode::base(at.get(), leaf.index()))?)),
    };
    match merged {
        Some(merged) if merged.count() == 0 => Some(Child::Hole),
        Some(merged) => Some(Child::Leaf(merged)),
        None => (leaf.count() == 0).then_some(Child::Hole),
    }
}
