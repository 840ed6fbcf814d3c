//! The editor of the catalogue: changes that several administrative operations share.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId, DiskRecord, MAX_NAME, MapValue, Mark, Role, SyncMode};

use super::kind::DiskMetadata;
use crate::catalogue::{Catalogue, Relation, disk_by_id};
use crate::commit::Intake;
use crate::context::Context;
use crate::disk::Disk;
use crate::space::SpaceGovernor;
use crate::sync::RwLock;
use crate::text::shorten;
use crate::{Error, Result};

/// Makes changes to the catalogue, one administrative operation at a time.
pub(crate) struct CatalogueEditor {
    pub cx: Arc<Context>,
    pub intake: Arc<Intake>,
    pub space: Arc<SpaceGovernor>,
    pub catalogue: Arc<RwLock<Catalogue>>,
    /// Lock that is held for the duration of an administrative operation.
    pub lock: tokio::sync::Mutex<()>,
}

impl CatalogueEditor {
    pub fn new(
        cx: Arc<Context>,
        space: Arc<SpaceGovernor>,
        intake: Arc<Intake>,
        catalogue: Arc<RwLock<Catalogue>>,
    ) -> CatalogueEditor {
        CatalogueEditor { cx, space, intake, catalogue, lock: tokio::sync::Mutex::new(()) }
    }

    /// Replaces the contents of disks by those of other disks. The caller has exclusive use of the changed
    /// disks.
    pub(crate) async fn copy_contents(&self, mut ops: Vec<CatalogueOp>) -> Result<()> {
        let disks = ops.iter().filter_map(|op| match op {
            CatalogueOp::Copy { disk, .. } => Some(*disk),
            _ => None,
        });
        let all_same = ops.iter().all(|op| match op {
            CatalogueOp::Copy { disk, from } => self.have_same_map(*disk, *from),
            _ => true,
        });
        ops.extend(self.metadata_of(DiskMetadata::Classes, &disks.collect()));
        self.intake.commit_ops(ops).await?;
        if !all_same {
            self.space.reclaim_is_due();
        }
        Ok(())
    }

    /// Whether two disks are known to have the same stored contents, because nothing was committed to the
    /// clone.
    pub(crate) fn have_same_map(&self, one: DiskId, other: DiskId) -> bool {
        let record = |id| disk_by_id(&self.catalogue, id).and_then(|disk| disk.tree.read().record());
        let one = record(one);
        one.is_some() && one == record(other)
    }

    /// Returns the volume of this name.
    ///
    /// # Errors
    /// [`Error::NotFound`], and [`Error::WrongKind`] for any other disk.
    pub(crate) fn find_volume(&self, name: &str) -> Result<Arc<Disk>> {
        let disk = self.catalogue.read().find(name)?;
        let is = match disk.role() {
            Role::Volume => return Ok(disk),
            Role::Snapshot => "a snapshot",
            Role::Image => "an image",
            Role::Import | Role::Metadata | Role::ClusterImage => "an internal disk",
        };
        Err(Error::WrongKind { name: shorten(name), is, needs: "a volume" })
    }

    /// The record of a new disk, with a new id and a random UUID.
    pub(crate) fn new_record(&self, name: &str, size: u64, role: Role) -> DiskRecord {
        debug_assert!(name.len() <= MAX_NAME);
        let mut uuid = [0; 16];
        self.cx.host.random(&mut uuid);
        // RFC 9562, section 5.4: version 4, variant 10.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        DiskRecord {
            id: self.catalogue.write().take_id(),
            role,
            sync: SyncMode::Flush,
            name: name.to_owned(),
            size,
            created_ms: self.cx.host.unix_ms(),
            parent: None,
            origin: None,
            write_cache: 0,
            uuid,
            height: 0,
            root: MapValue::Hole,
            dedup_domain: 0,
            reset_at_disconnect: false,
            map_damaged: false,
            mark: Mark::None,
        }
    }

    /// The changes that remove one kind of metadata of some disks.
    pub(crate) fn metadata_of(&self, kind: DiskMetadata, disks: &BTreeSet<DiskId>) -> Vec<CatalogueOp> {
        let catalogue = self.catalogue.read();
        let metadata = disks.iter().flat_map(|id| catalogue.related(Some(*id), Relation::Metadata));
        let metadata = metadata.filter(|disk| kind.is(&disk.record()));
        metadata.map(|disk| CatalogueOp::Delete { disk: disk.id() }).collect()
    }

    /// The changes that delete a disk with its metadata.
    pub(crate) fn deletion(&self, disk: &Disk) -> Vec<CatalogueOp> {
        let catalogue = self.catalogue.read();
        let metadata = catalogue.related(Some(disk.id()), Relation::Metadata);
        let ids = metadata.map(|d| d.id()).chain([disk.id()]);
        ids.map(|disk| CatalogueOp::Delete { disk }).collect()
    }
}
