//! Block groups: group descriptors, metadata locations and free blocks.

use super::superblock::Superblock;
use super::{Class, Result, Tolerate, Volume, ensure};
use crate::bitmap;
use crate::bytes::{le16, le32};

const INODE_UNINIT: u16 = 1;
const BLOCK_UNINIT: u16 = 2;

/// A group descriptor. Block numbers are relative to the volume and not validated.
#[derive(Debug)]
pub(super) struct Group {
    block_bitmap: u64,
    inode_bitmap: u64,
    pub inode_table: u64,
    /// Number of inodes, from the start of the table, that were ever used.
    pub used_inodes: u64,
    /// BLOCK_UNINIT: the bitmap was never written; all blocks other than metadata are free.
    block_uninit: bool,
}

/// All block groups of an ext file system.
#[derive(Debug)]
pub(super) struct Groups {
    pub superblock: Superblock,
    pub list: Vec<Group>,
}

impl Groups {
    pub fn read(volume: &mut Volume, superblock: Superblock) -> Result<Groups> {
        ensure(volume.disk.charge_memory(superblock.groups as usize * size_of::<Group>()))?;
        let mut groups = Groups { list: Vec::with_capacity(superblock.groups as usize), superblock };
        let superblock = &groups.superblock;
        let each = superblock.descriptors_per_block();
        for block in 0..superblock.groups.div_ceil(each) {
            let at = superblock.bytes(descriptor_block(superblock, block));
            let count = each.min(superblock.groups - block * each);
            volume.disk.work(count)?;
            // Unreadable descriptors are replaced by empty descriptors, so that the groups keep their
            // numbers.
            let empty = || vec![0; superblock.block as usize];
            let bytes = volume.read_vec(at, superblock.block as usize).tolerate()?.unwrap_or_else(empty);
            let parts = bytes.chunks_exact(superblock.descriptor_size as usize).take(count as usize);
            groups.list.extend(parts.filter_map(|part| parse(part, superblock)));
        }
        Ok(groups)
    }

    /// Returns the offset of an inode; `None` if the number is out of range.
    pub fn inode_offset(&self, inode: u64) -> Option<u64> {
        let index = inode.checked_sub(1)?;
        let group = self.list.get((index / self.superblock.inodes_per_group) as usize)?;
        let within = index % self.superblock.inodes_per_group;
        self.superblock.bytes(group.inode_table).checked_add(within * self.superblock.inode_size)
    }

    /// Claims the metadata of all groups: superblocks, group descriptors, bitmaps and inode tables.
    pub fn claim_metadata(&self, volume: &mut Volume) -> Result<()> {
        let s = &self.superblock;
        let mut claim = |block: u64, count: u64| {
            // Block 0 is never a bitmap or an inode table: the field is unset.
            if block != 0 && block < s.blocks {
                volume.claim(s.bytes(block), s.bytes(count), Class::Metadata);
            }
        };
        claim(s.mmp_block, 1);
        let table = (s.inodes_per_group * s.inode_size).div_ceil(s.block);
        self.list.iter().for_each(|group| claim(group.block_bitmap, 1));
        self.list.iter().for_each(|group| claim(group.inode_bitmap, 1));
        self.list.iter().for_each(|group| claim(group.inode_table, table));
        let per_block = s.descriptors_per_block();
        for group in 0..s.groups {
            volume.disk.work(1)?;
            let first = s.bytes(s.first_block_of(group));
            let copy = u64::from(s.has_copy(group));
            volume.claim(first, copy * s.block, Class::Metadata);
            let (block, within) = (group / per_block, group % per_block);
            if block < s.first_meta_bg {
                volume.claim(first + s.block, copy * s.bytes(s.descriptor_blocks), Class::Metadata);
            } else if within <= 1 || within == per_block - 1 {
                volume.claim(first + copy * s.block, s.block, Class::Metadata);
            }
        }
        Ok(())
    }

    /// Claims the blocks that are free in the block bitmaps.
    pub fn claim_free(&self, volume: &mut Volume) -> Result<()> {
        let s = &self.superblock;
        for (index, group) in self.list.iter().enumerate() {
            volume.disk.work(1)?;
            let first = s.first_block_of(index as u64);
            let blocks = s.blocks_per_group.min(s.blocks - first);
            if group.block_uninit {
                volume.claim(s.bytes(first), s.bytes(blocks), Class::Free);
                continue;
            }
            let bits = blocks.div_ceil(s.blocks_per_bit) as usize;
            if group.block_bitmap == 0 {
                continue;
            }
            let at = s.bytes(group.block_bitmap);
            let Some(bitmap) = volume.read_vec(at, s.block as usize).tolerate()? else { continue };
            for run in bitmap::clear_runs(&bitmap, bits) {
                volume.disk.work(1)?;
                let start = first + run.start as u64 * s.blocks_per_bit;
                let len = (run.len() as u64 * s.blocks_per_bit).min(first + blocks - start);
                volume.claim(s.bytes(start), s.bytes(len), Class::Free);
            }
        }
        Ok(())
    }
}

/// Returns the block number of a block of the group descriptor table.
fn descriptor_block(s: &Superblock, block: u64) -> u64 {
    if block < s.first_meta_bg {
        return s.first_block + 1 + block;
    }
    let group = block * s.descriptors_per_block();
    s.first_block_of(group) + u64::from(s.has_copy(group))
}

fn parse(b: &[u8], s: &Superblock) -> Option<Group> {
    let wide = b.len() >= 64;
    let word = |low, high| {
        let above = if wide { u64::from(le32(b, high)?) << 32 } else { 0 };
        Some(u64::from(le32(b, low)?) | above)
    };
    let flags = if s.has_uninit { le16(b, 0x12)? } else { 0 };
    let unused_above = if wide { u64::from(le16(b, 0x32)?) << 16 } else { 0 };
    let unused = if s.has_uninit { u64::from(le16(b, 0x1c)?) | unused_above } else { 0 };
    let inode_table = word(8, 0x28)?;
    let none = flags & INODE_UNINIT != 0 || inode_table == 0;
    Some(Group {
        block_bitmap: word(0, 0x20)?,
        inode_bitmap: word(4, 0x24)?,
        inode_table,
        used_inodes: if none { 0 } else { s.inodes_per_group.saturating_sub(unused) },
        block_uninit: flags & BLOCK_UNINIT != 0,
    })
}
