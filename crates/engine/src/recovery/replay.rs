//! Applies the batches of history.

use forebay_format::{Address, BlockRef, CatalogueOp, DiskId, Entry, SegmentId, SegmentRecord, SegmentState};

use super::plausible::EntryValidator;
use crate::commit::{Applier, Change};
use crate::log::{Scanned, SegmentTable};
use crate::{Broken, Result};

/// Applies batches in order. Returns the disks whose contents were replaced, each with the number of the
/// batch that replaced them.
pub(super) async fn replay(
    applier: &Applier,
    batches: &[Scanned],
    mutation: Broken,
) -> Result<Vec<(DiskId, u64)>> {
    let mut replaced = Vec::new();
    let mut pending = Pending::default();
    for batch in batches {
        for entry in batch.entries() {
            let entry = entry?;
            EntryValidator(&applier.catalogue.read()).check_entry(&entry)?;
            if mutation.skips(&entry) {
                continue;
            }
            match entry {
                Entry::Put { disk, block, slot, form, crc, .. } => {
                    let addr = Address { segment: batch.header.segment, slot };
                    pending.add(applier, disk, Change::put(block, BlockRef { addr, form, crc })).await?;
                }
                Entry::Reference { disk, block, target } => {
                    pending.add(applier, disk, Change::put(block, target)).await?;
                }
                Entry::Zero { disk, block, count, allocated } => {
                    pending.add(applier, disk, Change::zero(block, count, allocated)).await?;
                }
                Entry::Catalogue(op) => {
                    if let CatalogueOp::Copy { disk, .. } = op {
                        replaced.push((disk, batch.header.seq));
                    }
                    pending.apply(applier).await?;
                    applier.apply_op(&op).await?;
                }
                Entry::Node { .. } | Entry::Blob { .. } | Entry::Relocate { .. } => {}
            }
        }
    }
    pending.apply(applier).await?;
    Ok(replaced)
}

/// Changes to one disk, which are applied together.
#[derive(Default)]
struct Pending {
    disk: DiskId,
    changes: Vec<Change>,
}

impl Pending {
    async fn add(&mut self, applier: &Applier, disk: DiskId, change: Change) -> Result<()> {
        if disk != self.disk {
            self.apply(applier).await?;
            self.disk = disk;
        }
        self.changes.push(change);
        Ok(())
    }

    /// Applies the changes as a commit does. Damage to the map affects only the blocks below it; any other
    /// error makes the opening of the pool fail.
    async fn apply(&mut self, applier: &Applier) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        match applier.disk(self.disk) {
            Some(disk) => applier.apply_changes(&disk, &changes).await,
            None => Ok(()),
        }
    }
}

/// Updates the segment table from history. All segments become sealed: none of them is appended to again.
pub(super) fn record_segments(table: &mut SegmentTable, applied: &[Scanned]) -> Result<()> {
    let open = table.iter().filter(|r| r.state == SegmentState::Open).map(|r| r.segment);
    let open: Vec<SegmentId> = open.collect();
    open.into_iter().for_each(|id| table.change(id, |r| r.state = SegmentState::Sealed));
    for batch in applied {
        let segment = batch.header.segment;
        // All batches of history are in segments with an intact header.
        let Some(stream) = batch.stream else { continue };
        let new = SegmentRecord {
            segment,
            stream,
            state: SegmentState::Sealed,
            footer: false,
            container: segment.0,
            written: 0,
            first_seq: batch.header.seq,
            last_seq: 0,
            map: None,
        };
        let record = table.get(segment).copied().unwrap_or(new);
        let (written, last_seq) = (batch.end as u32, batch.header.seq);
        table.insert(SegmentRecord { written, last_seq, ..record });
        for entry in batch.entries() {
            if let Entry::Relocate { segment: moved, slot, len } = entry? {
                let map = Some((slot.offset() as u32, len));
                table.change(moved, |r| (r.container, r.map) = (segment.0, map));
            }
        }
    }
    Ok(())
}
