//! The B+trees of XFS: short-format trees of an allocation group, whose pointers are block numbers in the
//! group, and long-format trees of an inode fork, whose pointers are block numbers of the file system.

use super::superblock::Superblock;
use super::{Class, Result, Tolerate, Volume, ensure};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

/// Maximum level of a tree, higher than that of any valid tree.
pub(super) const MAX_LEVEL: u16 = 12;

/// The block format of a type of tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Magic numbers of the tree's blocks in version 4 and in version 5.
    pub magic: [&'static [u8; 4]; 2],
    /// Length of a key in a node, and length of a record in a leaf.
    pub key: usize,
    pub record: usize,
    /// The allocation group of a short-format tree; `None` for a long-format tree.
    pub group: Option<u64>,
}

impl Shape {
    fn header(&self, s: &Superblock) -> usize {
        match (self.group.is_some(), s.is_v5) {
            (true, false) => 16,
            (true, true) => 56,
            (false, false) => 24,
            (false, true) => 72,
        }
    }

    fn pointer(&self) -> usize {
        if self.group.is_some() { 4 } else { 8 }
    }

    fn offset_of(&self, s: &Superblock, pointer: u64) -> Option<u64> {
        match self.group {
            Some(group) => {
                (pointer != 0 && pointer < s.blocks_of(group)).then(|| s.bytes_in_group(group, pointer))
            }
            None => s.bytes_of(pointer, 1),
        }
    }
}

/// Claims the blocks of the tree at `pointer` with level `level`, and passes the records of each leaf to
/// `leaf`. The recursion ends because the level must decrease by one per block. Skips invalid blocks.
pub(super) fn walk(
    volume: &mut Volume,
    s: &Superblock,
    shape: Shape,
    (pointer, level): (u64, u16),
    leaf: &mut dyn FnMut(&mut Volume, &[u8]) -> Result<()>,
) -> Result<()> {
    volume.disk.work(1)?;
    let offset = shape.offset_of(s, pointer).ok_or(Fault::Invalid)?;
    let block = volume.read_vec(offset, s.block as usize)?;
    let magic = shape.magic[usize::from(s.is_v5)];
    ensure(block.starts_with(magic) && be16(&block, 4) == Some(level) && level <= MAX_LEVEL)?;
    volume.claim(offset, s.block, Class::Metadata);
    let count = usize::from(be16(&block, 6).unwrap_or(0));
    let body = block.get(shape.header(s)..).unwrap_or_default();
    if level == 0 {
        let len = (count * shape.record).min(body.len());
        return leaf(volume, &body[..len]);
    }
    for pointer in pointers(body, shape, count) {
        walk(volume, s, shape, (pointer, level - 1), leaf).tolerate()?;
    }
    Ok(())
}

/// Returns the pointers of a node. They are after the space for the maximum number of keys.
pub(super) fn pointers(body: &[u8], shape: Shape, count: usize) -> impl Iterator<Item = u64> + '_ {
    let width = shape.pointer();
    let room = body.len() / (shape.key + width);
    let read = move |bytes: &[u8]| if width == 4 { be32(bytes, 0).map(u64::from) } else { be64(bytes, 0) };
    let all = body.get(room * shape.key..).unwrap_or_default().chunks_exact(width);
    all.take(count.min(room)).filter_map(read)
}
