//! Inodes, and the blocks that they have: by a tree of extents, or by blocks of block numbers.

use super::superblock::Superblock;
use super::{Class, Result, Tolerate, Volume, sane};
use crate::bytes::{le16, le32};
use crate::disk::Fault;
use crate::linux::{Piece, Pieces};

const FLAG_ENCRYPTED: u32 = 0x800;
const FLAG_EXTENTS: u32 = 0x8_0000;
/// Holds attributes of another inode.
const FLAG_ATTRIBUTES: u32 = 0x20_0000;
const FLAG_INLINE: u32 = 0x1000_0000;

const EXTENT_MAGIC: u16 = 0xf30a;
const MAX_DEPTH: u16 = 5;
/// Extents longer than this are so much shorter, and were never written.
const UNWRITTEN: u64 = 32768;

/// What an inode is of.
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
    /// Not a user's.
    pub is_internal: bool,
    /// The block with more attributes; 0 for none.
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
        // In pipes and devices other things stand in the place of the map, and short links are there themselves.
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

    /// Where its blocks lie. The blocks that say so are claimed as metadata.
    pub fn pieces(&self, volume: &mut Volume, superblock: &Superblock) -> Result<Pieces> {
        let mut pieces = Pieces::default();
        if self.flags & FLAG_EXTENTS != 0 {
            extents(volume, superblock, &self.map, None, &mut pieces)?;
        } else if self.flags & FLAG_INLINE == 0 {
            let mut next = 0;
            for slot in 0..15 {
                let block = le32(&self.map, slot * 4).unwrap_or(0).into();
                indirect(volume, superblock, block, slot.saturating_sub(11) as u32, &mut next, &mut pieces)?;
            }
        }
        Ok(pieces)
    }
}

/// A node of the tree of extents. Each level is one lower than the one above, so this ends.
fn extents(
    volume: &mut Volume,
    s: &Superblock,
    node: &[u8],
    expected_depth: Option<u16>,
    pieces: &mut Pieces,
) -> Result<()> {
    let (Some(EXTENT_MAGIC), Some(count), Some(depth)) = (le16(node, 0), le16(node, 2), le16(node, 6)) else {
        return Err(Fault::Bad);
    };
    sane(depth <= MAX_DEPTH && expected_depth.is_none_or(|expected| expected == depth))?;
    for entry in node.get(12..).unwrap_or_default().chunks_exact(12).take(count.into()) {
        volume.disk.work(1)?;
        let field = |at| le32(entry, at).map_or(0, u64::from);
        let half = |at| le16(entry, at).map_or(0, u64::from);
        if depth == 0 {
            let physical = field(8) | half(6) << 32;
            let len = if half(4) > UNWRITTEN { half(4) - UNWRITTEN } else { half(4) };
            add(volume, s, (field(0), physical, len), pieces);
        } else {
            let block = field(4) | half(8) << 32;
            if block != 0
                && block < s.blocks
                && let Some(bytes) = volume.read_vec(s.bytes(block), s.block as usize).tolerate()?
            {
                volume.claim(s.bytes(block), s.block, Class::Metadata);
                extents(volume, s, &bytes, Some(depth - 1), pieces).tolerate()?;
            }
        }
    }
    Ok(())
}

/// A block of a file, or one `level`s above them; `next` is the first block of the file that it is for.
fn indirect(
    volume: &mut Volume,
    s: &Superblock,
    block: u64,
    level: u32,
    next: &mut u64,
    pieces: &mut Pieces,
) -> Result<()> {
    volume.disk.work(1)?;
    if level == 0 {
        add(volume, s, (*next, block, 1), pieces);
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
            indirect(volume, s, number, level - 1, next, pieces)?;
        }
    }
    *next = end;
    Ok(())
}

fn add(volume: &mut Volume, s: &Superblock, (logical, physical, len): (u64, u64, u64), pieces: &mut Pieces) {
    if len != 0 && physical != 0 && physical.saturating_add(len) <= s.blocks {
        let piece = Piece { logical: s.bytes(logical), physical: s.bytes(physical), len: s.bytes(len) };
        pieces.push(volume.disk, piece);
    }
}
