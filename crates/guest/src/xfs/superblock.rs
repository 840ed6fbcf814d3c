//! The superblock, and the numbering of blocks and inodes: the group number is in the high bits, the number
//! within the group in the low bits.

use super::{Result, Volume, ensure};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

/// Maximum number of groups: the number of a volume of a petabyte.
const MAX_GROUPS: u64 = 1 << 20;
/// Maximum inode size of the format.
const MAX_INODE: u64 = 2048;
const FEATURE2_FTYPE: u32 = 0x200;
const INCOMPAT_FTYPE: u32 = 1;
const INCOMPAT_SPARSE_INODES: u32 = 2;

/// The superblock of an XFS file system, validated.
#[derive(Debug)]
pub(super) struct Superblock {
    /// Sizes in bytes of a block, a sector, an inode and a directory block.
    pub block: u64,
    pub sector: u64,
    pub inode: u64,
    pub directory_block: u64,
    pub blocks: u64,
    pub groups: u64,
    group_blocks: u64,
    group_bits: u32,
    inode_bits: u32,
    pub log_start: u64,
    pub log_blocks: u64,
    pub root: u64,
    /// Inodes of the realtime bitmap and summary, and of the user, group and project quota.
    pub reserved_inodes: [u64; 5],
    /// Version 5: self-describing metadata, which has longer headers.
    pub is_v5: bool,
    pub has_types: bool,
    pub has_sparse_inodes: bool,
}

impl Superblock {
    pub fn read(volume: &mut Volume) -> Result<Superblock> {
        let bytes = volume.read_vec(0, 512)?;
        let s = parse(&bytes).ok_or(Fault::Invalid)?;
        let is_size = |n: u64, least| n.is_power_of_two() && (least..=65536).contains(&n);
        ensure(
            is_size(s.block, 512) && is_size(s.sector, 512) && is_size(s.inode, 256) && s.inode <= MAX_INODE,
        )?;
        ensure(is_size(s.directory_block, s.block) && s.inode <= s.block)?;
        ensure((1..=MAX_GROUPS).contains(&s.groups) && s.group_bits < 32 && s.inode_bits < 16)?;
        ensure(s.group_blocks >= 64 && s.group_blocks <= 1 << s.group_bits)?;
        ensure(s.blocks <= volume.len() / s.block && s.groups == s.blocks.div_ceil(s.group_blocks))?;
        Ok(s)
    }

    /// Returns the number of blocks of a group; the last group can be shorter.
    pub fn blocks_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks.saturating_sub(group * self.group_blocks))
    }

    /// Returns the offset of a block of a group on the volume.
    pub fn bytes_in_group(&self, group: u64, block: u64) -> u64 {
        (group * self.group_blocks).saturating_add(block).saturating_mul(self.block)
    }

    /// Returns the offset of `count` blocks from block `number`; `None` if they are out of range.
    pub fn bytes_of(&self, number: u64, count: u64) -> Option<u64> {
        let (group, block) = (number >> self.group_bits, number & ((1 << self.group_bits) - 1));
        let fits = group < self.groups && block.checked_add(count)? <= self.blocks_of(group);
        (fits && number != 0 && count != 0).then(|| self.bytes_in_group(group, block))
    }

    pub fn inode_number(&self, group: u64, within: u64) -> u64 {
        group << (self.group_bits + self.inode_bits) | within
    }

    /// Returns the offset of an inode; `None` if the number is out of range.
    pub fn bytes_of_inode(&self, number: u64) -> Option<u64> {
        let block = self.bytes_of(number >> self.inode_bits, 1)?;
        Some(block + (number & ((1 << self.inode_bits) - 1)) * self.inode)
    }
}

fn parse(b: &[u8]) -> Option<Superblock> {
    let log2 = |at: usize| 1_u64.checked_shl(u32::from(*b.get(at)?));
    let is_v5 = be16(b, 100)? & 15 == 5;
    let incompat = if is_v5 { be32(b, 216)? } else { 0 };
    let block = be32(b, 4)?.into();
    Some(Superblock {
        block,
        sector: be16(b, 102)?.into(),
        inode: be16(b, 104)?.into(),
        directory_block: log2(192)?.checked_mul(block)?,
        blocks: be64(b, 8)?,
        groups: be32(b, 88)?.into(),
        group_blocks: be32(b, 84)?.into(),
        group_bits: (*b.get(124)?).into(),
        inode_bits: (*b.get(123)?).into(),
        log_start: be64(b, 48)?,
        log_blocks: be32(b, 96)?.into(),
        root: be64(b, 56)?,
        reserved_inodes: [be64(b, 64)?, be64(b, 72)?, be64(b, 160)?, be64(b, 168)?, be64(b, 232)?],
        is_v5,
        has_types: incompat & INCOMPAT_FTYPE != 0 || (!is_v5 && be32(b, 200)? & FEATURE2_FTYPE != 0),
        has_sparse_inodes: incompat & INCOMPAT_SPARSE_INODES != 0,
    })
}
