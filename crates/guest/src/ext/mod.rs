//! ext2, ext3 and ext4.
//!
//! The superblock says how large groups are; the descriptors of the groups, where their bitmaps and inodes lie. Those
//! are metadata wherever they lie. Then the inodes are swept, each with its extents or its indirect blocks. A file
//! is temporary if its path says so, for which only the directories are walked that could hold one. Last, what the
//! block bitmaps say is free.
//!
//! The superblock of a mounted file system is old, but what is used of it does not change, except that it may grow.
//! The rest lies in the journal for some seconds before it comes to its place; until then the old is seen.

mod directory;
mod groups;
mod inode;
mod superblock;

use crate::class::Class;
use crate::disk::{Result, Tolerate, Volume, sane};
use crate::linux;
use crate::paths::Patterns;
use groups::Groups;
use inode::{Inode, Kind};
use superblock::Superblock;

const ROOT: u64 = 2;
const BAD_BLOCKS: u64 = 1;

/// Bytes of an inode table that are read at once.
const CHUNK: u64 = 64 << 10;

/// Finds what an ext volume holds. `Bad` where it is none.
pub(crate) fn scan(volume: &mut Volume, patterns: &Patterns) -> Result<()> {
    let superblock = Superblock::read(volume)?;
    let groups = Groups::read(volume, superblock)?;
    groups.claim_metadata(volume)?;
    let list = |volume: &mut Volume, number, each: &mut linux::EachEntry| {
        directory::list(volume, &groups, number, each)
    };
    let temporary = linux::find_temporary(volume, patterns, ROOT, list)?;
    sweep(volume, &groups, |volume, number, inode| {
        let mut pieces = inode.pieces(volume, &groups.superblock)?;
        if inode.attributes != 0 && inode.attributes < groups.superblock.blocks {
            volume.claim(groups.superblock.bytes(inode.attributes), groups.superblock.block, Class::Metadata);
        }
        match inode.kind {
            _ if number == BAD_BLOCKS => (),
            _ if groups.superblock.is_reserved(number) || inode.is_internal => {
                pieces.claim(volume, Class::Metadata)
            }
            Kind::Directory => pieces.claim(volume, Class::Metadata),
            Kind::File if temporary.has(number, inode.links) => pieces.claim(volume, Class::Temporary),
            Kind::File if !inode.is_encrypted => {
                pieces.claim_by_content(volume, inode.size)?;
            }
            _ => (),
        }
        Ok(())
    })?;
    groups.claim_free(volume)
}

/// Hands every inode in use to `each`. One that makes no sense is left out.
fn sweep(
    volume: &mut Volume,
    groups: &Groups,
    mut each: impl FnMut(&mut Volume, u64, Inode) -> Result<()>,
) -> Result<()> {
    let superblock = &groups.superblock;
    let size = superblock.inode_size;
    for (index, group) in groups.list.iter().enumerate() {
        volume.disk.work(1)?;
        let first = index as u64 * superblock.inodes_per_group + 1;
        let used = group.used_inodes;
        let mut done = 0;
        while done < used {
            volume.disk.work(1)?;
            let count = (used - done).min(CHUNK / size);
            let at = superblock.bytes(group.inode_table).saturating_add(done * size);
            if let Some(table) = volume.read_vec(at, (count * size) as usize).tolerate()? {
                for (i, bytes) in table.chunks_exact(size as usize).enumerate() {
                    volume.disk.work(1)?;
                    let Some(inode) = Inode::parse(bytes) else { continue };
                    each(volume, first + done + i as u64, inode).tolerate()?;
                }
            }
            done += count;
        }
    }
    Ok(())
}
