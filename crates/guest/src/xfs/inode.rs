//! Inodes and the block maps of their data and attribute forks: extent lists in the inode, or B+trees.

use super::btree::{self, MAX_LEVEL, Shape};
use super::superblock::Superblock;
use super::{Result, Volume};
use crate::bytes::{be16, be32, be64};
use crate::linux::{Extent, ExtentList};

const FORK: Shape = Shape { magic: [b"BMAP", b"BMA3"], key: 8, record: 16, group: None };
const FLAG_REALTIME: u16 = 1;
const FLAG2_LARGE_COUNTS: u64 = 0x10;

/// The file type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Other,
}

/// The content of a fork of an inode.
#[derive(Debug)]
enum Fork {
    /// The fork has no block map.
    Empty,
    /// The fork is in local format: it has the data itself.
    Local(Vec<u8>),
    /// Extent format: the extent records and their number.
    Extents(Vec<u8>, u64),
    /// B+tree format: the root of the tree.
    Tree(Vec<u8>),
}

/// An inode in use.
#[derive(Debug)]
pub(super) struct Inode {
    pub kind: Kind,
    pub links: u32,
    pub size: u64,
    pub is_realtime: bool,
    data: Fork,
    attributes: Fork,
}

impl Inode {
    pub fn parse(b: &[u8]) -> Option<Inode> {
        let (mode, version) = (be16(b, 2)?, *b.get(4)?);
        if !b.starts_with(b"IN") || mode == 0 {
            return None;
        }
        let kind = match mode & 0xf000 {
            0x4000 => Kind::Directory,
            0x8000 => Kind::File,
            _ => Kind::Other,
        };
        let has_large_counts = version >= 3 && be64(b, 120)? & FLAG2_LARGE_COUNTS != 0;
        let (count, attribute_count) = if has_large_counts {
            (be64(b, 24)?, be32(b, 76)?.into())
        } else {
            (be32(b, 76)?.into(), be16(b, 80)?.into())
        };
        let forks = b.get(if version >= 3 { 176 } else { 100 }..)?;
        let boundary = match usize::from(*b.get(82)?) * 8 {
            0 => forks.len(),
            at => at,
        };
        let (data, attributes) = forks.split_at_checked(boundary)?;
        Some(Inode {
            kind,
            links: if version == 1 { be16(b, 6)?.into() } else { be32(b, 16)? },
            size: be64(b, 56)?,
            is_realtime: be16(b, 90)? & FLAG_REALTIME != 0,
            data: fork(*b.get(5)?, data, count),
            attributes: fork(*b.get(83)?, attributes, attribute_count),
        })
    }

    /// Returns the content if it is stored in the inode.
    pub fn local(&self) -> Option<&[u8]> {
        match &self.data {
            Fork::Local(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the extents of the data fork. Claims the blocks of its B+tree as metadata.
    pub fn extents(&self, volume: &mut Volume, s: &Superblock) -> Result<ExtentList> {
        self.data.extents(volume, s)
    }

    /// Returns the extents of the attribute fork. Claims the blocks of its B+tree as metadata.
    pub fn attribute_extents(&self, volume: &mut Volume, s: &Superblock) -> Result<ExtentList> {
        self.attributes.extents(volume, s)
    }
}

fn fork(format: u8, bytes: &[u8], count: u64) -> Fork {
    match format {
        1 => Fork::Local(bytes.to_vec()),
        2 => Fork::Extents(bytes.to_vec(), count),
        3 => Fork::Tree(bytes.to_vec()),
        _ => Fork::Empty,
    }
}

impl Fork {
    fn extents(&self, volume: &mut Volume, s: &Superblock) -> Result<ExtentList> {
        let mut extents = ExtentList::default();
        match self {
            Fork::Empty | Fork::Local(_) => (),
            Fork::Extents(bytes, count) => {
                for record in bytes.chunks_exact(16).take(usize::try_from(*count).unwrap_or(usize::MAX)) {
                    volume.disk.work(1)?;
                    add(volume, s, record, &mut extents);
                }
            }
            Fork::Tree(bytes) => self::tree(volume, s, bytes, &mut extents)?,
        }
        Ok(extents)
    }
}

/// Walks the B+tree whose root is in the inode.
fn tree(volume: &mut Volume, s: &Superblock, root: &[u8], extents: &mut ExtentList) -> Result<()> {
    let (Some(level), Some(count)) = (be16(root, 0), be16(root, 2)) else { return Ok(()) };
    if level == 0 || level > MAX_LEVEL {
        return Ok(());
    }
    let mut leaf = |volume: &mut Volume, records: &[u8]| {
        for record in records.chunks_exact(16) {
            volume.disk.work(1)?;
            add(volume, s, record, extents);
        }
        Ok(())
    };
    let body = root.get(4..).unwrap_or_default();
    for pointer in btree::pointers(body, FORK, count.into()) {
        crate::disk::Tolerate::tolerate(btree::walk(volume, s, FORK, (pointer, level - 1), &mut leaf))?;
    }
    Ok(())
}

/// Decodes an extent record: a flag, 54 bits of logical offset, 52 bits of block number, 21 bits of length.
fn add(volume: &mut Volume, s: &Superblock, record: &[u8], extents: &mut ExtentList) {
    let (Some(high), Some(low)) = (be64(record, 0), be64(record, 8)) else { return };
    let logical = high << 1 >> 10;
    let number = (high & 0x1ff) << 43 | low >> 21;
    let count = low & ((1 << 21) - 1);
    if let Some(physical) = s.bytes_of(number, count) {
        let (logical, len) = (logical.saturating_mul(s.block), count * s.block);
        extents.push(volume.disk, Extent { logical, physical, len });
    }
}
