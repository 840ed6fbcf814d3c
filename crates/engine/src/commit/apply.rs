//! Applies batches of the log to maps and catalogue. The commit and recovery both use this code, so a
//! recovered pool has the same state as the pool that crashed.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BlockRef, CatalogueOp, DiskId, DiskRecord, FormatError, MapValue, Mark, Role};

use crate::catalogue::Catalogue;
use crate::context::Context;
use crate::disk::{Disk, blocks};
use crate::map::{NeedNode, NodeCache, Tree};
use crate::read::{NodeReader, Reader, with_nodes};
use crate::stats::GuestStats;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, RwLock};
use crate::write_caches::WriteCaches;
use crate::{Error, Result};

/// A change to the block map of one disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// Maps one block to a stored block.
    Put { block: u64, target: BlockRef },
    /// Makes a range of blocks read as zeroes.
    Zero { block: u64, count: u64, allocated: bool },
}

impl Change {
    pub fn put(block: u64, target: BlockRef) -> Change {
        Change::Put { block, target }
    }

    pub fn zero(block: u64, count: u64, allocated: bool) -> Change {
        Change::Zero { block, count, allocated }
    }

    fn apply(&self, nodes: &NodeCache, tree: &mut Tree) -> std::result::Result<(), NeedNode> {
        match *self {
            Change::Put { block, target } => tree.set(nodes, block, MapValue::At(target)),
            Change::Zero { block, count, allocated } => {
                let value = if allocated { MapValue::Zero } else { MapValue::Hole };
                tree.fill(nodes, block, count, value)
            }
        }
    }
}

/// The disk whose map, or whose role, a change to the catalogue changes.
pub(super) fn changed_map(op: &CatalogueOp) -> Option<DiskId> {
    match op {
        CatalogueOp::Create { disk, .. } | CatalogueOp::Update { disk } => Some(disk.id),
        CatalogueOp::Copy { disk, .. }
        | CatalogueOp::Resize { disk, .. }
        | CatalogueOp::CopyRange { disk, .. }
        | CatalogueOp::Attach { disk, .. } => Some(*disk),
        CatalogueOp::Delete { .. } | CatalogueOp::Mark { .. } => None,
    }
}

/// Changes applied while the tree is locked once: some tens of microseconds.
const CHANGES_AT_A_TIME: usize = 128;

/// Applies batches to maps and catalogue.
pub(crate) struct Applier {
    pub(super) reader: Arc<Reader>,
    pub catalogue: Arc<RwLock<Catalogue>>,
    caches: Arc<WriteCaches>,
    /// Bytes appended to the log. Changes that are costly for recovery to apply again are added, so that the
    /// next checkpoint is made earlier.
    pub(super) appended: Arc<AtomicU64>,
    /// Operations of guests on disks that have since been deleted.
    pub retired: Mutex<GuestStats>,
}

impl Applier {
    /// Returns an applier for the disks of `catalogue`.
    pub fn new(
        reader: Arc<Reader>,
        catalogue: Arc<RwLock<Catalogue>>,
        caches: Arc<WriteCaches>,
        appended: Arc<AtomicU64>,
    ) -> Applier {
        Applier { reader, catalogue, caches, appended, retired: Mutex::default() }
    }

    /// The context of the pool.
    pub fn context(&self) -> &Context {
        self.reader.context()
    }

    pub(super) fn nodes(&self) -> &NodeReader {
        &self.reader.nodes
    }

    /// Returns the disk with this number.
    pub fn disk(&self, id: DiskId) -> Option<Arc<Disk>> {
        self.catalogue.read().get(id).cloned()
    }

