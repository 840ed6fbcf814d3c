//! What checkpoint and log say, judged before it is applied: right checksums do not make it possible.
//!
//! The format crate judges each structure by itself. Here is what only the catalogue can tell: whether a disk has the
//! blocks that an entry names, and whether it exists. No matter who wrote the pool, a structure that fails here is reported
//! as one that does not decode.

use forebay_format::{CatalogueOp, Checkpoint, DiskId, DiskRecord, Entry, FormatError, Superblock};
use forebay_store::ObjectStat;

use crate::limits::{MAX_COUNT, MAX_DISK_BYTES, MAX_ID};
use crate::pool::Pool;
use crate::volume::blocks;
use crate::{Error, Result};

fn bad(what: &'static str, field: &'static str) -> Result<()> {
    Err(Error::Format(FormatError::Value { what, field }))
}

/// Whether a disk can have this size.
fn check_size(what: &'static str, size: u64) -> Result<()> {
    if size == 0 || size > MAX_DISK_BYTES { bad(what, "size_bytes") } else { Ok(()) }
}

/// Judges the numbers that go up by one: the next ones must exist.
///
/// # Errors
/// [`Error::Format`] where one is higher than any pool gets.
pub(crate) fn check_superblock(superblock: &Superblock) -> Result<()> {
    match superblock {
        Superblock { generation, .. } if *generation > MAX_COUNT => bad("superblock", "generation"),
        Superblock { epoch, .. } if *epoch > MAX_COUNT => bad("superblock", "epoch"),
        Superblock { seq, .. } if *seq > MAX_COUNT => bad("superblock", "seq"),
        _ => Ok(()),
    }
}

/// As [`check_superblock`], for ids of disks and segments.
///
/// # Errors
/// As there.
pub(crate) fn check_ids(checkpoint: &Checkpoint, objects: &[ObjectStat]) -> Result<()> {
    if checkpoint.next_disk > MAX_ID {
        bad("checkpoint", "next_disk")
    } else if checkpoint.next_segment > MAX_ID {
        bad("checkpoint", "next_segment")
    } else if objects.iter().any(|o| o.id.0 >= MAX_ID) {
        bad("store", "number of an object")
    } else {
        Ok(())
    }
}

/// Judges the record of a disk by itself.
///
/// # Errors
/// [`Error::Format`] where no release makes such a disk.
pub(crate) fn check_record(record: &DiskRecord) -> Result<()> {
    if record.id.0 >= MAX_ID {
        return bad("disk record", "id");
    }
    check_size("disk record", record.size)
}

impl Pool {
    /// Judges an entry of the log that is to be applied next. A disk that is gone may still be written to: that changes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Format`] where it cannot be applied.
    pub(crate) fn check_entry(&self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Put { disk, block, .. } | Entry::Reference { disk, block, .. } => {
                self.check_blocks("entry", "block_index", *disk, *block, 1)
            }
            Entry::Zero { disk, block, count, .. } => {
                self.check_blocks("entry", "count", *disk, *block, *count)
            }
            Entry::Catalogue(op) => self.check_op(op),
            Entry::Node { .. } | Entry::Blob { .. } | Entry::Relocate { .. } => Ok(()),
        }
    }

    fn check_blocks(
        &self,
        what: &'static str,
        field: &'static str,
        disk: DiskId,
        block: u64,
        count: u64,
    ) -> Result<()> {
        let Some(volume) = self.volume(disk) else { return Ok(()) };
        let fits = block.checked_add(count).is_some_and(|end| end <= blocks(volume.size()));
        if fits { Ok(()) } else { bad(what, field) }
    }

    fn check_op(&self, op: &CatalogueOp) -> Result<()> {
        const WHAT: &str = "catalogue change";
        match op {
            CatalogueOp::Create { disk, from } => {
                if self.volume(disk.id).is_some() {
                    return bad(WHAT, "disk");
                }
                // The map is that of the other disk, and so is the size.
                let source = from.and_then(|from| self.volume(from));
                if source.is_some_and(|source| blocks(source.size()) != blocks(disk.size)) {
                    return bad(WHAT, "from");
                }
                check_record(disk)
            }
            CatalogueOp::Resize { size, .. } => check_size(WHAT, *size),
            CatalogueOp::CopyRange { disk, block, from, source_block, count } => {
                self.check_blocks("copied range", "block_index", *disk, *block, *count)?;
                self.check_blocks("copied range", "source_block", *from, *source_block, *count)
            }
            CatalogueOp::Update { .. } | CatalogueOp::Delete { .. } | CatalogueOp::Copy { .. } => Ok(()),
        }
    }
}
