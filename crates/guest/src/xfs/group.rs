//! Allocation groups: their headers, and the trees that these lead to.

use super::btree::{MAX_LEVEL, Shape, walk};
use super::superblock::Superblock;
use super::{CHUNK, Class, Result, Tolerate, Volume, sane};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

const FREE: Shape = shape([b"ABTB", b"AB3B"], 8, 8);
const FREE_BY_SIZE: Shape = shape([b"ABTC", b"AB3C"], 8, 8);
/// Keys are ranges: each is two of 20 bytes.
const OWNERS: Shape = shape([b"RMB3", b"RMB3"], 40, 24);
const SHARED: Shape = shape([b"R3FC", b"R3FC"], 4, 12);
const INODES: Shape = shape([b"IABT", b"IAB3"], 4, 16);
const FREE_INODES: Shape = shape([b"FIBT", b"FIB3"], 4, 16);

const fn shape(magic: [&'static [u8; 4]; 2], key: usize, record: usize) -> Shape {
    Shape { magic, key, record, group: None }
}

/// Reads header number `index` of a group.
fn header(volume: &mut Volume, s: &Superblock, group: u64, index: u64, magic: &[u8; 4]) -> Result<Vec<u8>> {
    volume.disk.work(1)?;
    let at = s.bytes_in_group(group, 0) + index * s.sector;
    let bytes = volume.read_vec(at, s.sector as usize)?;
    sane(bytes.starts_with(magic) && be32(&bytes, 8) == Some(group as u32))?;
    Ok(bytes)
}

/// The root and level of a tree that a header names; on disk the level counts from 1.
fn tree(header: &[u8], root: usize, level: usize) -> Option<(u64, u16)> {
    let level = be32(header, level)?.checked_sub(1).filter(|level| *level <= MAX_LEVEL.into())?;
    Some((be32(header, root)?.into(), level as u16))
}

/// Claims the headers of a group, all its trees, and the extents that are free.
pub(super) fn claim_headers_and_trees(volume: &mut Volume, s: &Superblock, group: u64) -> Result<()> {
    volume.claim(s.bytes_in_group(group, 0), 4 * s.sector, Class::Metadata);
    if let Some(space) = header(volume, s, group, 1, b"XAGF").tolerate()? {
        let mut free = |volume: &mut Volume, records: &[u8]| {
            for record in records.chunks_exact(8) {
                volume.disk.work(1)?;
                let (Some(first), Some(count)) = (be32(record, 0), be32(record, 4)) else { continue };
                let (first, count) = (u64::from(first), u64::from(count));
                if first + count <= s.blocks_of(group) {
                    volume.claim(s.bytes_in_group(group, first), count * s.block, Class::Free);
                }
            }
            Ok(())
        };
        let here = |shape| Shape { group: Some(group), ..shape };
        if let Some(root) = tree(&space, 16, 28) {
            walk(volume, s, here(FREE), root, &mut free).tolerate()?;
        }
        for (shape, root, level) in [(FREE_BY_SIZE, 20, 32), (OWNERS, 24, 36), (SHARED, 88, 92)] {
            let has_it = s.is_v5 || shape.magic == FREE_BY_SIZE.magic;
            if let Some(root) = tree(&space, root, level).filter(|_| has_it) {
                walk(volume, s, here(shape), root, &mut |_, _| Ok(())).tolerate()?;
            }
        }
        reserve(volume, s, group, &space).tolerate()?;
    }
    if let Some(inodes) = header(volume, s, group, 2, b"XAGI").tolerate()? {
        let shape = Shape { group: Some(group), ..FREE_INODES };
        if let Some(root) = tree(&inodes, 328, 332).filter(|(root, _)| *root != 0) {
            walk(volume, s, shape, root, &mut |_, _| Ok(())).tolerate()?;
        }
    }
    Ok(())
}

/// Claims the blocks that a group keeps for its trees to grow. They are listed in a ring.
fn reserve(volume: &mut Volume, s: &Superblock, group: u64, space: &[u8]) -> Result<()> {
    let at = s.bytes_in_group(group, 0) + 3 * s.sector;
    let list = volume.read_vec(at, s.sector as usize)?;
    let list = list.get(if s.is_v5 { 36 } else { 0 }..).unwrap_or_default();
    let slots = list.len() / 4;
    let (first, count) = (be32(space, 40).ok_or(Fault::Bad)?, be32(space, 48).ok_or(Fault::Bad)?);
    sane((first as usize) < slots && count as usize <= slots)?;
    for i in 0..count as usize {
        let slot = (first as usize + i) % slots;
        let block = be32(list, slot * 4).map_or(0, u64::from);
        if block != 0 && block < s.blocks_of(group) {
            volume.claim(s.bytes_in_group(group, block), s.block, Class::Metadata);
        }
    }
    Ok(())
}

/// Hands every chunk of inodes of a group to `each`, as the place of its first inode in the group and a bit for each
/// inode that is absent or free; and claims the tree that lists them.
pub(super) fn inode_chunks(
    volume: &mut Volume,
    s: &Superblock,
    group: u64,
    mut each: impl FnMut(&mut Volume, u64, Chunk) -> Result<()>,
) -> Result<()> {
    let inodes = header(volume, s, group, 2, b"XAGI")?;
    let root = tree(&inodes, 20, 24).ok_or(Fault::Bad)?;
    let shape = Shape { group: Some(group), ..INODES };
    let mut leaf = |volume: &mut Volume, records: &[u8]| {
        for record in records.chunks_exact(16) {
            volume.disk.work(1)?;
            let (Some(first), Some(holes), Some(free)) = (be32(record, 0), be16(record, 4), be64(record, 8))
            else {
                continue;
            };
            let holes = if s.has_sparse_inodes { holes } else { 0 };
            // Each bit is for four inodes.
            let absent = (0..CHUNK).filter(|i| holes >> (i / 4) & 1 == 1).fold(0, |bits, i| bits | 1 << i);
            each(volume, first.into(), Chunk { absent, free }).tolerate()?;
        }
        Ok(())
    };
    walk(volume, s, shape, root, &mut leaf)
}

/// Which inodes of a chunk are not there, and which are not in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub absent: u64,
    pub free: u64,
}
