//! The scan of a disk: finds the partitions, then classifies the blocks of each.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::disk::{Blocks, Disk, Limits, Result, Tolerate, Volume};
use crate::magic::{self, Kind};
use crate::map::ClassMap;
use crate::paths::{Patterns, Temporary};
use crate::{ext, ntfs, partition, xfs};

/// Options of a scan.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Paths of temporary files.
    pub temporary: Temporary,
    /// The budget of the scan.
    pub limits: Limits,
}

/// The content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// An NTFS file system.
    Ntfs,
    /// ext2, ext3 or ext4.
    Ext,
    /// An XFS file system.
    Xfs,
    /// A Linux swap area.
    Swap,
    /// An unknown or too damaged file system, or none.
    Unknown,
}

/// The result of a scan.
#[derive(Debug)]
pub struct Scan {
    /// The class of every block.
    pub map: ClassMap,
    /// The byte ranges of the partitions, or of the whole disk, with their contents.
    pub volumes: Vec<(Range<u64>, Content)>,
    /// Whether the limits were sufficient. If they were not, blocks that the scan did not reach are `Other`.
    pub complete: bool,
    /// Number of failed reads; blocks that depend on these reads are `Other`.
    pub failed_reads: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
}

/// Scans a disk, which may be in use at the same time.
///
/// The function blocks while it reads all metadata, so it should run on a separate thread. It cannot fail: in
/// the worst case all blocks are `Other`.
pub fn scan(blocks: &mut dyn Blocks, options: &Options) -> Scan {
    let mut disk = Disk::new(blocks, options.limits);
    let mut volumes = Vec::new();
    let finished = scan_partitions(&mut disk, options, &mut volumes).is_ok();
    let complete = finished && !disk.incomplete && !disk.found.overflowed();
    let read_bytes = options.limits.read_bytes - disk.left().read_bytes;
    let failed_reads = disk.failed_reads;
    let map = disk.found.finish();
    let complete = complete && map.len() <= options.limits.runs;
    Scan { map: map.limit(options.limits.runs), volumes, complete, failed_reads, read_bytes }
}

fn scan_partitions(
    disk: &mut Disk,
    options: &Options,
    volumes: &mut Vec<(Range<u64>, Content)>,
) -> Result<()> {
    let windows = Patterns::new(&options.temporary.windows, true);
    let linux = Patterns::new(&options.temporary.linux, false);
    for range in partition::find(disk)? {
        let mut volume = Volume::new(disk, range.start, range.end.saturating_sub(range.start));
        let content = scan_volume(&mut volume, &windows, &linux)?;
        volumes.push((range, content));
    }
    Ok(())
}

fn scan_volume(volume: &mut Volume, windows: &Patterns, linux: &Patterns) -> Result<Content> {
    // The largest header of a swap area has this size.
    let len = volume.len().min(64 << 10) as usize;
    let Some(head) = volume.read_vec(0, len).tolerate()? else { return Ok(Content::Unknown) };
    if let Some(swap) = magic::swap(&head, volume.len()) {
        claim_swap(volume, swap);
        return Ok(Content::Swap);
    }
    let kind = magic::file_system(&head);
    let (result, content) = match kind {
        // NTFS is also tried without a valid first sector, because the last sector has a copy of it.
        Some(Kind::Ntfs) | None => (ntfs::scan(volume, windows), Content::Ntfs),
        Some(Kind::Ext) => (ext::scan(volume, linux), Content::Ext),
        Some(Kind::Xfs) => (xfs::scan(volume, linux), Content::Xfs),
    };
    Ok(result.tolerate()?.map_or(Content::Unknown, |()| content))
}

/// Claims a swap area. Its header is metadata: unlike the contents, it must persist, because without it the
/// area is not recognised.
pub(crate) fn claim_swap(volume: &mut Volume, swap: magic::Swap) {
    volume.claim(0, swap.header, Class::Metadata);
    volume.claim(swap.header, swap.len - swap.header, Class::Page);
}
