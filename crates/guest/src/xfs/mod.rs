//! XFS.
//!
//! The volume consists of allocation groups (AG). Each begins with four headers, which contain the roots of
//! B+trees: free extents, inodes, reverse mappings and reference counts. The trees, the inode chunks, the log
//! and the block maps of inodes are metadata. Whether a file is temporary depends on its path; only
//! directories that can contain temporary files are walked.
//!
//! The log is not replayed, so changes of the last seconds may be missing.

mod btree;
mod directory;
mod group;
mod inode;
mod superblock;

use crate::class::Class;
use crate::disk::{Result, Tolerate, Volume, ensure};
use crate::linux;
use crate::paths::Patterns;
use group::Chunk;
use inode::{Inode, Kind};
use superblock::Superblock;

/// Inodes per chunk. A chunk is read at once.
const CHUNK: u64 = 64;

/// Scans an XFS volume. Returns `Invalid` if it is none.
pub(crate) fn scan(volume: &mut Volume, patterns: &Patterns) -> Result<()> {
    let s = Superblock::read(volume)?;
    if let Some(at) = s.bytes_of(s.log_start, s.log_blocks) {
        volume.claim(at, s.log_blocks * s.block, Class::Metadata);
    }
    for group in 0..s.groups {
        group::claim_headers_and_trees(volume, &s, group).tolerate()?;
    }
    let list =
        |volume: &mut Volume, number, each: &mut linux::EachEntry| directory::list(volume, &s, number, each);
    let temporary = linux::find_temporary(volume, patterns, s.root, list)?;
    for group in 0..s.groups {
        let chunks = |volume: &mut Volume, first, chunk| {
            sweep(volume, &s, group, (first, chunk), |volume, number, inode| {
                claim_inode(volume, &s, number, &inode, &temporary)
            })
        };
        group::inode_chunks(volume, &s, group, chunks).tolerate()?;
    }
    Ok(())
}

fn claim_inode(
    volume: &mut Volume,
    s: &Superblock,
    number: u64,
    inode: &Inode,
    temporary: &linux::TemporaryFiles,
) -> Result<()> {
    inode.attribute_extents(volume, s)?.claim(volume, Class::Metadata);
    let mut extents = inode.extents(volume, s)?;
    match inode.kind {
        // Block numbers of realtime files refer to the realtime device, which is another disk.
        _ if inode.is_realtime => (),
        _ if s.reserved_inodes.contains(&number) => extents.claim(volume, Class::Metadata),
        Kind::Directory => extents.claim(volume, Class::Metadata),
        Kind::File if temporary.has(number, inode.links) => extents.claim(volume, Class::Temporary),
        Kind::File => extents.claim_by_content(volume, inode.size)?,
        Kind::Other => (),
    }
    Ok(())
}

/// Claims the present parts of the inode chunk that begins at `first` in its group, and passes each inode in
/// use to `each`.
fn sweep(
    volume: &mut Volume,
    s: &Superblock,
    group: u64,
    (first, Chunk { absent, free }): (u64, Chunk),
    mut each: impl FnMut(&mut Volume, u64, Inode) -> Result<()>,
) -> Result<()> {
    let size = s.inode;
    let start = s.bytes_in_group(group, 0).saturating_add(first.saturating_mul(size));
    let end_of_group = s.bytes_in_group(group, s.blocks_of(group));
    ensure(start < end_of_group)?;
    // Absent parts are multiples of four inodes.
    for at in (0..CHUNK).step_by(4) {
        if absent >> at & 1 == 0 {
            volume.claim(start + at * size, 4 * size, Class::Metadata);
        }
    }
    let len = (CHUNK * size).min(end_of_group - start) as usize;
    let Some(bytes) = volume.read_vec(start, len).tolerate()? else { return Ok(()) };
    for (i, bytes) in bytes.chunks_exact(size as usize).enumerate() {
        volume.disk.work(1)?;
        if (absent | free) >> i & 1 == 0
            && let Some(inode) = Inode::parse(bytes)
        {
            let number = s.inode_number(group, first + i as u64);
            each(volume, number, inode).tolerate()?;
        }
    }
    Ok(())
}
