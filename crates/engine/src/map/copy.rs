//! Copies a range of one map into another, or within one map.

use std::ops::Range;

use forebay_format::{FANOUT, MapValue};

use super::cache::NodeCache;
use super::index::{MAX_HEIGHT, NodeIndex, slot_of};
use super::inner::Child;
use super::need::NeedNode;
use super::node::{Base, Node};
use super::tree::Tree;

impl Tree {
    /// Copies the first piece of a range: at most `count` blocks, from `from` on in `source` to `first` on
    /// here. Returns the number of blocks copied: a whole subtree that is shared, a run of holes or zeroes,
    /// or the part in one leaf. `source` may be a copy of this same tree. If interrupted, it may have done a
    /// part.
    pub(crate) fn copy(
        &mut self,
        cache: &NodeCache,
        first: u64,
        source: &Tree,
        from: u64,
        count: u64,
    ) -> Result<u64, NeedNode> {
        assert!(first + count <= self.blocks && from + count <= source.blocks);
        if first == from
            && let Some(place) = largest_within(first, count)
        {
            let span = place.span().1 - first + 1;
            match source.subtree(cache, place)? {
                Child::Hole => self.fill(cache, first, span, MapValue::Hole)?,
                Child::Zero => self.fill(cache, first, span, MapValue::Zero)?,
                shared => put(&mut self.root, cache, NodeIndex::root(self.height), place, shared)?,
            }
            return Ok(span);
        }
        if let Some((value, last)) = source.absent(cache, from)? {
            let run = count.min(last - from + 1);
            self.fill(cache, first, run, value)?;
            return Ok(run);
        }
        let in_leaf = FANOUT - usize::from(slot_of(0, first));
        let mut values = [MapValue::Hole; FANOUT];
        let values = &mut values[..in_leaf.min(usize::try_from(count).unwrap_or(FANOUT))];
        if let (_, Some(need)) = source.get_range(cache, from, values) {
            return Err(need);
        }
        let all = values[0];
        if !matches!(all, MapValue::At(_)) && values.iter().all(|v| *v == all) {
            self.fill(cache, first, values.len() as u64, all)?;
        } else if values.len() == FANOUT {
            let place = NodeIndex::of(0, first);
            let listed: Vec<_> =
                (0..=u8::MAX).zip(values.iter().copied()).filter(|(_, v)| *v != MapValue::Hole).collect();
            let leaf = Child::Leaf(Node::build(place, Base::None, &listed));
            put(&mut self.root, cache, NodeIndex::root(self.height), place, leaf)?;
        } else {
            for (block, value) in (first..).zip(values.iter()) {
                self.set(cache, block, *value)?;
            }
        }
        Ok(values.len() as u64)
    }

    /// The subtree at a node index, which must be within the tree.
    pub(super) fn subtree(&self, cache: &NodeCache, place: NodeIndex) -> Result<Child, NeedNode> {
        let (block, _) = place.span();
        let mut child = &self.root;
        let mut level = self.height - 1;
        while level > place.level() {
            match child {
                Child::Inner(node) => child = &node.children[usize::from(slot_of(level, block))],
                Child::Hole | Child::Zero => break,
                Child::Stored(at) => {
                    let mut at = at.get();
                    while level > place.level() {
                        let need = NeedNode::child(at, NodeIndex::of(level, block));
                        let i = slot_of(level, block);
                        match cache.look(need, |node| node.own(i).unwrap_or_default())? {
                            MapValue::At(next) => at = next,
                            value => return Ok(Child::from_value(value)),
                        }
                        level -= 1;
                    }
                    return Ok(Child::Stored(at.into()));
                }
                Child::Leaf(_) => unreachable!("a leaf above level 0"),
            }
            level -= 1;
        }
        Ok(child.clone())
    }

    /// Stored nodes that are not in the cache and without which the contents of a range are unknown; at most
    /// `most` of them, those nearest to the root. Once they are loaded, nodes below them may be missing.
    pub(crate) fn missing(&self, cache: &NodeCache, range: Range<u64>, most: usize) -> Vec<NeedNode> {
        let mut missing = Vec::new();
        if !range.is_empty() {
            let range = (range.start, range.end - 1);
            find_missing(&self.root, cache, NodeIndex::root(self.height), range, most, &mut missing);
        }
        missing
    }
}

/// The index of the largest subtree that begins with block `first` and has at most `count` blocks.
fn largest_within(first: u64, count: u64) -> Option<NodeIndex> {
    let fits = |level: &u8| {
        let (start, last) = NodeIndex::of(*level, first).span();
        start == first && last - start < count
    };
    (0..MAX_HEIGHT).take_while(fits).last().map(|level| NodeIndex::of(level, first))
}

/// Sets the node at index `place`, which is below `child`; the index of `child` is `here`.
fn put(
    child: &mut Child,
    cache: &NodeCache,
    here: NodeIndex,
    place: NodeIndex,
    node: Child,
) -> Result<(), NeedNode> {
    if here == place {
        *child = node;
        return Ok(());
    }
    let i = slot_of(here.level(), place.span().0);
    let inner = child.own_inner(cache, here)?;
    put(&mut inner.children[usize::from(i)], cache, here.child(i), place, node)
}

fn find_missing(
    child: &Child,
    cache: &NodeCache,
    place: NodeIndex,
    (first, last): (u64, u64),
    most: usize,
    missing: &mut Vec<NeedNode>,
) {
    let (start, end) = place.span();
    if missing.len() >= most || last < start || end < first {
        return;
    }
    let level = place.level();
    let mut below = |i: u8, child: &Child| {
        find_missing(child, cache, place.child(i), (first, last), most, missing);
    };
    let leaf = match child {
        Child::Hole | Child::Zero => return,
        Child::Inner(node) => {
            let range = slot_of(level, first.max(start))..=slot_of(level, last.min(end));
            return range.for_each(|i| below(i, &node.children[usize::from(i)]));
        }
        Child::Leaf(leaf) => leaf.clone(),
        Child::Stored(at) => {
            let need = NeedNode::child(at.get(), place);
            let Some(node) = cache.peek(need) else { return missing.push(need) };
            if level > 0 {
                return node.iter().for_each(|(i, value)| below(i, &Child::from_value(value)));
            }
            node
        }
    };
    missing.extend(leaf.stored_base().filter(|base| cache.peek(*base).is_none()));
}
