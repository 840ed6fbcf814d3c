//! What an administrator does to disks. One operation at a time; each is one group of the log, and has
//! happened, durably, when it returns.

use std::sync::Arc;

use forebay_format::{BLOCK, CatalogueOp, DiskId, DiskRecord, MAX_NAME, MapValue, Role, Stream, SyncMode};
use serde::Serialize;

use crate::catalogue::{check_name, check_size, shorten};
use crate::desktop::check_persistent;
use crate::limits::FULL_RETRY;
use crate::pool::Pool;
use crate::volume::{Exclusive, Volume};
use crate::{Disk, Error, Result};

/// What is known of a disk.
#[derive(Debug, Clone, Serialize)]
pub struct DiskInfo {
    /// Number.
    #[serde(skip)]
    pub id: DiskId,
    /// Name by which it is exported; of a snapshot, `volume@snapshot`.
    pub name: String,
    /// `volume`, `snapshot`, `image`.
    #[serde(skip)]
    pub role: Role,
    /// Size in bytes.
    pub size: u64,
    /// When writes are durable.
    #[serde(skip)]
    pub sync: SyncMode,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// Name of the snapshot or image it was cloned from, while that exists.
    pub origin: Option<String>,
    /// Snapshots of it.
    pub snapshots: usize,
    /// Clones of it.
    pub clones: usize,
    /// Open connections.
    pub clients: usize,
    /// Identity that guests see.
    #[serde(skip)]
    pub uuid: [u8; 16],
    /// RAM write cache of a desktop in bytes, else 0.
    pub write_cache: u64,
    /// It is a desktop that is reset when its guest leaves.
    pub reset_at_disconnect: bool,
    /// Only disks of the same domain share blocks that they wrote alike.
    pub dedup_domain: u32,
    /// It is known that a node of its block map cannot be read: what is below it reads as damaged, and the disk is not
    /// copied from.
    pub map_damaged: bool,
}

/// One clone to be made.
#[derive(Debug, Clone, Default)]
pub struct CloneRequest {
    /// Name of the new volume.
    pub name: String,
    /// Its durability.
    pub sync: SyncMode,
    /// RAM write cache of a desktop; 0 for an ordinary volume.
    pub write_cache: u64,
    /// A desktop is to be reset when its guest leaves.
    pub reset_at_disconnect: bool,
}

impl Pool {
    /// All disks but imports under way, by name.
    pub fn disks(&self) -> Vec<DiskInfo> {
        let visible: Vec<_> = {
            let catalogue = self.catalogue.read();
            catalogue.visible().cloned().collect()
        };
        let mut disks: Vec<_> = visible.iter().map(|d| self.info(d)).collect();
        // Counted in one pass: asking for each disk anew would be quadratic in their number.
        let mut dependants = std::collections::BTreeMap::<DiskId, (usize, usize)>::new();
        for record in visible.iter().map(|d| d.record()) {
            if let Some(parent) = record.parent {
                dependants.entry(parent).or_default().0 += 1;
            }
            if let Some(origin) = record.origin {
                dependants.entry(origin).or_default().1 += 1;
            }
        }
        for disk in &mut disks {
            (disk.snapshots, disk.clones) = dependants.get(&disk.id).copied().unwrap_or_default();
        }
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        disks
    }

    /// One disk: `NAME`, or `VOLUME@SNAPSHOT`.
    pub fn disk(&self, name: &str) -> Result<DiskInfo> {
        let disk = self.catalogue.read().find(name)?;
        let mut info = self.info(&disk);
        let catalogue = self.catalogue.read();
        info.snapshots = catalogue.snapshots(disk.id());
        info.clones = catalogue.clones(disk.id()).0;
        Ok(info)
    }

    /// What is known of a disk itself, without those that depend on it.
    fn info(&self, disk: &Volume) -> DiskInfo {
        let record = disk.record();
        let catalogue = self.catalogue.read();
        let origin = record.origin.and_then(|o| catalogue.get(o));
        DiskInfo {
            id: record.id,
            name: catalogue.export_name(disk),
            role: record.role,
            size: disk.size(),
            sync: record.sync,
            created_ms: record.created_ms,
            origin: origin.map(|o| catalogue.export_name(o)),
            snapshots: 0,
            clones: 0,
            clients: disk.clients(),
            uuid: record.uuid,
            write_cache: record.write_cache,
            reset_at_disconnect: record.reset_at_disconnect,
            dedup_domain: record.dedup_domain,
            map_damaged: disk.has_damaged_map(),
        }
    }

