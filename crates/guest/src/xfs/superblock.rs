//! The superblock, and how it numbers blocks and inodes: the group in the high bits, the place in it in the low ones.

use super::{Result, Volume, sane};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;

/// Of a volume of a petabyte; more are not looked at.
const MAX_GROUPS: u64 = 1 << 20;
/// The format knows none that are larger.
const MAX_INODE: u64 = 2048;
const FEATURE2_FTYPE: u32 = 0x200;
const INCOMPAT_FTYPE: u32 = 1;
const INCOMPAT_SPARSE_INODES: u32 = 2;

/// What the superblock says, checked.
#[derive(Debug)]
pub(super) struct Superblock {
    /// Bytes of a block, a sector, an inode, a block of a directory.
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
    /// Bitmap and summary of the realtime section, and the three quotas.
    pub reserved_inodes: [u64; 5],
    /// Version 5: metadata describes itself, so its headers are longer.
    pub is_v5: bool,
    pub has_types: bool,
    pub has_sparse_inodes: bool,
}

impl Superblock {
    pub fn read(volume: &mut Volume) -> Result<Superblock> {
        let bytes = volume.read_vec(0, 512)?;
        let s = parse(&bytes).ok_or(Fault::Bad)?;
        let is_size = |n: u64, least| n.is_power_of_two() && (least..=65536).contains(&n);
        sane(
            is_size(s.block, 512) && is_size(s.sector, 512) && is_size(s.inode, 256) && s.inode <= MAX_INODE,
        )?;
        sane(is_size(s.directory_block, s.block) && s.inode <= s.block)?;
        sane((1..=MAX_GROUPS).contains(&s.groups) && s.group_bits < 32 && s.inode_bits < 16)?;
        sane(s.group_blocks >= 64 && s.group_blocks <= 1 << s.group_bits)?;
        sane(s.blocks <= volume.len() / s.block && s.groups == s.blocks.div_ceil(s.group_blocks))?;
        Ok(s)
    }

    /// Blocks of a group; the last one may be shorter.
    pub fn blocks_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks.saturating_sub(group * self.group_blocks))
    }

    /// Where a block of a group lies on the volume.
    pub fn bytes_in_group(&self, group: u64, block: u64) -> u64 {
        (group * self.group_blocks).saturating_add(block).saturating_mul(self.block)
    }

    /// Where `count` blocks from the one with this number on lie; none where there are no such blocks.
    pub fn bytes_of(&self, number: u64, count: u64) -> Option<u64> {
        let (group, block) = (number >> self.group_bits, number & ((1 << self.group_bits) - 1));
        let fits = group < self.groups && block.checked_add(count)? <= self.blocks_of(group);
        (fits && number != 0 && count != 0).then(|| self.bytes_in_group(group, block))
    }

    pub fn inode_number(&self, group: u64, within: u64) -> u64 {
        group << (self.group_bits + self.inode_bits) | within
    }

    /// Where an inode lies.
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
