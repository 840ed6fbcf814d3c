//! The changes of a group, in the order in which they are logged: for each disk zeroed ranges, then blocks in
//! ascending order, then blocks that damage has lost. The changes to the catalogue follow.

use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, Fingerprint};

use super::group::{Completed, Group};
use crate::disk::Disk;

/// A change of a group to one disk.
pub(super) enum GroupChange<'a> {
    /// A range of a disk was zeroed.
    Zeroes { disk: &'a Arc<Disk>, block: u64, count: u64, allocated: bool },
    /// A block was written.
    Block(Written<'a>),
    /// A block whose contents are lost, with the reference that marks it.
    Lost { disk: &'a Arc<Disk>, block: u64, target: BlockRef },
}

impl<'a> GroupChange<'a> {
    /// The written block, if the change is a written block.
    pub fn written(&self) -> Option<&Written<'a>> {
        match self {
            GroupChange::Block(written) => Some(written),
            GroupChange::Zeroes { .. } | GroupChange::Lost { .. } => None,
        }
    }

    /// Whether both changes are written blocks, and `next` follows this block on the same disk.
    pub fn is_before(&self, next: &GroupChange<'a>) -> bool {
        let (Some(this), Some(next)) = (self.written(), next.written()) else { return false };
        this.disk.id() == next.disk.id() && this.block + 1 == next.block
    }
}

/// A block that was written.
pub(super) struct Written<'a> {
    pub disk: &'a Arc<Disk>,
    pub block: u64,
    pub content: &'a [u8; BLOCK],
    /// The checksum of the content, if it was computed when the block was written.
    pub crc: Option<u32>,
    /// Fingerprint of the content, if it was computed when the block was written.
    pub fingerprint: Option<Fingerprint>,
    /// The block is in a range that the same group zeroes.
    pub over_zeroes: bool,
}

/// The changes of a group.
pub(super) fn changes_of<'a>(
    group: &'a Group,
    completed: &'a Completed,
) -> impl Iterator<Item = GroupChange<'a>> {
    group.frozen.iter().flat_map(move |(disk, buffer)| {
        let zeroes = buffer.zeroes().map(move |(range, allocated)| GroupChange::Zeroes {
            disk,
            block: range.start,
            count: range.end - range.start,
            allocated,
        });
        let blocks = buffer.sorted_blocks().into_iter().filter_map(move |(block, dirty)| {
            let (content, crc, fingerprint) = match completed.get(&(disk.id(), block)) {
                None => (&*dirty.page, Some(dirty.page.crc()), dirty.fingerprint),
                Some(Ok(page)) => (&**page, None, None),
                Some(Err(_)) => return None,
            };
            let over_zeroes = buffer.base_is_zero(block);
            Some(GroupChange::Block(Written { disk, block, content, crc, fingerprint, over_zeroes }))
        });
        let lost = buffer.partial_blocks().into_iter().filter_map(move |(block, _)| {
            let target = *completed.get(&(disk.id(), block))?.as_ref().err()?;
            Some(GroupChange::Lost { disk, block, target })
        });
        zeroes.chain(blocks).chain(lost)
    })
}