    /// Makes an empty volume. What it writes is shared with disks of the same `dedup_domain` alone.
    pub async fn create_volume(
        &self,
        name: &str,
        size: u64,
        sync: SyncMode,
        dedup_domain: u32,
    ) -> Result<DiskInfo> {
        check_name(name)?;
        check_size(size)?;
        let _admin = self.admin.lock().await;
        self.catalogue.read().check_free(name)?;
        let disk = DiskRecord { sync, dedup_domain, ..self.new_record(name, size, Role::Volume) };
        self.commit_ops(vec![CatalogueOp::Create { disk, from: None }]).await?;
        self.disk(name)
    }

    /// Makes clones of `source` (`IMAGE`, `VOLUME`, `VOLUME@SNAPSHOT`), all or none.
    pub async fn clone_disk(
        self: &Arc<Pool>,
        source: &str,
        clones: &[CloneRequest],
    ) -> Result<Vec<DiskInfo>> {
        let _admin = self.admin.lock().await;
        let from = self.catalogue.read().find(source)?;
        check_persistent(&from, source)?;
        from.check_map(source)?;
        let mut ops = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        for clone in clones {
            check_name(&clone.name)?;
            self.catalogue.read().check_free(&clone.name)?;
            if !names.insert(&clone.name) {
                return Err(Error::Exists(shorten(&clone.name)));
            }
            // A clone of a volume as it is now depends on nothing: the volume goes on changing.
            let origin = (from.role() != Role::Volume).then_some(from.id());
            if clone.write_cache > 0 && origin.is_none() {
                let (is, needs) = ("a volume", "an image or a snapshot, to which its desktops can be reset");
                return Err(Error::WrongKind { name: shorten(source), is, needs });
            }
            let disk = DiskRecord {
                sync: if clone.write_cache > 0 { SyncMode::Never } else { clone.sync },
                write_cache: clone.write_cache,
                reset_at_disconnect: clone.reset_at_disconnect,
                // They share what it holds already, so that another domain would hide nothing.
                dedup_domain: from.record().dedup_domain,
                origin,
                ..self.new_record(&clone.name, from.size(), Role::Volume)
            };
            ops.push(CatalogueOp::Create { disk, from: Some(from.id()) });
        }
        self.commit_ops(ops).await?;
        self.clones_may_start((!clones.is_empty()).then_some(from.id()));
        let made: Vec<_> = clones.iter().filter_map(|c| self.catalogue.read().find(&c.name).ok()).collect();
        Ok(made.iter().map(|d| self.info(d)).collect())
    }

    /// Makes a snapshot of a volume; it holds every write acknowledged before.
    pub async fn create_snapshot(&self, volume: &str, name: &str) -> Result<DiskInfo> {
        check_name(name)?;
        let _admin = self.admin.lock().await;
        let parent = self.find_volume(volume)?;
        check_persistent(&parent, volume)?;
        parent.check_map(volume)?;
        let full = format!("{volume}@{name}");
        self.catalogue.read().check_free(&full)?;
        let disk = DiskRecord {
            sync: parent.sync(),
            parent: Some(parent.id()),
            dedup_domain: parent.record().dedup_domain,
            ..self.new_record(name, parent.size(), Role::Snapshot)
        };
        self.commit_ops(vec![CatalogueOp::Create { disk, from: Some(parent.id()) }]).await?;
        self.disk(&full)
    }

    /// Makes an image of what a volume or snapshot holds, every write acknowledged before included.
    pub async fn create_image(&self, name: &str, source: &str) -> Result<DiskInfo> {
        check_name(name)?;
        let admin = self.admin.lock().await;
        let from = self.catalogue.read().find(source)?;
        check_persistent(&from, source)?;
        from.check_map(source)?;
        self.catalogue.read().check_free(name)?;
        let disk = DiskRecord {
            dedup_domain: from.record().dedup_domain,
            ..self.new_record(name, from.size(), Role::Image)
        };
        let id = disk.id;
        self.commit_ops(vec![CatalogueOp::Create { disk, from: Some(from.id()) }]).await?;
        self.reclaim_is_due();
        drop(admin);
        if let Some(image) = self.volume(id) {
            self.image_has_classes_of(&image, &from).await;
        }
        self.disk(name)
    }

    /// Sets a volume back to one of its snapshots. Refused while clients are connected.
    pub async fn rollback(&self, volume: &str, snapshot: &str) -> Result<()> {
        let _admin = self.admin.lock().await;
        let disk = self.find_volume(volume)?;
        let full = format!("{volume}@{snapshot}");
        let from = self.catalogue.read().find(&full)?;
        from.check_map(&full)?;
        let _alone = disk.exclude_clients(volume)?;
        self.copy_contents(vec![CatalogueOp::Copy { disk: disk.id(), from: from.id() }]).await
    }

