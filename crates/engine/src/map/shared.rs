//! The parts of a map that hold no data, or are shared with another map.

use super::cache::NodeCache;
use super::index::NodeIndex;
use super::inner::Child;
use super::need::NeedNode;
use super::tree::Tree;

impl Tree {
    /// The end of the largest subtree that begins with `block` and is holes, zeroes, or the same in `other`;
    /// `block` without such a subtree. Nodes are compared by identity, so parts that are merely equal do not
    /// count.
    pub(crate) fn shared_until(
        &self,
        cache: &NodeCache,
        other: Option<&Tree>,
        block: u64,
    ) -> Result<u64, NeedNode> {
        for level in (0..self.height).rev() {
            let index = NodeIndex::of(level, block);
            let (first, last) = index.span();
            if first != block {
                continue;
            }
            let child = self.subtree(cache, index)?;
            let is_shared = match other.filter(|other| level < other.height && block < other.blocks) {
                _ if matches!(child, Child::Hole | Child::Zero) => true,
                Some(other) => child.is_same(&other.subtree(cache, index)?),
                None => false,
            };
            if is_shared {
                return Ok(last + 1);
            }
        }
        Ok(block)
    }
}
