//! Damage in the log that loses flushed writes: saying what it loses, and opening the pool without them if its
//! administrator accepts that.
//!
//! [`crate::history`] tells damage from an end. A damaged log is not opened: what cannot be reached may be restored with
//! the segment from a backup. An administrator who has none accepts the loss by the number of the first batch that is
//! missing, which the report gives: so nothing is accepted that was not seen. The pool is then at the last group in
//! front of the damage, and a checkpoint of that is made, which both superblock copies name. With it all segments of the
//! time before are sealed and not scanned again, so nothing of what was given up can come back. A stop in between leaves
//! either the damage as it was, or history in front of it with a batch of a higher epoch behind, to which the rest does
//! not belong.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId, Entry, GROUP_END, Role, SegmentId};
use forebay_store::{Metered, Store};
use serde::Serialize;

use crate::catalogue::shorten;
use crate::history::Lost;
use crate::inspect::describe;
use crate::pool::Pool;
use crate::recovery::{Mode, OnLoss};
use crate::{Error, Host, PoolConfig, Result};

/// Damage in the log behind which flushed writes are.
#[derive(Debug, Clone, Serialize)]
pub struct LogDamage {
    /// Identifies the damage: sequence number of the first batch that is missing.
    pub id: u64,
    /// Last batch in front of the damage that the pool can be opened with.
    pub intact_until: u64,
    /// Where the first missing batch was, as far as that can be told.
    pub places: Vec<DamagedPlace>,
    /// Batches that are damaged or gone, at least.
    pub missing_batches: u64,
    /// Batches that are whole, and cannot be reached.
    pub lost_batches: u64,
    /// Groups (commits) that end among these.
    pub lost_groups: u64,
    /// What the whole ones wrote to each disk. The missing ones come on top.
    pub disks: Vec<DiskLoss>,
    /// Changes to the catalogue among them.
    pub catalogue: Vec<String>,
}

/// A place in a segment.
#[derive(Debug, Clone, Serialize)]
pub struct DamagedPlace {
    /// Number, as the file is named.
    pub segment: String,
    /// Bytes from its start.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

/// Flushed writes to one disk that cannot be reached.
#[derive(Debug, Clone, Serialize)]
pub struct DiskLoss {
    /// Its export name.
    pub name: String,
    /// Blocks of 4 KiB that were written, each time counted.
    pub written_blocks: u64,
    /// Blocks of 4 KiB that were zeroed or discarded.
    pub zeroed_blocks: u64,
}

/// What [`recover_log`] found and did.
#[derive(Debug, Clone, Serialize)]
pub struct LossReport {
    /// The damage; none where history can be followed to its end.
    pub damage: Option<LogDamage>,
    /// Its loss was accepted: the pool opens, as it was in front of the damage.
    pub accepted: bool,
}

/// Names that the one-line message lists at most.
const NAMES: usize = 4;

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log is damaged")?;
        match self.places.first() {
            Some(at) => write!(f, " at segment {}, offset {} ({})", at.segment, at.offset, at.what)?,
            None => write!(f, ": batch {} is missing", self.id)?,
        }
        match self.lost_groups {
            0 => write!(f, "; flushed writes may have been there")?,
            groups => write!(f, "; {groups} commits of flushed writes behind it cannot be reached")?,
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

impl LogDamage {
    /// What was lost. `missing` are segments that are not there and may have held it.
    pub(crate) fn new(pool: &Pool, lost: &Lost, missing: &[SegmentId]) -> Result<LogDamage> {
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
        let mut count = Counting::of(pool);
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
}

/// Counts what batches did to each disk.
struct Counting {
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

/// A damaged pool may claim any count.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

impl Counting {
    /// Disks have the names that the pool knows in front of the damage; or those with which they were made behind it.
    fn of(pool: &Pool) -> Counting {
        let catalogue = pool.catalogue.read();
        let name = |d: &crate::volume::Volume| match d.role() {
            Role::Note => format!("{} (metadata)", catalogue.export_name(d)),
            _ => catalogue.export_name(d),
        };
        let names = Names(catalogue.iter().map(|d| (d.id(), name(d))).collect());
        Counting { names, disks: BTreeMap::new(), catalogue: Vec::new() }
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

/// Says whether the log of a pool that no server has open is damaged, and what that loses. `accept` is the
/// [`LogDamage::id`] of the damage of which the loss is accepted: the pool is then made to open without what is lost.
///
/// # Errors
/// [`Error::OtherLoss`] where `accept` does not name the damage that there is; those of opening a pool.
pub async fn recover_log(
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    accept: Option<u64>,
) -> Result<LossReport> {
    let clock = host.clone();
    let store = Arc::new(Metered::new(store, Arc::new(move || clock.now())));
    let config = PoolConfig { dedup_index: 0, ..PoolConfig::default() };
    let found =
        Pool::recover(store.clone(), host.clone(), config.clone(), Mode::Look, OnLoss::Report).await?;
    let Some(id) = accept else {
        return Ok(LossReport { damage: found.damage, accepted: false });
    };
    match &found.damage {
        Some(damage) if damage.id == id => {}
        Some(damage) => {
            return Err(Error::OtherLoss(format!("the damage is {}, and not {id}", damage.id)));
        }
        None => return Err(Error::OtherLoss("the log is not damaged: there is no loss to accept".into())),
    }
    drop(found);
    let opened = Pool::recover(store, host, config, Mode::Own, OnLoss::Accept(id)).await?;
    opened.pool.checkpoint_in_both_copies().await?;
    if let Some(damage) = &opened.damage {
        tracing::warn!(id, until = damage.intact_until, "the loss of flushed writes was accepted: {damage}");
    }
    Ok(LossReport { damage: opened.damage, accepted: true })
}
