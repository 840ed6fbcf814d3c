//! Validates the contents of checkpoint and log before they are applied: a correct checksum does not imply
//! valid contents.
//!
//! The format crate validates each structure in isolation. This module checks the conditions that depend on
//! the catalogue: whether a disk exists, and whether it has the blocks that an entry names. A structure that
//! fails here is reported like a structure that cannot be decoded.

use forebay_format::{
    CatalogueOp, DiskId, DiskRecord, Entry, FormatError, Mark, Role, SegmentId, Superblock,
};
use forebay_store::ObjectStat;

use crate::catalogue::Catalogue;
use crate::disk::blocks;
use crate::limits::{MAX_COUNT, MAX_DISK_BYTES, MAX_ID};
use crate::tables::Contents;
use crate::{Error, Result};

fn invalid(what: &'static str, field: &'static str) -> Result<()> {
    Err(Error::Format(FormatError::Value { what, field }))
}

/// Whether a disk can have this size.
fn check_size(what: &'static str, size: u64) -> Result<()> {
    if size == 0 || size > MAX_DISK_BYTES { invalid(what, "size_bytes") } else { Ok(()) }
}

/// Validates the counters that only increase: the next values must exist.
///
/// # Errors
/// [`Error::Format`] if one is higher than any pool can reach.
pub(super) fn check_superblock(superblock: &Superblock) -> Result<()> {
    match superblock {
        Superblock { generation, .. } if *generation > MAX_COUNT => invalid("superblock", "generation"),
        Superblock { epoch, .. } if *epoch > MAX_COUNT => invalid("superblock", "epoch"),
        Superblock { seq, .. } if *seq > MAX_COUNT => invalid("superblock", "seq"),
        _ => Ok(()),
    }
}

/// Works like [`check_superblock`], for ids of disks and segments.
///
/// # Errors
/// As there.
pub(super) fn check_ids(checkpoint: &Contents, objects: &[ObjectStat]) -> Result<()> {
    if checkpoint.next_disk > MAX_ID {
        invalid("checkpoint", "next_disk")
    } else if SegmentId(checkpoint.next_segment).is_of_image() {
        invalid("checkpoint", "next_segment")
    } else if objects.iter().any(|o| o.id.is_of_image()) {
        invalid("store", "number of an object")
    } else {
        Ok(())
    }
}

/// Validates the record of a disk in isolation.
///
/// # Errors
/// [`Error::Format`] if no release creates such a disk.
pub(super) fn check_record(record: &DiskRecord) -> Result<()> {
    if record.id.0 >= MAX_ID {
        return invalid("disk record", "id");
    }
    check_mark("disk record", record.role, record.mark)?;
    check_size("disk record", record.size)
}

/// Whether a disk of this role can have this mark: only volumes have clients that write.
fn check_mark(what: &'static str, role: Role, mark: Mark) -> Result<()> {
    match mark {
        Mark::Lost { since_ms, .. } if since_ms > MAX_COUNT => invalid(what, "lost_ms"),
        Mark::Local | Mark::Remote | Mark::Lost { .. } if role != Role::Volume => invalid(what, "mark"),
        _ => Ok(()),
    }
}

/// Validates entries against a catalogue.
pub(super) struct EntryValidator<'a>(pub &'a Catalogue);

impl EntryValidator<'_> {
    /// Validates an entry of the log that is to be applied next. A write to a deleted disk is valid and has
    /// no effect.
    ///
    /// # Errors
    /// [`Error::Format`] if it cannot be applied.
    pub(super) fn check_entry(&self, entry: &Entry) -> Result<()> {
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
        let Some(disk) = self.0.get(disk) else { return Ok(()) };
        let fits = block.checked_add(count).is_some_and(|end| end <= blocks(disk.size()));
        if fits { Ok(()) } else { invalid(what, field) }
    }

    fn check_op(&self, op: &CatalogueOp) -> Result<()> {
        const WHAT: &str = "catalogue change";
        match op {
            CatalogueOp::Create { disk, from } => {
                if self.0.get(disk.id).is_some() {
                    return invalid(WHAT, "disk");
                }
                // The disk gets the map of the source disk, and therefore needs the same size.
                let source = from.and_then(|from| self.0.get(from));
                if source.is_some_and(|source| blocks(source.size()) != blocks(disk.size)) {
                    return invalid(WHAT, "from");
                }
                check_record(disk)
            }
            CatalogueOp::Resize { size, .. } => check_size(WHAT, *size),
            CatalogueOp::CopyRange { disk, block, from, source_block, count } => {
                self.check_blocks("copied range", "block_index", *disk, *block, *count)?;
                self.check_blocks("copied range", "source_block", *from, *source_block, *count)
            }
            CatalogueOp::Mark { disk, mark } => {
                let role = self.0.get(*disk).map(|disk| disk.role());
                role.map_or(Ok(()), |role| check_mark(WHAT, role, *mark))
            }
            CatalogueOp::Attach { disk, .. } => {
                let role = self.0.get(*disk).map(|disk| disk.role());
                match role {
                    None | Some(Role::Image | Role::ClusterImage) => Ok(()),
                    Some(_) => invalid(WHAT, "disk"),
                }
            }
            CatalogueOp::Update { .. } | CatalogueOp::Delete { .. } | CatalogueOp::Copy { .. } => Ok(()),
        }
    }
}
