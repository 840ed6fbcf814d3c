//! Directories. Hash-tree (htree) directories need no special code: to a linear scan, the blocks of the tree
//! look like blocks with an unused entry.

use super::groups::Groups;
use super::inode::{Inode, Kind};
use super::{Result, Volume, ensure};
use crate::bytes::{le16, le32};
use crate::disk::{Fault, Tolerate};
use crate::linux::{EachEntry, Entry};

/// Maximum bytes read of a directory.
const MAX_BYTES: u64 = 64 << 20;
const TYPE_UNKNOWN: u8 = 0;
const TYPE_DIRECTORY: u8 = 2;

/// Passes the entries of a directory to `each`.
pub(super) fn list(volume: &mut Volume, groups: &Groups, inode: u64, each: &mut EachEntry) -> Result<()> {
    let s = &groups.superblock;
    let at = groups.inode_offset(inode).ok_or(Fault::Invalid)?;
    let bytes = volume.read_vec(at, s.inode_size as usize)?;
    let inode = Inode::parse(&bytes).filter(|inode| inode.kind == Kind::Directory).ok_or(Fault::Invalid)?;
    ensure(!inode.is_encrypted)?;
    let mut left = inode.size.min(MAX_BYTES);
    for extent in inode.extents(volume, s)?.0 {
        for offset in (0..extent.len.min(left)).step_by(s.block as usize) {
            if let Some(block) = volume.read_vec(extent.physical + offset, s.block as usize).tolerate()? {
                parse(volume, &block, each)?;
            }
        }
        left = left.saturating_sub(extent.len);
    }
    Ok(())
}

/// Passes the entries of one block to `each`, up to the first invalid one.
fn parse(volume: &mut Volume, mut block: &[u8], each: &mut EachEntry) -> Result<()> {
    while let (Some(inode), Some(len), Some([name_len, kind])) =
        (le32(block, 0), le16(block, 4), block.get(6..8))
    {
        // The field cannot represent the length 65536 of an entry that fills a block of 64 KiB.
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
