//! Looking up blocks.

use forebay_format::{BlockRef, FANOUT, MapValue};

use super::inner::Child;
use super::node::{Base, Node};
use super::{NeedNode, NodeCache, Place, Tree, place_in};

/// Kinds of blocks, for block status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// Not allocated.
    Hole,
    /// Allocated zeroes.
    Zero,
    /// Stored.
    Data,
}

impl RunKind {
    fn of(value: MapValue) -> RunKind {
        match value {
            MapValue::Hole => RunKind::Hole,
            MapValue::Zero => RunKind::Zero,
            MapValue::At(_) => RunKind::Data,
        }
    }
}

/// The lowest thing on the way to a block.
enum Reach {
    /// All blocks up to this last one are holes, or are zeroes.
    All(MapValue, u64),
    Leaf(Node),
}

impl Tree {
    /// What the map says of one block.
    pub(crate) fn get(&self, cache: &NodeCache, block: u64) -> Result<MapValue, NeedNode> {
        match self.reach(cache, block)? {
            Reach::All(value, _) => Ok(value),
            Reach::Leaf(leaf) => {
                let place = place_in(0, block);
                match leaf.own(place) {
                    Some(value) => Ok(value),
                    None => Ok(leaf.load_base(cache)?.and_then(|b| b.own(place)).unwrap_or_default()),
                }
            }
        }
    }

    /// Fills `out` with what the map says of the blocks from `first` on. Returns how many places were filled and,
    /// where that is not all, the node that is missing.
    pub(crate) fn get_range(
        &self,
        cache: &NodeCache,
        first: u64,
        out: &mut [MapValue],
    ) -> (usize, Option<NeedNode>) {
        let mut done = 0;
        while done < out.len() {
            let block = first + done as u64;
            let left = &mut out[done..];
            let filled = self.reach(cache, block).and_then(|reach| match reach {
                Reach::All(value, last) => {
                    let n = left.len().min(usize::try_from(last - block + 1).unwrap_or(usize::MAX));
                    left[..n].fill(value);
                    Ok(n)
                }
                Reach::Leaf(leaf) => {
                    let place = place_in(0, block);
                    let n = left.len().min(FANOUT - usize::from(place));
                    leaf.read(cache, place, &mut left[..n])?;
                    Ok(n)
                }
            });
            match filled {
                Ok(n) => done += n,
                Err(need) => return (done, Some(need)),
            }
        }
        (done, None)
    }

    /// Kind of `block`, and for how many blocks from there on it is the same, up to `max` (at least 1). Where a
    /// node is missing behind `block` the run ends early; adjacent runs may so be of one kind.
    pub(crate) fn run(&self, cache: &NodeCache, block: u64, max: u64) -> Result<(RunKind, u64), NeedNode> {
        let end = block.saturating_add(max).min(self.blocks);
        let (mut kind, mut at) = (None, block);
        while at < end {
            let (found, last) = match self.stretch(cache, at, end - 1) {
                Ok(stretch) => stretch,
                Err(_) if kind.is_some() => break,
                Err(need) => return Err(need),
            };
            if kind.is_some_and(|k| k != found) {
                break;
            }
            kind = Some(found);
            at = last + 1;
            if at & (FANOUT as u64 - 1) != 0 {
                break;
            }
        }
        let kind = kind.expect("a run begins inside the disk and has room");
        Ok((kind, at - block))
    }

    /// Kind of a block, and the last block of that kind in its leaf or absent subtree, at most `end`.
    fn stretch(&self, cache: &NodeCache, block: u64, end: u64) -> Result<(RunKind, u64), NeedNode> {
        match self.reach(cache, block)? {
            Reach::All(value, last) => Ok((RunKind::of(value), last.min(end))),
            Reach::Leaf(leaf) => {
                let place = place_in(0, block);
                let n = (FANOUT - usize::from(place)).min(usize::try_from(end - block).unwrap_or(FANOUT) + 1);
                let mut values = [MapValue::Hole; FANOUT];
                leaf.read(cache, place, &mut values[..n])?;
                let kind = RunKind::of(values[0]);
                let len = values[..n].iter().take_while(|v| RunKind::of(**v) == kind).count();
                Ok((kind, block + len as u64 - 1))
            }
        }
    }

    /// Goes down to the leaf of `block`: first by pointer, then through the cache.
    fn reach(&self, cache: &NodeCache, block: u64) -> Result<Reach, NeedNode> {
        assert!(block < self.blocks, "ranges are checked where requests come in");
        let mut child = &self.root;
        let mut level = self.height;
        loop {
            level -= 1;
            let all = |value| Ok(Reach::All(value, last_block(level, block)));
            match child {
                Child::Hole => return all(MapValue::Hole),
                Child::Zero => return all(MapValue::Zero),
                Child::Leaf(leaf) => return Ok(Reach::Leaf(leaf.clone())),
                Child::Inner(node) => child = &node.children[usize::from(place_in(level, block))],
                Child::Stored(at) => return reach_stored(cache, at.get(), level, block),
            }
        }
    }
}

/// Goes on from a node of `level` that is stored at `at`.
fn reach_stored(cache: &NodeCache, mut at: BlockRef, mut level: u8, block: u64) -> Result<Reach, NeedNode> {
    loop {
        let place = Place::of(level, block);
        let node = cache.get(NeedNode::child(at, place))?;
        if level == 0 {
            return Ok(Reach::Leaf(node));
        }
        let value = node.own(place_in(level, block)).unwrap_or_default();
        level -= 1;
        match value {
            MapValue::At(next) => at = next,
            value => return Ok(Reach::All(value, last_block(level, block))),
        }
    }
}

/// Last block below the node of `level` in which `block` is.
fn last_block(level: u8, block: u64) -> u64 {
    Place::of(level, block).span().1
}

impl Node {
    /// The base of the node; `None` without one.
    pub(super) fn load_base(&self, cache: &NodeCache) -> Result<Option<Node>, NeedNode> {
        Ok(match self.base() {
            Base::None => None,
            Base::Mem(base) => Some(base.clone()),
            Base::Stored(at) => Some(cache.get(NeedNode::base(at.get(), self.place()))?),
        })
    }

    /// Reads the places from `first` on.
    fn read(&self, cache: &NodeCache, first: u8, out: &mut [MapValue]) -> Result<(), NeedNode> {
        if let [one] = out
            && let Some(value) = self.own(first)
        {
            *one = value;
            return Ok(());
        }
        out.fill(MapValue::Hole);
        let first = usize::from(first);
        let range = first..first + out.len();
        let mut put = |node: &Node| {
            let mine = node.iter().filter(|(p, _)| range.contains(&usize::from(*p)));
            mine.for_each(|(p, v)| out[usize::from(p) - first] = v);
        };
        if let Some(base) = self.load_base(cache)? {
            put(&base);
        }
        put(self);
        Ok(())
    }
}