    /// Marks the destinations of copies among `ops` as changing, and notes which snapshots are made. Called
    /// while the freeze gate is closed.
    pub fn begin_copies<'a>(&self, ops: impl Iterator<Item = &'a CatalogueOp> + Clone) {
        for op in ops.clone() {
            if let CatalogueOp::Create { disk, from: Some(from) } = op
                && disk.role == Role::Snapshot
                && let Some(volume) = self.disk(*from)
            {
                volume.occupied.begin_snapshot();
            }
        }
        self.each_copy(ops, |disk, blocks| disk.buffers.lock().begin_copy(blocks));
    }

    /// Ends [`Applier::begin_copies`]: the copies were applied or abandoned.
    pub fn end_copies<'a>(&self, ops: impl Iterator<Item = &'a CatalogueOp>) {
        self.each_copy(ops, |disk, blocks| disk.buffers.lock().end_copy(&blocks));
    }

    fn each_copy<'a>(&self, ops: impl Iterator<Item = &'a CatalogueOp>, each: impl Fn(&Disk, Range<u64>)) {
        for op in ops {
            if let CatalogueOp::CopyRange { disk, block, count, .. } = *op
                && let Some(disk) = self.disk(disk)
            {
                each(&disk, block..block + count);
            }
        }
    }

    /// Applies changes to the block map of a disk, in order.
    ///
    /// # Errors
    /// A map node that a change needs could not be loaded, for a reason other than damage. This change and
    /// the later changes were not applied. See [`crate::read::damage`].
    pub async fn apply_changes(&self, disk: &Disk, changes: &[Change]) -> Result<()> {
        for some in changes.chunks(CHANGES_AT_A_TIME) {
            let mut remaining = some.iter();
            let apply = || {
                let mut tree = disk.tree.write();
                while let Some(change) = remaining.as_slice().first() {
                    change.apply(&self.nodes().cache, &mut tree)?;
                    remaining.next();
                }
                Ok(())
            };
            with_nodes(apply, |need| Box::pin(self.load_or_stand_in(disk, need))).await?;
        }
        Ok(())
    }

    /// Loads a map node that a change to the map of a disk needs. If the node is unreadable, replaces it by a
    /// stand-in and sets the disk's damage flag.
    async fn load_or_stand_in(&self, disk: &Disk, need: NeedNode) -> Result<()> {
        self.nodes()
            .load_or_stand_in(need, |need, why| {
                let replaced = disk.tree.write().stand_in(&self.nodes().cache, need)?;
                if replaced {
                    disk.record_map_damage(why);
                }
                Ok(replaced)
            })
            .await
    }

    /// Applies one change to the catalogue.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Format`] if the change is invalid, now as in recovery. Any other
    /// error: the change was not made although it is in the log, so the pool must stop.
    pub async fn apply_op(&self, op: &CatalogueOp) -> Result<()> {
        match op {
            CatalogueOp::Create { disk, from } => self.create(disk, *from)?,
            CatalogueOp::Delete { disk: id } => {
                let removed = self.catalogue.write().remove(*id);
                if let Some(disk) = removed {
                    self.caches.forget(&disk);
                    disk.occupied.assign(None);
                    if disk.role().is_visible() {
                        *self.retired.lock() += disk.guest.get();
                    }
                }
            }
            CatalogueOp::Copy { disk: id, from } => {
                let (disk, source) = (self.referenced_disk(*id)?, self.referenced_disk(*from)?);
                let tree = source.tree.read().clone();
                let record = DiskRecord { size: source.size(), ..(*disk.record()).clone() };
                self.caches.forget(&disk);
                *disk.tree.write() = tree;
                disk.occupied.free(0..u64::MAX);
                disk.inherit_map_damage(&source);
                disk.classes.inherit(&source.classes);
                disk.set_record(record);
                disk.count_replacement();
                // The new contents of the disk are durable, so its mark for the writes of its clients is no
                // longer needed.
                if matches!(disk.record().mark, Mark::Local | Mark::Remote) {
                    disk.set_mark(Mark::None);
                }
                disk.reset_done();
            }
            CatalogueOp::Resize { disk: id, size } => {
                let disk = self.referenced_disk(*id)?;
                let resize = || disk.tree.write().resize(&self.nodes().cache, blocks(*size));
                with_nodes(resize, |need| Box::pin(self.load_or_stand_in(&disk, need))).await?;
                disk.occupied.free(blocks(*size)..u64::MAX);
                if *size < disk.size() {
                    disk.count_replacement();
                }
                disk.set_record(DiskRecord { size: *size, ..(*disk.record()).clone() });
            }
            CatalogueOp::Update { disk: record } => {
                let disk = self.referenced_disk(record.id)?;
                let before = disk.record();
                let record = DiskRecord { size: disk.size(), mark: before.mark, ..record.clone() };
                if record.origin != before.origin {
                    // With the same change, the disk has got the contents of its new origin.
                    disk.used.rebase();
                }
                self.catalogue.write().update(&disk, record);
            }
            CatalogueOp::CopyRange { disk: id, block, from, source_block, count } => {
                let (disk, source) = (self.referenced_disk(*id)?, self.referenced_disk(*from)?);
                self.copy_range(&disk, *block, &source, *source_block, *count).await?;
            }
            CatalogueOp::Mark { disk: id, mark } => {
                if let Some(disk) = self.disk(*id) {
                    disk.set_mark(*mark);
                }
            }
            CatalogueOp::Attach { disk: id, root } => {
                let disk = self.referenced_disk(*id)?;
                *disk.tree.write() = Tree::stored_at(*root, blocks(disk.size()));
            }
        }
        Ok(())
    }

    /// Creates a disk, with the contents of another one if that is given.
    fn create(&self, record: &DiskRecord, from: Option<DiskId>) -> Result<()> {
        let source = from.map(|from| self.referenced_disk(from)).transpose()?;
        let tree = match &source {
            Some(source) => source.tree.read().clone(),
            None => Tree::new(blocks(record.size)),
        };
        let mut made = Disk::new(record.clone(), tree, self.reader.context().retained.clone());
        if from.is_none() || record.origin == from {
            // The disk is empty, or shares all blocks with its origin, so it uses no space.
            made.used.set(0);
        }
        if let Some(source) = source {
            if record.role == Role::Snapshot
                && let Some(kept) = source.occupied.newest()
            {
                made.occupied = kept;
            }
            made.inherit_map_damage(&source);
            made.classes.inherit(&source.classes);
        }
        self.catalogue.write().insert(Arc::new(made));
        Ok(())
    }

    /// A disk to which the log refers.
    fn referenced_disk(&self, id: DiskId) -> Result<Arc<Disk>> {
        self.disk(id).ok_or(Error::Format(FormatError::Value { what: "entry", field: "disk" }))
    }
}
