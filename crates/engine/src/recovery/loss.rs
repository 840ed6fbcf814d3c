//! Determines which flushed writes are lost because damage to the log has made them unreachable.

use std::collections::BTreeMap;

use forebay_format::{CatalogueOp, DiskId, Entry, GROUP_END, Role, SegmentId};

use super::history::LostHistory;
use crate::Result;
use crate::catalogue::Catalogue;
use crate::disk::Disk;
use crate::log::describe;
use crate::log_damage::{DamagedPlace, DiskLoss, LogDamage};

/// Measures the loss. `missing` are absent segments that may have held the first missing batch.
pub(super) fn measure_loss(
    catalogue: &Catalogue,
    lost: &LostHistory,
    missing: &[SegmentId],
) -> Result<LogDamage> {
    let place =
        |segment: SegmentId, offset, what| DamagedPlace { segment: segment.to_string(), offset, what };
    let headers = lost.headers.iter().map(|s| place(*s, 0, "the segment header is damaged"));
    let gaps = lost.gaps.iter().map(|g| {
        let what = if g.unreadable { "it cannot be read" } else { "a batch is damaged" };
        place(g.segment, g.offset, what)
    });
    let mut places: Vec<_> = headers.chain(gaps).collect();
    if places.is_empty() {
        places.extend(missing.iter().map(|s| place(*s, 0, "the segment is missing")));
    }
    let mut count = LossCounter::of(catalogue);
    for batch in &lost.behind {
        for entry in batch.entries() {
            count.entry(&entry?);
        }
    }
    let last = lost.behind.last().map_or(lost.end, |b| b.header.seq);
    let whole = lost.behind.len() as u64;
    Ok(LogDamage {
        id: lost.first,
        intact_until: lost.end,
        places,
        missing_batches: (last - lost.end).saturating_sub(whole),
        lost_batches: whole,
        lost_groups: lost.behind.iter().filter(|b| b.header.flags & GROUP_END != 0).count() as u64,
        disks: count.disks.into_iter().map(|(id, loss)| count.names.name(id, loss)).collect(),
        catalogue: count.catalogue,
    })
}

/// Counts the changes of batches to each disk.
struct LossCounter {
    names: Names,
    disks: BTreeMap<DiskId, (u64, u64)>,
    catalogue: Vec<String>,
}

struct Names(BTreeMap<DiskId, String>);

impl Names {
    fn name(&self, id: DiskId, (written_blocks, zeroed_blocks): (u64, u64)) -> DiskLoss {
        let name = self.0.get(&id).cloned().unwrap_or_else(|| format!("disk number {}", id.0));
        DiskLoss { name, written_blocks, zeroed_blocks }
    }
}

/// Adds without overflow: a damaged pool may contain any count.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

impl LossCounter {
    /// Makes a counter. A disk has its name in the catalogue before the damage, or the name with which it was
    /// created after the damage.
    fn of(catalogue: &Catalogue) -> LossCounter {
        let name = |d: &Disk| match d.role() {
            Role::Metadata => format!("{} (metadata)", catalogue.export_name(d)),
            _ => catalogue.export_name(d),
        };
        let names = Names(catalogue.iter().map(|d| (d.id(), name(d))).collect());
        LossCounter { names, disks: BTreeMap::new(), catalogue: Vec::new() }
    }

    fn entry(&mut self, entry: &Entry) {
        match entry {
            Entry::Put { disk, .. } | Entry::Reference { disk, .. } => self.loss(*disk).0 += 1,
            Entry::Zero { disk, count, .. } => add(&mut self.loss(*disk).1, *count),
            Entry::Catalogue(CatalogueOp::CopyRange { disk, count, .. }) => {
                add(&mut self.loss(*disk).0, *count);
            }
            Entry::Catalogue(op) => {
                if let CatalogueOp::Create { disk, .. } = op {
                    self.names.0.insert(disk.id, disk.name.clone());
                }
                self.catalogue.push(describe(op));
            }
            Entry::Node { .. } | Entry::Blob { .. } | Entry::Relocate { .. } => {}
        }
    }

    fn loss(&mut self, disk: DiskId) -> &mut (u64, u64) {
        self.disks.entry(disk).or_default()
    }
}
