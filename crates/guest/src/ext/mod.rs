//! ext2, ext3 and ext4.
//!
//! The superblock contains the size of the block groups, and the group descriptors the locations of bitmaps
//! and inode tables, which are claimed as metadata. Then all inodes are swept, with their extent trees or
//! indirect blocks. Whether a file is temporary depends on its path; only directories that can contain
//! temporary files are walked. Finally, the block bitmaps provide the free blocks.
//!
//! The superblock of a mounted file system is outdated, but the fields used here are constant unless the file
//! system grows. Other metadata is in the journal for some seconds before it is written in place; until then,
//! the scan sees the previous state.

mod directory;
mod groups;
mod inode;
mod superblock;

use crate::class::Class;
use crate::disk::{Result, Tolerate, Volume, ensure};
use crate::linux;
use crate::paths::Patterns;
use groups::Groups;
use inode::{Inode, Kind};
use superblock::Superblock;

const ROOT: u64 = 2;
const BAD_BLOCKS: u64 = 1;

/// Bytes of an inode table that one read returns.
const CHUNK: u64 = 64 << 10;

/// Scans an ext volume. Returns `Invalid` if it is none.
pub(crate) fn scan(volume: &mut Volume, patterns: &Patterns) -> Result<()> {
    let superblock = Superblock::read(volume)?;
    let groups = Groups::read(volume, superblock)?;
    groups.claim_metadata(volume)?;
    let list = |volume: &mut Volume, number, each: &mut linux::EachEntry| {
        directory::list(volume, &groups, number, each)
    };
    let temporary = linux::find_temporary(volume, patterns, ROOT, list)?;
    sweep(volume, &groups, |volume, number, inode| {
        let mut extents = inode.extents(volume, &groups.superblock)?;
        if inode.attributes != 0 && inode.attributes < groups.superblock.blocks {
            volume.claim(groups.superblock.bytes(inode.attributes), groups.superblock.block, Class::Metadata);
        }
        match inode.kind {
            _ if number == BAD_BLOCKS => (),
            _ if groups.superblock.is_reserved(number) || inode.is_internal => {
                extents.claim(volume, Class::Metadata)
            }
            Kind::Directory => extents.claim(volume, Class::Metadata),
            Kind::File if temporary.has(number, inode.links) => extents.claim(volume, Class::Temporary),
            Kind::File if !inode.is_encrypted => {
                extents.claim_by_content(volume, inode.size)?;
            }
            _ => (),
        }
        Ok(())
    })?;
    groups.claim_free(volume)
}

/// Passes every inode in use to `each`. Skips invalid inodes.
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
