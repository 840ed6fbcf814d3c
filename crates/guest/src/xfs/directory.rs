//! Directories: in the inode, or in blocks. The hash tables behind the blocks are not needed.

use super::inode::{Inode, Kind};
use super::superblock::Superblock;
use super::{Result, Tolerate, Volume};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;
use crate::linux::{EachEntry, Entry};

/// Larger directories are not walked to their end.
const MAX_BYTES: u64 = 64 << 20;
/// Where hash tables begin.
const TABLES: u64 = 32 << 30;
const TYPE_UNKNOWN: u8 = 0;
const TYPE_DIRECTORY: u8 = 2;

/// Hands on the entries of the directory with this inode.
pub(super) fn list(volume: &mut Volume, s: &Superblock, inode: u64, each: &mut EachEntry) -> Result<()> {
    let at = s.bytes_of_inode(inode).ok_or(Fault::Bad)?;
    let bytes = volume.read_vec(at, s.inode as usize)?;
    let inode = Inode::parse(&bytes).filter(|inode| inode.kind == Kind::Directory).ok_or(Fault::Bad)?;
    if let Some(local) = inode.local() {
        return short(volume, local, s.has_types, each);
    }
    let mut left = MAX_BYTES;
    for piece in inode.pieces(volume, s)?.0.into_iter().filter(|piece| piece.logical < TABLES) {
        // A block of a directory may be more than one of the volume; they lie together but for broken ones.
        for offset in (0..piece.len.min(left)).step_by(s.directory_block as usize) {
            let at = piece.physical + offset;
            if let Some(block) = volume.read_vec(at, s.directory_block as usize).tolerate()? {
                long(volume, &block, s, each)?;
            }
        }
        left = left.saturating_sub(piece.len);
    }
    Ok(())
}

fn entry(name: &[u8], inode: u64, kind: Option<u8>) -> Entry<'_> {
    let maybe_directory = matches!(kind, None | Some(TYPE_UNKNOWN | TYPE_DIRECTORY));
    Entry { name, inode, maybe_directory }
}

/// A directory in an inode: numbers are as short as all of them allow.
fn short(volume: &mut Volume, bytes: &[u8], has_types: bool, each: &mut EachEntry) -> Result<()> {
    let [count, wide, ..] = *bytes else { return Ok(()) };
    let width = if wide == 0 { 4 } else { 8 };
    let mut rest = bytes.get(2 + width..).unwrap_or_default();
    for _ in 0..count {
        let Some(len) = rest.first().map(|len| usize::from(*len)) else { return Ok(()) };
        let (types, name) = (usize::from(has_types), rest.get(3..3 + len));
        let number = rest.get(3 + len + types..3 + len + types + width);
        let (Some(name), Some(number)) = (name, number) else { return Ok(()) };
        let inode = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        each(volume, entry(name, inode, has_types.then(|| rest[3 + len])))?;
        rest = &rest[3 + len + types + width..];
    }
    Ok(())
}

/// A block of a directory, up to the first entry that makes no sense.
fn long(volume: &mut Volume, block: &[u8], s: &Superblock, each: &mut EachEntry) -> Result<()> {
    const UNUSED: u16 = 0xffff;
    let header = if s.is_v5 { 64 } else { 16 };
    let end = match block.get(..4) {
        Some(b"XD2D" | b"XDD3") => block.len(),
        // The only block: the hash table is at its end, and its length behind it.
        Some(b"XD2B" | b"XDB3") => {
            let table = be32(block, block.len() - 8).map_or(0, |count| count as usize * 8 + 8);
            block.len().saturating_sub(table)
        }
        _ => return Ok(()),
    };
    let mut rest = block.get(header..end).unwrap_or_default();
    while rest.len() >= 16 {
        let len = if be16(rest, 0) == Some(UNUSED) {
            usize::from(be16(rest, 2).unwrap_or(0))
        } else {
            let (Some(inode), name_len) = (be64(rest, 0), usize::from(rest[8])) else { return Ok(()) };
            let Some(name) = rest.get(9..9 + name_len).filter(|name| !name.is_empty()) else { return Ok(()) };
            let kind = rest.get(9 + name_len).copied().filter(|_| s.has_types);
            each(volume, entry(name, inode, kind))?;
            (9 + name_len + usize::from(s.has_types) + 2).next_multiple_of(8)
        };
        match rest.get(len..) {
            Some(behind) if len >= 8 => rest = behind,
            _ => return Ok(()),
        }
    }
    Ok(())
}
