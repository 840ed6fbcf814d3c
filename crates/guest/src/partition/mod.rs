//! Partition tables: the byte ranges of a disk that can contain a file system.
//!
//! The partitions are those of the GUID partition table, if the MBR has a protective entry. Otherwise, a file
//! system on the whole disk takes precedence over the partitions of the MBR. Partition types are ignored: the
//! content of each partition is examined. The blocks of the tables are claimed as metadata.

mod gpt;
mod mbr;

use std::ops::Range;

#[cfg(feature = "fuzzing")]
pub(crate) use gpt::seal as seal_gpt;

use crate::disk::{Disk, Result, Tolerate};
use crate::magic;

/// Maximum number of partitions.
const MAX_PARTITIONS: usize = 512;

/// Returns the byte ranges of the disk that can contain a file system.
pub(crate) fn find(disk: &mut Disk) -> Result<Vec<Range<u64>>> {
    let whole = 0..disk.size();
    let mut head = vec![0; magic::HEAD.min(usize::try_from(disk.size()).unwrap_or(magic::HEAD))];
    // If the first sector is unreadable, the second copy of a GPT may be valid.
    let readable = disk.read(0, &mut head).tolerate()?.is_some();
    let table = mbr::Table::parse(&head, disk.size());
    if !readable || table.as_ref().is_none_or(mbr::Table::announces_gpt) {
        if let Some(partitions) = gpt::find(disk)? {
            return Ok(partitions);
        }
        return Ok(vec![whole]);
    }
    // An NTFS boot sector has the signature of an MBR, and its code may look like a partition table. In ext
    // and swap, the first sector is unused, so there can be a valid MBR in front of a stale superblock.
    let first = magic::file_system(&head);
    match table {
        Some(table) if table.is_used() && !matches!(first, Some(magic::Kind::Ntfs | magic::Kind::Xfs)) => {
            table.partitions(disk)
        }
        _ => Ok(vec![whole]),
    }
}
