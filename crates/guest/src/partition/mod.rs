//! Where file systems may lie on a disk.
//!
//! A GUID partition table, if the MBR announces one; else the file system on the whole disk; else the MBR's own
//! partitions. What a table says of the type of a partition does not count: what is in it is looked at. The blocks of
//! the tables are claimed as metadata.

mod gpt;
mod mbr;

use std::ops::Range;

pub(crate) use gpt::seal as seal_gpt;

use crate::disk::{Disk, Result, Tolerate};
use crate::magic;

/// More partitions are not looked at.
const MAX_PARTITIONS: usize = 512;

/// Byte ranges of the disk that may hold a file system each.
pub(crate) fn find(disk: &mut Disk) -> Result<Vec<Range<u64>>> {
    let whole = 0..disk.size();
    let mut head = vec![0; magic::HEAD.min(usize::try_from(disk.size()).unwrap_or(magic::HEAD))];
    // A disk whose first sector cannot be read may have the copy of its table.
    let readable = disk.read(0, &mut head).tolerate()?.is_some();
    let table = mbr::Table::parse(&head, disk.size());
    if !readable || table.as_ref().is_none_or(mbr::Table::announces_gpt) {
        if let Some(partitions) = gpt::find(disk)? {
            return Ok(partitions);
        }
        return Ok(vec![whole]);
    }
    // A boot sector of NTFS ends as an MBR does, and its code may look like a partition table. In ext and swap there
    // is room for a real MBR, and then an old superblock may have been left behind it.
    let first = magic::file_system(&head);
    match table {
        Some(table) if table.is_used() && !matches!(first, Some(magic::Kind::Ntfs | magic::Kind::Xfs)) => {
            table.partitions(disk)
        }
        _ => Ok(vec![whole]),
    }
}