    /// Sets a clone back to the image or snapshot it came from. Refused while clients are connected.
    pub async fn reset(self: &Arc<Pool>, volume: &str) -> Result<()> {
        self.reset_all(&[volume]).await
    }

    /// Resets many clones, all or none, as fast as one.
    pub async fn reset_all(self: &Arc<Pool>, volumes: &[&str]) -> Result<()> {
        let _admin = self.admin.lock().await;
        let (mut alone, mut ops, mut images) = (Vec::new(), Vec::new(), Vec::new());
        for name in volumes {
            let disk = self.find_volume(name)?;
            let Some(from) = disk.record().origin else {
                return Err(Error::WrongKind {
                    name: shorten(name),
                    is: "a volume of its own",
                    needs: "a clone of an image or a snapshot",
                });
            };
            if let Some(image) = self.volume(from)
                && !disk.is_desktop()
            {
                image.check_map(&self.catalogue.read().export_name(&image))?;
            }
            alone.push(disk.exclude_clients(name)?);
            ops.push(CatalogueOp::Copy { disk: disk.id(), from });
            images.push(from);
        }
        self.copy_contents(ops).await?;
        self.clones_may_start(images);
        Ok(())
    }

    /// Gives disks, which the caller has to itself, the contents of others.
    pub(crate) async fn copy_contents(&self, mut ops: Vec<CatalogueOp>) -> Result<()> {
        let disks = ops.iter().filter_map(|op| match op {
            CatalogueOp::Copy { disk, .. } => Some(*disk),
            _ => None,
        });
        let all_same = ops.iter().all(|op| match op {
            CatalogueOp::Copy { disk, from } => self.have_same_map(*disk, *from),
            _ => true,
        });
        ops.extend(self.forget_classes(&disks.collect()));
        self.commit_ops(ops).await?;
        if !all_same {
            self.reclaim_is_due();
        }
        Ok(())
    }

    /// Whether it is known that two disks have the same stored contents: one is a clone to which nothing was committed.
    fn have_same_map(&self, one: DiskId, other: DiskId) -> bool {
        let record = |disk| self.volume(disk).and_then(|v| v.tree.read().record());
        let one = record(one);
        one.is_some() && one == record(other)
    }

