//! What a batch of the log does to maps and catalogue. The commit and recovery both go through here, so a
//! pool that was recovered is the pool that crashed.

use std::sync::Arc;

use forebay_format::{BlockRef, CatalogueOp, DiskId, DiskRecord, FormatError, MapValue};

use crate::map::{NeedNode, Tree};
use crate::pool::Pool;
use crate::volume::{Volume, blocks};
use crate::{Error, Result};

/// A change to the block map of one disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// One block.
    Put { block: u64, target: BlockRef },
    /// A range that reads as zeroes.
    Zero { block: u64, count: u64, allocated: bool },
}

impl Change {
    pub fn put(block: u64, target: BlockRef) -> Change {
        Change::Put { block, target }
    }

    pub fn zero(block: u64, count: u64, allocated: bool) -> Change {
        Change::Zero { block, count, allocated }
    }

    fn apply(&self, pool: &Pool, tree: &mut Tree) -> std::result::Result<(), NeedNode> {
        match *self {
            Change::Put { block, target } => tree.set(&pool.nodes, block, MapValue::At(target)),
            Change::Zero { block, count, allocated } => {
                let value = if allocated { MapValue::Zero } else { MapValue::Hole };
                tree.fill(&pool.nodes, block, count, value)
            }
        }
    }
}

/// Changes made under one lock of the tree: some tens of microseconds.
const CHANGES_AT_A_TIME: usize = 128;

impl Pool {
    /// Makes changes to the block map of a disk, in order.
    ///
    /// # Errors
    /// Not all are made: see [`crate::damage`].
    pub(crate) async fn apply_changes(&self, volume: &Volume, changes: &[Change]) -> Result<()> {
        let mut done = 0;
        while done < changes.len() {
            let until = (done + CHANGES_AT_A_TIME).min(changes.len());
            let need = {
                let mut tree = volume.tree.write();
                let mut need = None;
                while done < until && need.is_none() {
                    match changes[done].apply(self, &mut tree) {
                        Ok(()) => done += 1,
                        Err(node) => need = Some(node),
                    }
                }
                need
            };
            if let Some(node) = need {
                self.bring_for(volume, node).await?;
            }
        }
        Ok(())
    }

    /// Sees to a node that a change to the map of a disk needs.
    async fn bring_for(&self, volume: &Volume, need: NeedNode) -> Result<()> {
        self.bring(need, |need, why| {
            let stands = volume.tree.write().stand_in(&self.nodes, need)?;
            if stands {
                volume.note_map_damage(why);
            }
            Ok(stands)
        })
        .await
    }

    /// Makes one change to the catalogue.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Format`] where it can be made neither now nor in recovery. Any other: it is not
    /// made, and must be.
    pub(crate) async fn apply_op(&self, op: &CatalogueOp) -> Result<()> {
        match op {
            CatalogueOp::Create { disk, from } => {
                let source = from.map(|from| self.known(from)).transpose()?;
                let tree = match &source {
                    Some(source) => source.tree.read().clone(),
                    None => Tree::new(blocks(disk.size)),
                };
                let made = Arc::new(Volume::new(disk.clone(), tree));
                if let Some(source) = source {
                    made.inherit_map_damage(&source);
                    made.classes.inherit(&source.classes);
                }
                self.catalogue.write().insert(made);
            }
            CatalogueOp::Delete { disk } => {
                let gone = self.catalogue.write().remove(*disk);
                if let Some(gone) = gone {
                    self.forget_cached(&gone);
                    self.counters.retire(&gone.guest);
                }
            }
            CatalogueOp::Copy { disk, from } => {
                let (volume, source) = (self.known(*disk)?, self.known(*from)?);
                let tree = source.tree.read().clone();
                let record = DiskRecord { size: source.size(), ..(*volume.record()).clone() };
                self.forget_cached(&volume);
                *volume.tree.write() = tree;
                volume.inherit_map_damage(&source);
                volume.classes.inherit(&source.classes);
                volume.set_record(record);
                volume.reset_done();
            }
            CatalogueOp::Resize { disk, size } => {
                let volume = self.known(*disk)?;
                loop {
                    let resized = volume.tree.write().resize(&self.nodes, blocks(*size));
                    match resized {
                        Ok(()) => break,
                        Err(need) => self.bring_for(&volume, need).await?,
                    }
                }
                volume.set_record(DiskRecord { size: *size, ..(*volume.record()).clone() });
            }
            CatalogueOp::Update { disk } => {
                let volume = self.known(disk.id)?;
                volume.set_record(DiskRecord { size: volume.size(), ..disk.clone() });
                self.catalogue.write().renamed(disk.id);
            }
            CatalogueOp::CopyRange { disk, block, from, source_block, count } => {
                let (volume, source) = (self.known(*disk)?, self.known(*from)?);
                self.copy_range(&volume, *block, &source, *source_block, *count).await?;
            }
        }
        Ok(())
    }

    /// A disk that the log says exists.
    fn known(&self, id: DiskId) -> Result<Arc<Volume>> {
        self.volume(id).ok_or(Error::Format(FormatError::Value { what: "entry", field: "disk" }))
    }
}
