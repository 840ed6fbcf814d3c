//! Directories. Their hash trees need no care: the blocks of a tree look like blocks with an unused entry.

use super::groups::Groups;
use super::inode::{Inode, Kind};
use super::{Result, Volume, sane};
use crate::bytes::{le16, le32};
use crate::disk::{Fault, Tolerate};
use crate::linux::{EachEntry, Entry};

/// Larger directories are not walked to their end.
const MAX_BYTES: u64 = 64 << 20;
const TYPE_UNKNOWN: u8 = 0;
const TYPE_DIRECTORY: u8 = 2;

/// Hands on the entries of the directory with this inode.
pub(super) fn list(volume: &mut Volume, groups: &Groups, inode: u64, each: &mut EachEntry) -> Result<()> {
    let s = &groups.superblock;
    let at = groups.place_of(inode).ok_or(Fault::Bad)?;
    let bytes = volume.read_vec(at, s.inode_size as usize)?;
    let inode = Inode::parse(&bytes).filter(|inode| inode.kind == Kind::Directory).ok_or(Fault::Bad)?;
    sane(!inode.is_encrypted)?;
    let mut left = inode.size.min(MAX_BYTES);
    for piece in inode.pieces(volume, s)?.0 {
        for offset in (0..piece.len.min(left)).step_by(s.block as usize) {
            if let Some(block) = volume.read_vec(piece.physical + offset, s.block as usize).tolerate()? {
                parse(volume, &block, each)?;
            }
        }
        left = left.saturating_sub(piece.len);
    }
    Ok(())
}

/// The entries of one block, up to the first that makes no sense.
fn parse(volume: &mut Volume, mut block: &[u8], each: &mut EachEntry) -> Result<()> {
    while let (Some(inode), Some(len), Some([name_len, kind])) =
        (le32(block, 0), le16(block, 4), block.get(6..8))
    {
        // The longest that a block of 64 KiB can have does not fit.
        let len = if len == u16::MAX { block.len() } else { usize::from(len) };
        let name = block.get(8..8 + usize::from(*name_len));
        let (Some(name), true) = (name, (8..=block.len()).contains(&len)) else { return Ok(()) };
        if inode != 0 && !name.is_empty() {
            let maybe_directory = matches!(*kind, TYPE_UNKNOWN | TYPE_DIRECTORY);
            each(volume, Entry { name, inode: inode.into(), maybe_directory })?;
        }
        block = &block[len..];
    }
    Ok(())
}
