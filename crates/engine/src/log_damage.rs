//! The report on damage to the log that cuts off flushed writes.

use std::fmt;

use serde::Serialize;

use crate::text::shorten;

/// Damage to the log at a position before flushed writes.
#[derive(Debug, Clone, Serialize)]
pub struct LogDamage {
    /// Identifier of the damage: the sequence number of the first missing batch.
    pub id: u64,
    /// Sequence number of the last batch before the damage, with which the pool can be opened.
    pub intact_until: u64,
    /// Possible locations of the first missing batch.
    pub places: Vec<DamagedPlace>,
    /// Minimum number of damaged or missing batches.
    pub missing_batches: u64,
    /// Number of intact batches after the damage, which recovery cannot reach.
    pub lost_batches: u64,
    /// Number of groups (commits) whose last batch is one of these intact batches.
    pub lost_groups: u64,
    /// Writes in the intact batches, for each disk. Writes in the missing batches are not included.
    pub disks: Vec<DiskLoss>,
    /// Changes to the catalogue in the intact batches.
    pub catalogue: Vec<String>,
}

/// A location of the damage in a segment.
#[derive(Debug, Clone, Serialize)]
pub struct DamagedPlace {
    /// Segment number, as in the file name.
    pub segment: String,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Description of the damage.
    pub what: &'static str,
}

/// Flushed writes to one disk that cannot be reached.
#[derive(Debug, Clone, Serialize)]
pub struct DiskLoss {
    /// Export name of the disk.
    pub name: String,
    /// Blocks of 4 KiB written; each write of a block counts.
    pub written_blocks: u64,
    /// Blocks of 4 KiB zeroed or discarded; each change of a block counts.
    pub zeroed_blocks: u64,
}

/// Maximum number of names that the one-line message lists.
const NAMES: usize = 4;

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log is damaged")?;
        match self.places.first() {
            Some(at) => write!(f, " at segment {}, offset {} ({})", at.segment, at.offset, at.what)?,
            None => write!(f, ": batch {} is missing", self.id)?,
        }
        match self.lost_groups {
            0 => write!(f, "; flushed writes may be lost")?,
            groups => write!(f, "; {groups} commits of flushed writes after it cannot be reached")?,
        }
        for (i, disk) in self.disks.iter().take(NAMES).enumerate() {
            let lead = if i == 0 { ": " } else { ", " };
            let blocks = disk.written_blocks.saturating_add(disk.zeroed_blocks);
            write!(f, "{lead}{blocks} blocks of '{}'", shorten(&disk.name))?;
        }
        match self.disks.len().saturating_sub(NAMES) {
            0 => Ok(()),
            more => write!(f, " and blocks of {more} more disks"),
        }
    }
}