    /// Deletes a volume, an image, or `VOLUME@SNAPSHOT`; refused while it is in use or others depend on it.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let _admin = self.admin.lock().await;
        let disk = self.catalogue.read().find(name)?;
        self.delete_disk(&disk, name).await
    }

    async fn delete_disk(&self, disk: &Arc<Volume>, name: &str) -> Result<()> {
        let _alone: Exclusive = disk.exclude_clients(name)?;
        {
            let catalogue = self.catalogue.read();
            let snapshots = catalogue.snapshots(disk.id());
            if snapshots > 0 {
                return Err(Error::HasSnapshots { name: shorten(name), snapshots });
            }
            if let (clones, Some(example)) = catalogue.clones(disk.id()) {
                return Err(Error::HasClones { name: shorten(name), clones, example });
            }
        }
        self.commit_ops(self.deletion(disk)).await?;
        self.reclaim_is_due();
        Ok(())
    }

    /// Changes the size of a volume. Shrinking discards what lies beyond, and is refused while clients are
    /// connected.
    pub async fn resize(&self, volume: &str, size: u64) -> Result<()> {
        check_size(size)?;
        let _admin = self.admin.lock().await;
        let disk = self.find_volume(volume)?;
        check_persistent(&disk, volume)?;
        let _alone = if size < disk.size() { Some(disk.exclude_clients(volume)?) } else { None };
        self.zero_tail(&disk, size)?;
        self.commit_ops(vec![CatalogueOp::Resize { disk: disk.id(), size }]).await
    }

    /// Zeroes what lies behind the end of a disk in its last block, before the disk grows over it: a larger disk
    /// may have left it there. When a disk shrinks would be too early: the zeroes could outlive a crash that
    /// the new size does not.
    fn zero_tail(&self, disk: &Arc<Volume>, size: u64) -> Result<()> {
        let (block, end) = (disk.size() / BLOCK as u64, (disk.size() % BLOCK as u64) as usize);
        if size <= disk.size() || end == 0 {
            return Ok(());
        }
        self.change(disk, block..block + 1, |buffers, blocks| {
            buffers.change(blocks, |buffer| buffer.write(block, end..BLOCK, &[0; BLOCK][end..]))
        })
    }

    /// Begins an import: a disk that only this handle knows, and that a crash or `abandon_import` removes.
    pub async fn begin_import(
        self: &Arc<Pool>,
        name: &str,
        size: u64,
        dedup_domain: u32,
    ) -> Result<Arc<Disk>> {
        check_name(name)?;
        check_size(size)?;
        let _admin = self.admin.lock().await;
        self.catalogue.read().check_free(name)?;
        let disk = DiskRecord { dedup_domain, ..self.new_record(name, size, Role::Import) };
        let id = disk.id;
        self.commit_ops(vec![CatalogueOp::Create { disk, from: None }]).await?;
        let volume = self.volume(id).ok_or_else(|| Error::NotFound(shorten(name)))?;
        volume.attach(name)?;
        Ok(Arc::new(Disk::new(self.clone(), volume, name.to_owned())))
    }

    /// Makes an import an image, durably.
    pub async fn finish_import(&self, import: Arc<Disk>) -> Result<DiskInfo> {
        let _admin = self.admin.lock().await;
        let volume = self.import(&import)?;
        import.flush().await?;
        volume.check_map(&import.name())?;
        // The cleaner is to pack it, and does not touch a segment that is open.
        let ended = self.log.lock().await.end_segment(Stream::Data).await;
        self.latching(ended)?;
        let disk = DiskRecord { role: Role::Image, ..(*volume.record()).clone() };
        self.commit_ops(vec![CatalogueOp::Update { disk }]).await?;
        self.reclaim_is_due();
        self.learn(&volume);
        let name = import.name();
        drop(import);
        self.disk(&name)
    }

    /// Removes an import.
    pub async fn abandon_import(&self, import: Arc<Disk>) -> Result<()> {
        let _admin = self.admin.lock().await;
        let volume = self.import(&import)?;
        let name = import.name();
        drop(import);
        self.delete_disk(&volume, &name).await
    }

    /// Removes what imports left that a crash interrupted, before a client can begin others. Where there is no room for
    /// that, a task goes on trying: a full pool must open, or nothing could ever be deleted.
    pub(crate) async fn remove_imports(self: &Arc<Pool>) -> Result<()> {
        let left: Vec<_> = {
            let catalogue = self.catalogue.read();
            catalogue.iter().filter(|d| d.role() == Role::Import).map(|d| d.id()).collect()
        };
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!(imports = left.len(), "removing what interrupted imports left");
        match self.delete_imports(&left).await {
            Err(Error::NoSpace) => {
                tracing::warn!("no room to remove what interrupted imports left: trying again");
                let pool = self.clone();
                let retry = async move {
                    while matches!(pool.delete_imports(&left).await, Err(Error::NoSpace)) {
                        pool.host.sleep(FULL_RETRY).await;
                    }
                };
                self.host.spawn("imports", Box::pin(retry));
                Ok(())
            }
            other => other,
        }
    }

    async fn delete_imports(&self, imports: &[DiskId]) -> Result<()> {
        self.commit_ops(imports.iter().map(|disk| CatalogueOp::Delete { disk: *disk }).collect()).await?;
        self.reclaim_is_due();
        Ok(())
    }

    fn import(&self, handle: &Disk) -> Result<Arc<Volume>> {
        let volume = self.volume(handle.id()).filter(|v| v.role() == Role::Import);
        volume.ok_or_else(|| Error::NotFound(shorten(&handle.name())))
    }

    pub(crate) fn find_volume(&self, name: &str) -> Result<Arc<Volume>> {
        let disk = self.catalogue.read().find(name)?;
        let is = match disk.role() {
            Role::Volume => return Ok(disk),
            Role::Snapshot => "a snapshot",
            Role::Image => "an image",
            Role::Import | Role::Note => "not for use",
        };
        Err(Error::WrongKind { name: shorten(name), is, needs: "a volume" })
    }

    pub(crate) fn new_record(&self, name: &str, size: u64, role: Role) -> DiskRecord {
        debug_assert!(name.len() <= MAX_NAME);
        let mut uuid = [0; 16];
        self.host.random(&mut uuid);
        // RFC 9562, section 5.4: version 4, variant 10.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        DiskRecord {
            id: self.catalogue.write().take_id(),
            role,
            sync: SyncMode::Flush,
            name: name.to_owned(),
            size,
            created_ms: self.host.unix_ms(),
            parent: None,
            origin: None,
            write_cache: 0,
            uuid,
            height: 0,
            root: MapValue::Hole,
            dedup_domain: 0,
            reset_at_disconnect: false,
            map_damaged: false,
        }
    }
}
