//! Inodes and their block maps: extent trees, or direct and indirect blocks.

use super::superblock::Superblock;
use super::{Class, Result, Tolerate, Volume, ensure};
use crate::bytes::{le16, le32};
use crate::disk::Fault;
use crate::linux::{Extent, ExtentList};

const FLAG_ENCRYPTED: u32 = 0x800;
const FLAG_EXTENTS: u32 = 0x8_0000;
/// EA_INODE: the inode stores an extended attribute of another inode.
const FLAG_ATTRIBUTES: u32 = 0x20_0000;
const FLAG_INLINE: u32 = 0x1000_0000;

const EXTENT_MAGIC: u16 = 0xf30a;
const MAX_DEPTH: u16 = 5;
/// An extent with a greater length is unwritten; its actual length is less by this value.
const UNWRITTEN: u64 = 32768;

/// The file type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Other,
}

/// An inode in use.
#[derive(Debug)]
pub(super) struct Inode {
    pub kind: Kind,
    pub links: u32,
    pub size: u64,
    pub is_encrypted: bool,
    /// The inode belongs to the file system, not to a user.
    pub is_internal: bool,
    /// Block of the extended attributes; 0 if the inode has none.
    pub attributes: u64,
    flags: u32,
    map: [u8; 60],
}

impl Inode {
    pub fn parse(b: &[u8]) -> Option<Inode> {
        let (mode, links, deleted) = (le16(b, 0)?, le16(b, 0x1a)?, le32(b, 0x14)?);
        if links == 0 || deleted != 0 {
            return None;
        }
        let kind = match mode & 0xf000 {
            0x4000 => Kind::Directory,
            0x8000 => Kind::File,
            _ => Kind::Other,
        };
        let flags = le32(b, 0x20)?;
        // Devices and pipes store other data in place of the block map, and short symbolic links store their
        // target.
        let size = u64::from(le32(b, 4)?) | u64::from(le32(b, 0x6c)?) << 32;
        let has_no_map = mode & 0xf000 != 0 && kind == Kind::Other && (mode & 0xf000 != 0xa000 || size < 60);
        let flags = if has_no_map { FLAG_INLINE } else { flags };
        Some(Inode {
            kind,
            links: links.into(),
            size,
            is_encrypted: flags & FLAG_ENCRYPTED != 0,
            is_internal: flags & FLAG_ATTRIBUTES != 0,
            attributes: u64::from(le32(b, 0x68)?) | u64::from(le16(b, 0x76)?) << 32,
            flags,
            map: *b.get(0x28..)?.first_chunk()?,
        })
    }

    /// Returns the extents of the file. Claims the blocks of the extent tree, and indirect blocks, as
    /// metadata.
    pub fn extents(&self, volume: &mut Volume, superblock: &Superblock) -> Result<ExtentList> {
        let mut extents = ExtentList::default();
        if self.flags & FLAG_EXTENTS != 0 {
            extent_node(volume, superblock, &self.map, None, &mut extents)?;
        } else if self.flags & FLAG_INLINE == 0 {
            let mut next = 0;
            for slot in 0..15 {
                let block = le32(&self.map, slot * 4).unwrap_or(0).into();
                indirect(volume, superblock, block, slot.saturating_sub(11) as u32, &mut next, &mut extents)?;
            }
        }
        Ok(extents)
    }
}

/// Walks a node of the extent tree. The recursion ends because the depth must decrease by one per level.
fn extent_node(
    volume: &mut Volume,
    s: &Superblock,
    node: &[u8],
    expected_depth: Option<u16>,
    extents: &mut ExtentList,
) -> Result<()> {
    let (Some(EXTENT_MAGIC), Some(count), Some(depth)) = (le16(node, 0), le16(node, 2), le16(node, 6)) else {
        return Err(Fault::Invalid);
    };
    ensure(depth <= MAX_DEPTH && expected_depth.is_none_or(|expected| expected == depth))?;
    for entry in node.get(12..).unwrap_or_default().chunks_exact(12).take(count.into()) {
        volume.disk.work(1)?;
        let field = |at| le32(entry, at).map_or(0, u64::from);
        let half = |at| le16(entry, at).map_or(0, u64::from);
        if depth == 0 {
            let physical = field(8) | half(6) << 32;
            let len = if half(4) > UNWRITTEN { half(4) - UNWRITTEN } else { half(4) };
            add(volume, s, (field(0), physical, len), extents);
        } else {
            let block = field(4) | half(8) << 32;
            if block != 0
                && block < s.blocks
                && let Some(bytes) = volume.read_vec(s.bytes(block), s.block as usize).tolerate()?
            {
                volume.claim(s.bytes(block), s.block, Class::Metadata);
                extent_node(volume, s, &bytes, Some(depth - 1), extents).tolerate()?;
            }
        }
    }
    Ok(())
}

/// Walks an indirect block of this `level`, or adds the data block at level 0. `next` is the first logical
/// block that it maps.
fn indirect(
    volume: &mut Volume,
    s: &Superblock,
    block: u64,
    level: u32,
    next: &mut u64,
    extents: &mut ExtentList,
) -> Result<()> {
    volume.disk.work(1)?;
    if level == 0 {
        add(volume, s, (*next, block, 1), extents);
        *next += 1;
        return Ok(());
    }
    let below = (s.block / 4).pow(level);
    let end = *next + below;
    if block != 0
        && block < s.blocks
        && let Some(bytes) = volume.read_vec(s.bytes(block), s.block as usize).tolerate()?
    {
        volume.claim(s.bytes(block), s.block, Class::Metadata);
        for number in bytes.chunks_exact(4) {
            let number = le32(number, 0).unwrap_or(0).into();
            indirect(volume, s, number, level - 1, next, extents)?;
        }
    }
    *next = end;
    Ok(())
}

fn add(
    volume: &mut Volume,
    s: &Superblock,
    (logical, physical, len): (u64, u64, u64),
    extents: &mut ExtentList,
) {
    if len != 0 && physical != 0 && physical.saturating_add(len) <= s.blocks {
        let extent = Extent { logical: s.bytes(logical), physical: s.bytes(physical), len: s.bytes(len) };
        extents.push(volume.disk, extent);
    }
}
