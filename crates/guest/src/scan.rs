//! From a disk to its map: partitions, then each of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::disk::{Blocks, Disk, Limits, Result, Tolerate, Volume};
use crate::magic::{self, Kind};
use crate::map::ClassMap;
use crate::paths::{Patterns, Temporary};
use crate::{ext, ntfs, partition, xfs};

/// How to scan.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which files are temporary.
    pub temporary: Temporary,
    /// What it may cost.
    pub limits: Limits,
}

/// What fills a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// NTFS.
    Ntfs,
    /// ext2, ext3 or ext4.
    Ext,
    /// XFS.
    Xfs,
    /// A Linux swap area.
    Swap,
    /// Nothing that is known here, or something too damaged to be understood.
    Unknown,
}

/// What a scan found.
#[derive(Debug)]
pub struct Scan {
    /// The class of every block.
    pub map: ClassMap,
    /// The partitions in bytes, or the whole disk, and what is in them.
    pub volumes: Vec<(Range<u64>, Content)>,
    /// Whether the limits sufficed. If not, what was not reached is `Other`.
    pub complete: bool,
    /// Reads that the disk refused; what would have been there is `Other`.
    pub failed_reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
}

/// Scans a disk, which may be in use meanwhile.
///
/// It blocks, for as long as reading all metadata takes, so it belongs on a thread of its own. It cannot fail: the
/// worst disk is one of which nothing is known.
pub fn scan(blocks: &mut dyn Blocks, options: &Options) -> Scan {
    let mut disk = Disk::new(blocks, options.limits);
    let mut volumes = Vec::new();
    let finished = scan_partitions(&mut disk, options, &mut volumes).is_ok();
    let complete = finished && !disk.cut && !disk.found.overflowed();
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
    // Large enough for the largest page that a swap header may fill.
    let len = volume.len().min(64 << 10) as usize;
    let Some(head) = volume.read_vec(0, len).tolerate()? else { return Ok(Content::Unknown) };
    if let Some(swap) = magic::swap(&head, volume.len()) {
        claim_swap(volume, swap);
        return Ok(Content::Swap);
    }
    let kind = magic::file_system(&head);
    let (result, content) = match kind {
        // The first sector may be gone, and the copy in the last one be there.
        Some(Kind::Ntfs) | None => (ntfs::scan(volume, windows), Content::Ntfs),
        Some(Kind::Ext) => (ext::scan(volume, linux), Content::Ext),
        Some(Kind::Xfs) => (xfs::scan(volume, linux), Content::Xfs),
    };
    Ok(result.tolerate()?.map_or(Content::Unknown, |()| content))
}

/// The header stays when the content of a swap area is forgotten: without it there is none.
pub(crate) fn claim_swap(volume: &mut Volume, swap: magic::Swap) {
    volume.claim(0, swap.header, Class::Metadata);
    volume.claim(swap.header, swap.len - swap.header, Class::Page);
}
