//! Allocation groups: AGF, AGI and AGFL headers, and the B+trees of the group.

use super::btree::{MAX_LEVEL, Shape, walk};
use super::superblock::Superblock;
use super::{CHUNK, Class, Result, Tolerate, Volume, ensure};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

const BNOBT: Shape = shape([b"ABTB", b"AB3B"], 8, 8);
const CNTBT: Shape = shape([b"ABTC", b"AB3C"], 8, 8);
/// Keys are ranges: a low and a high key of 20 bytes each.
const RMAPBT: Shape = shape([b"RMB3", b"RMB3"], 40, 24);
const REFCOUNTBT: Shape = shape([b"R3FC", b"R3FC"], 4, 12);
const INOBT: Shape = shape([b"IABT", b"IAB3"], 4, 16);
const FINOBT: Shape = shape([b"FIBT", b"FIB3"], 4, 16);

const fn shape(magic: [&'static [u8; 4]; 2], key: usize, record: usize) -> Shape {
    Shape { magic, key, record, group: None }
}

/// Reads the header in sector `index` of a group.
fn header(volume: &mut Volume, s: &Superblock, group: u64, index: u64, magic: &[u8; 4]) -> Result<Vec<u8>> {
    volume.disk.work(1)?;
    let at = s.bytes_in_group(group, 0) + index * s.sector;
    let bytes = volume.read_vec(at, s.sector as usize)?;
    ensure(bytes.starts_with(magic) && be32(&bytes, 8) == Some(group as u32))?;
    Ok(bytes)
}

/// Returns root and level of a tree from a header. On disk, levels are counted from 1.
fn tree(header: &[u8], root: usize, level: usize) -> Option<(u64, u16)> {
    let level = be32(header, level)?.checked_sub(1).filter(|level| *level <= MAX_LEVEL.into())?;
    Some((be32(header, root)?.into(), level as u16))
}

/// Claims the headers, the B+trees and the free extents of a group.
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
            walk(volume, s, here(BNOBT), root, &mut free).tolerate()?;
        }
        for (shape, root, level) in [(CNTBT, 20, 32), (RMAPBT, 24, 36), (REFCOUNTBT, 88, 92)] {
            let has_it = s.is_v5 || shape.magic == CNTBT.magic;
            if let Some(root) = tree(&space, root, level).filter(|_| has_it) {
                walk(volume, s, here(shape), root, &mut |_, _| Ok(())).tolerate()?;
            }
        }
        claim_free_list(volume, s, group, &space).tolerate()?;
    }
    if let Some(inodes) = header(volume, s, group, 2, b"XAGI").tolerate()? {
        let shape = Shape { group: Some(group), ..FINOBT };
        if let Some(root) = tree(&inodes, 328, 332).filter(|(root, _)| *root != 0) {
            walk(volume, s, shape, root, &mut |_, _| Ok(())).tolerate()?;
        }
    }
    Ok(())
}

/// Claims the blocks of the free list (AGFL), which are reserved for the growth of the B+trees. The list is a
/// ring.
fn claim_free_list(volume: &mut Volume, s: &Superblock, group: u64, space: &[u8]) -> Result<()> {
    let at = s.bytes_in_group(group, 0) + 3 * s.sector;
    let list = volume.read_vec(at, s.sector as usize)?;
    let list = list.get(if s.is_v5 { 36 } else { 0 }..).unwrap_or_default();
    let slots = list.len() / 4;
    let (first, count) = (be32(space, 40).ok_or(Fault::Invalid)?, be32(space, 48).ok_or(Fault::Invalid)?);
    ensure((first as usize) < slots && count as usize <= slots)?;
    for i in 0..count as usize {
        let slot = (first as usize + i) % slots;
        let block = be32(list, slot * 4).map_or(0, u64::from);
        if block != 0 && block < s.blocks_of(group) {
            volume.claim(s.bytes_in_group(group, block), s.block, Class::Metadata);
        }
    }
    Ok(())
}

/// Passes every inode chunk of a group to `each`, as the number of its first inode in the group and bits for
/// absent and free inodes. Claims the inode B+tree.
pub(super) fn inode_chunks(
    volume: &mut Volume,
    s: &Superblock,
    group: u64,
    mut each: impl FnMut(&mut Volume, u64, Chunk) -> Result<()>,
) -> Result<()> {
    let inodes = header(volume, s, group, 2, b"XAGI")?;
    let root = tree(&inodes, 20, 24).ok_or(Fault::Invalid)?;
    let shape = Shape { group: Some(group), ..INOBT };
    let mut leaf = |volume: &mut Volume, records: &[u8]| {
        for record in records.chunks_exact(16) {
            volume.disk.work(1)?;
            let (Some(first), Some(holes), Some(free)) = (be32(record, 0), be16(record, 4), be64(record, 8))
            else {
                continue;
            };
            let holes = if s.has_sparse_inodes { holes } else { 0 };
            // Each bit of the hole mask represents four inodes.
            let absent = (0..CHUNK).filter(|i| holes >> (i / 4) & 1 == 1).fold(0, |bits, i| bits | 1 << i);
            each(volume, first.into(), Chunk { absent, free }).tolerate()?;
        }
        Ok(())
    };
    walk(volume, s, shape, root, &mut leaf)
}

/// The bits of a chunk: for its inodes that do not exist, and for its inodes that are not in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub absent: u64,
    pub free: u64,
}
