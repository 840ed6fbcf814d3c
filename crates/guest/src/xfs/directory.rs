//! Directories: short form in the inode, or data blocks. The hash tables are not needed.

use super::inode::{Inode, Kind};
use super::superblock::Superblock;
use super::{Result, Tolerate, Volume};
use crate::bytes::{be16, be32, be64};
use crate::disk::Fault;
use crate::linux::{EachEntry, Entry};

/// Maximum bytes read of a directory.
const MAX_BYTES: u64 = 64 << 20;
/// Logical offset at which the leaf blocks (hash tables) begin.
const TABLES: u64 = 32 << 30;
const TYPE_UNKNOWN: u8 = 0;
const TYPE_DIRECTORY: u8 = 2;

/// Passes the entries of a directory to `each`.
pub(super) fn list(volume: &mut Volume, s: &Superblock, inode: u64, each: &mut EachEntry) -> Result<()> {
    let at = s.bytes_of_inode(inode).ok_or(Fault::Invalid)?;
    let bytes = volume.read_vec(at, s.inode as usize)?;
    let inode = Inode::parse(&bytes).filter(|inode| inode.kind == Kind::Directory).ok_or(Fault::Invalid)?;
    if let Some(local) = inode.local() {
        return short_form(volume, local, s.has_types, each);
    }
    let mut left = MAX_BYTES;
    for extent in inode.extents(volume, s)?.0.into_iter().filter(|extent| extent.logical < TABLES) {
        // A directory block can have several file system blocks, which are assumed to be contiguous.
        for offset in (0..extent.len.min(left)).step_by(s.directory_block as usize) {
            let at = extent.physical + offset;
            if let Some(block) = volume.read_vec(at, s.directory_block as usize).tolerate()? {
                data_block(volume, &block, s, each)?;
            }
        }
        left = left.saturating_sub(extent.len);
    }
    Ok(())
}

fn entry(name: &[u8], inode: u64, kind: Option<u8>) -> Entry<'_> {
    let maybe_directory = matches!(kind, None | Some(TYPE_UNKNOWN | TYPE_DIRECTORY));
    Entry { name, inode, maybe_directory }
}

/// Parses a short-form directory. All its inode numbers have 4 bytes, or all have 8.
fn short_form(volume: &mut Volume, bytes: &[u8], has_types: bool, each: &mut EachEntry) -> Result<()> {
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

/// Parses a directory data block, up to the first invalid entry.
fn data_block(volume: &mut Volume, block: &[u8], s: &Superblock, each: &mut EachEntry) -> Result<()> {
    const UNUSED: u16 = 0xffff;
    let header = if s.is_v5 { 64 } else { 16 };
    let end = match block.get(..4) {
        Some(b"XD2D" | b"XDD3") => block.len(),
        // Block form, a single block: the hash table and its length are at the end.
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
