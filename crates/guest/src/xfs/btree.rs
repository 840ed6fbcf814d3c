//! The B+trees of XFS: those of a group, whose pointers are places in it, and those of an inode's fork, whose
//! pointers are numbers of the volume.

use super::superblock::Superblock;
use super::{Class, Result, Tolerate, Volume, sane};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

/// Higher than any tree of a full volume.
pub(super) const MAX_LEVEL: u16 = 12;

/// How the blocks of a kind of tree look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Magic numbers in version 4, and in version 5.
    pub magic: [&'static [u8; 4]; 2],
    /// Bytes of a key in a node, and of a record in a leaf.
    pub key: usize,
    pub record: usize,
    /// The group of trees of groups; none for trees of forks.
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

    fn place(&self, s: &Superblock, pointer: u64) -> Option<u64> {
        match self.group {
            Some(group) => {
                (pointer != 0 && pointer < s.blocks_of(group)).then(|| s.bytes_in_group(group, pointer))
            }
            None => s.bytes_of(pointer, 1),
        }
    }
}

/// Claims the blocks of the tree at `pointer`, of level `level`, and hands the records of each leaf to `leaf`. Each
/// level is one lower than the one above, so this ends; a block that is no part of such a tree is left out.
pub(super) fn walk(
    volume: &mut Volume,
    s: &Superblock,
    shape: Shape,
    (pointer, level): (u64, u16),
    leaf: &mut dyn FnMut(&mut Volume, &[u8]) -> Result<()>,
) -> Result<()> {
    volume.disk.work(1)?;
    let place = shape.place(s, pointer).ok_or(Fault::Bad)?;
    let block = volume.read_vec(place, s.block as usize)?;
    let magic = shape.magic[usize::from(s.is_v5)];
    sane(block.starts_with(magic) && be16(&block, 4) == Some(level) && level <= MAX_LEVEL)?;
    volume.claim(place, s.block, Class::Metadata);
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

/// The pointers of a node: behind as many keys as there is room for.
pub(super) fn pointers(body: &[u8], shape: Shape, count: usize) -> impl Iterator<Item = u64> + '_ {
    let width = shape.pointer();
    let room = body.len() / (shape.key + width);
    let read = move |bytes: &[u8]| if width == 4 { be32(bytes, 0).map(u64::from) } else { be64(bytes, 0) };
    let all = body.get(room * shape.key..).unwrap_or_default().chunks_exact(width);
    all.take(count.min(room)).filter_map(read)
}
