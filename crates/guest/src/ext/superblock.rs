//! The superblock: geometry and feature flags.

use super::{Result, Volume, ensure};
use crate::bytes::{le16, le32};
use crate::disk::Fault;

const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const RO_SPARSE_SUPER: u32 = 0x1;
const RO_GDT_CSUM: u32 = 0x10;
const RO_BIGALLOC: u32 = 0x200;
const RO_METADATA_CSUM: u32 = 0x400;

/// Maximum number of groups: the number of a file system of 128 TiB. It limits the memory for group
/// descriptors.
const MAX_GROUPS: u64 = 1 << 20;

/// Maximum cluster size of bigalloc, the same as in mke2fs: 512 MiB.
const MAX_LOG_CLUSTER: u32 = 19;

/// The superblock of an ext file system, validated.
#[derive(Debug)]
pub(super) struct Superblock {
    /// Size of a block in bytes.
    pub block: u64,
    pub blocks: u64,
    pub first_block: u64,
    pub blocks_per_group: u64,
    pub groups: u64,
    /// Number of blocks per bit of a block bitmap: more than 1 with bigalloc.
    pub blocks_per_bit: u64,
    pub inodes_per_group: u64,
    pub inode_size: u64,
    pub descriptor_size: u64,
    /// Whether group descriptors have the flags INODE_UNINIT and BLOCK_UNINIT.
    pub has_uninit: bool,
    /// Number of blocks of group descriptors after each superblock, including blocks reserved for growth.
    pub descriptor_blocks: u64,
    /// From this block of the descriptor table on, each block is in the meta block group that it describes.
    pub first_meta_bg: u64,
    first_inode: u64,
    reserved_inodes: [u64; 5],
    /// The two groups with superblock copies, with the feature sparse_super2.
    copies: Option<[u64; 2]>,
    sparse: bool,
    /// Block of multiple mount protection (MMP); 0 for none.
    pub mmp_block: u64,
}

impl Superblock {
    pub fn read(volume: &mut Volume) -> Result<Superblock> {
        let bytes = volume.read_vec(1024, 1024)?;
        let superblock = parse(&bytes).ok_or(Fault::Invalid)?;
        let end = superblock.blocks.checked_mul(superblock.block).ok_or(Fault::Invalid)?;
        ensure(superblock.is_plausible() && end <= volume.len())?;
        Ok(superblock)
    }

    fn is_plausible(&self) -> bool {
        let per_block = self.block * 8;
        (self.inode_size.is_power_of_two() && (128..=self.block).contains(&self.inode_size))
            && (self.descriptor_size.is_power_of_two() && (32..=self.block).contains(&self.descriptor_size))
            && (256..=per_block * self.blocks_per_bit).contains(&self.blocks_per_group)
            && (1..=per_block).contains(&self.inodes_per_group)
            && self.groups <= MAX_GROUPS
            && self.first_block < self.blocks
    }

    /// Converts blocks to bytes. Block numbers are validated before use, so saturation has no effect.
    pub fn bytes(&self, block: u64) -> u64 {
        block.saturating_mul(self.block)
    }

    pub fn first_block_of(&self, group: u64) -> u64 {
        self.first_block + group * self.blocks_per_group
    }

    pub fn descriptors_per_block(&self) -> u64 {
        self.block / self.descriptor_size
    }

    /// Whether the file system itself uses an inode: every inode below the first user inode except the root,
    /// and some inodes above it.
    pub fn is_reserved(&self, inode: u64) -> bool {
        inode != super::ROOT && (inode < self.first_inode || self.reserved_inodes.contains(&inode))
    }

    /// Whether a group has a copy of the superblock.
    pub fn has_copy(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        match self.copies {
            Some(copies) => group == 0 || copies.contains(&group),
            None => !self.sparse || group <= 1 || [3, 5, 7].into_iter().any(is_power_of),
        }
    }
}

fn parse(b: &[u8]) -> Option<Superblock> {
    let word = |at| le32(b, at).map(u64::from);
    let (compat, incompat, ro) = (le32(b, 0x5c)?, le32(b, 0x60)?, le32(b, 0x64)?);
    let (log_block, log_cluster) = (le32(b, 0x18)?, le32(b, 0x1c)?);
    if le16(b, 0x38)? != 0xef53 || log_block > 6 || incompat & INCOMPAT_JOURNAL_DEV != 0 {
        return None;
    }
    let is_64bit = incompat & INCOMPAT_64BIT != 0;
    let has_extra_fields = le32(b, 0x4c)? > 0;
    let block = 1024 << log_block;
    let blocks = word(4)? | if is_64bit { word(0x150)? << 32 } else { 0 };
    let (first_block, blocks_per_group) = (word(0x14)?, word(0x20)?);
    let groups = blocks.checked_sub(first_block)?.div_ceil(blocks_per_group.max(1));
    let descriptor_size = if is_64bit { u64::from(le16(b, 0xfe)?).max(64) } else { 32 };
    let first_meta_bg = if incompat & INCOMPAT_META_BG != 0 { word(0x104)? } else { u64::MAX };
    let all_descriptors = groups.div_ceil((block / descriptor_size.clamp(32, block)).max(1));
    Some(Superblock {
        block,
        blocks,
        first_block,
        blocks_per_group,
        groups,
        blocks_per_bit: if ro & RO_BIGALLOC != 0 {
            1 << log_cluster.checked_sub(log_block).filter(|_| log_cluster <= MAX_LOG_CLUSTER)?
        } else {
            1
        },
        inodes_per_group: word(0x28)?,
        inode_size: if has_extra_fields { le16(b, 0x58)?.into() } else { 128 },
        descriptor_size,
        has_uninit: ro & (RO_GDT_CSUM | RO_METADATA_CSUM) != 0,
        descriptor_blocks: all_descriptors.min(first_meta_bg) + u64::from(le16(b, 0xce)?),
        first_meta_bg,
        first_inode: if has_extra_fields { word(0x54)? } else { 11 },
        // Journal, user, group and project quota, and the orphan file.
        reserved_inodes: [word(0xe0)?, word(0x240)?, word(0x244)?, word(0x26c)?, word(0x280)?],
        copies: (compat & COMPAT_SPARSE_SUPER2 != 0).then_some([word(0x24c)?, word(0x250)?]),
        sparse: ro & RO_SPARSE_SUPER != 0,
        mmp_block: word(0x168)? | word(0x16c)? << 32,
    })
}
