//! Administration of disks. One operation runs at a time. Each operation is one group of the log, and is
//! durable when it returns.

use std::sync::Arc;

use forebay_format::{BLOCK, CatalogueOp, DiskId, DiskRecord, Mark, Role, Stream, SyncMode};
use serde::Serialize;
use tokio::task::yield_now;

use super::limits::{DiskLimits, count_again, leave_tenant, limits_of};
use super::pool::Pool;
use crate::catalogue::{Relation, check_name, check_size, disk_by_id, snapshots_of};
use crate::disk::{Disk, Exclusive, check_persistent};
use crate::handle::{DiskHandle, is_write_through};
use crate::limits::{CLONES_OF_STRETCH, FULL_RETRY};
use crate::text::shorten;
use crate::{Client, DiskSpace, Error, Result};

/// A page of the result of a search for volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePage {
    /// Names of the volumes on this page that match.
    pub volumes: Vec<String>,
    /// Number of disks that were examined; 0 after the last disk of the pool.
    pub examined: usize,
    /// Name of the last disk that was examined.
    pub last: String,
}

/// A disk and its state.
#[derive(Debug, Clone, Serialize)]
pub struct DiskInfo {
    /// Id of the disk.
    #[serde(skip)]
    pub id: DiskId,
    /// Export name; for a snapshot, `volume@snapshot`.
    pub name: String,
    /// Role of the disk: `volume`, `snapshot`, `image`.
    #[serde(skip)]
    pub role: Role,
    /// Size of the disk in bytes.
    pub size: u64,
    /// When writes to the disk are durable.
    #[serde(skip)]
    pub sync: SyncMode,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// Name of the snapshot or image from which the disk was cloned, while it exists.
    pub origin: Option<String>,
    /// Number of snapshots of the disk.
    pub snapshots: usize,
    /// Number of clones of the disk.
    pub clones: usize,
    /// Number of open connections to the disk.
    pub clients: usize,
    /// Identity of the disk that guests see.
    #[serde(skip)]
    pub uuid: [u8; 16],
    /// Bytes of the RAM write cache of a desktop; otherwise 0.
    pub write_cache: u64,
    /// The disk is a desktop that is reset when its last client disconnects.
    pub reset_at_disconnect: bool,
    /// Deduplication domain: blocks are deduplicated only among disks of the same domain.
    pub dedup_domain: u32,
    /// A node of the disk's block map is known to be unreadable: reads of the blocks below the node fail, and
    /// the disk cannot be copied.
    pub map_damaged: bool,
    /// Answered writes are lost: clients that may have seen these answers are refused.
    pub memory_lost: bool,
    /// Bytes of data that it does not share with the image or snapshot from which it was cloned, or, for a
    /// snapshot, from which its volume was; before data reduction, some seconds old. `None` before the first
    /// count.
    pub used: Option<u64>,
    /// Its space on the store, as of the last mark.
    pub space: Option<DiskSpace>,
    /// Its limits and its tenant.
    #[serde(skip)]
    pub limits: DiskLimits,
}

/// A clone that is to be made.
#[derive(Debug, Clone, Default)]
pub struct CloneRequest {
    /// Name of the new volume.
    pub name: String,
    /// When writes to the new volume are durable.
    pub sync: SyncMode,
    /// Bytes of the RAM write cache of a desktop; 0 for an ordinary volume.
    pub write_cache: u64,
    /// The new volume is a desktop that is reset when its last client disconnects.
    pub reset_at_disconnect: bool,
}

impl Pool {
    /// All disks except imports under way, ordered by name.
    pub fn disks(&self) -> Vec<DiskInfo> {
        let visible: Vec<_> = {
            let catalogue = self.components.catalogue.read();
            catalogue.visible().cloned().collect()
        };
        let mut disks: Vec<_> = visible.iter().map(|d| self.info(d)).collect();
        // Counted in one pass: separate counts for each disk would take time quadratic in the number of
        // disks.
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

    /// Describes one disk: `NAME`, or `VOLUME@SNAPSHOT`.
    pub fn disk(&self, name: &str) -> Result<DiskInfo> {
        let disk = self.components.catalogue.read().find(name)?;
        let mut info = self.info(&disk);
        let catalogue = self.components.catalogue.read();
        info.snapshots = catalogue.snapshots(disk.id());
        info.clones = catalogue.clones(disk.id()).0;
        Ok(info)
    }

    /// Works like [`Pool::disk`], without the numbers of its snapshots and clones: its cost does not depend
    /// on the number of disks.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn disk_in_brief(&self, name: &str) -> Result<DiskInfo> {
        let disk = self.components.catalogue.read().find(name)?;
        Ok(self.info(&disk))
    }

    /// The disks whose names follow `name`, which need not exist, ordered by name: at most `most`, without
    /// the numbers of their snapshots and clones. So a list of all disks can be made in pages, with pauses
    /// for the other tasks of a thread.
    pub fn disks_after(&self, name: &str, most: usize) -> Vec<DiskInfo> {
        let page: Vec<_> = {
            let catalogue = self.components.catalogue.read();
            catalogue.after(name).take(most).map(|(name, d)| (name.clone(), d.clone())).collect()
        };
        // A disk that is being deleted may have another name now, which is not in the order.
        page.into_iter().map(|(name, d)| DiskInfo { name, ..self.info(&d) }).collect()
    }

    /// The names of disks that follow `name` in the order of names, at most `most`. No disk needs to have the
    /// name `name`.
    pub fn names_after(&self, name: &str, most: usize) -> Vec<String> {
        let catalogue = self.components.catalogue.read();
        catalogue.after(name).take(most).map(|(name, _)| name.clone()).collect()
    }

    /// Sets the numbers of snapshots and clones of these disks. The cost depends on these numbers, not on the
    /// number of all disks.
    pub fn count_dependants(&self, disks: &mut [DiskInfo]) {
        let catalogue = self.components.catalogue.read();
        for disk in disks {
            let count = |how| catalogue.related(Some(disk.id), how).filter(|d| d.role().is_visible()).count();
            (disk.snapshots, disk.clones) = (count(Relation::Snapshot), count(Relation::Clone));
        }
    }

    /// Examines at most `most` disks whose names follow `name`, at a small cost for each. Returns the volumes
    /// for whose names `is_meant` is true.
    pub fn volumes_after(&self, name: &str, most: usize, is_meant: impl Fn(&str) -> bool) -> VolumePage {
        let catalogue = self.components.catalogue.read();
        let (mut volumes, mut examined, mut last) = (Vec::new(), 0, "");
        for (name, disk) in catalogue.after(name).take(most) {
            if disk.role() == Role::Volume && is_meant(name) {
                volumes.push(name.clone());
            }
            (examined, last) = (examined + 1, name.as_str());
        }
        VolumePage { volumes, examined, last: last.to_owned() }
    }

    /// UUID and size of a disk. Unlike [`Pool::disk`], its cost does not depend on the number of disks.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn identity(&self, name: &str) -> Result<([u8; 16], u64)> {
        let disk = self.components.catalogue.read().find(name)?;
        Ok((disk.record().uuid, disk.size()))
    }

    /// Whether writes of these clients to a disk are durable when they are acknowledged.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn is_write_through(&self, name: &str, client: Client) -> Result<bool> {
        let disk = self.components.catalogue.read().find(name)?;
        Ok(is_write_through(&disk, Some(client), &self.components.cx.config))
    }

    /// Describes a disk, with 0 as the numbers of its snapshots and clones. A caller that needs these numbers
    /// counts them.
    fn info(&self, disk: &Disk) -> DiskInfo {
        let record = disk.record();
        let catalogue = self.components.catalogue.read();
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
            memory_lost: matches!(record.mark, Mark::Lost { .. }),
            used: disk.used.get().map(|blocks| blocks * BLOCK as u64),
            space: self.components.reclaimer.disk_space(disk.id()),
            limits: limits_of(disk),
        }
    }

    /// Creates an empty volume. Its blocks are deduplicated only with disks of the same `dedup_domain`.
    pub async fn create_volume(
        &self,
        name: &str,
        size: u64,
        sync: SyncMode,
        dedup_domain: u32,
    ) -> Result<DiskInfo> {
        check_name(name)?;
        check_size(size)?;
        let _admin = self.components.editor.lock.lock().await;
        self.check_new(name)?;
        let disk =
            DiskRecord { sync, dedup_domain, ..self.components.editor.new_record(name, size, Role::Volume) };
        self.components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: None }]).await?;
        self.disk(name)
    }

    /// Checks that one more disk can be made, with this export name.
    fn check_new(&self, name: &str) -> Result<()> {
        self.check_count(1)?;
        self.components.catalogue.read().check_free(name)
    }

    /// Checks that the pool can have `more` further disks.
    pub(super) fn check_count(&self, more: usize) -> Result<()> {
        let most = self.components.cx.config.max_disks;
        match self.components.catalogue.read().named().saturating_add(more) > most {
            true => Err(Error::TooManyDisks { most }),
            false => Ok(()),
        }
    }

    /// Creates clones of `source` (`IMAGE`, `VOLUME`, `VOLUME@SNAPSHOT`): either all of them or none.
    pub async fn clone_disk(&self, source: &str, clones: &[CloneRequest]) -> Result<Vec<DiskInfo>> {
        let _admin = self.components.editor.lock.lock().await;
        let from = self.components.catalogue.read().find(source)?;
        self.make_clones(&from, source, clones).await
    }

    /// Works like [`Pool::clone_disk`], for a source that was found. The caller holds the lock of the editor.
    pub(super) async fn make_clones(
        &self,
        from: &Arc<Disk>,
        source: &str,
        clones: &[CloneRequest],
    ) -> Result<Vec<DiskInfo>> {
        check_persistent(from, source)?;
        from.check_map(source)?;
        self.check_count(clones.len())?;
        let mut ops = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        for (i, clone) in clones.iter().enumerate() {
            if i % CLONES_OF_STRETCH == CLONES_OF_STRETCH - 1 {
                yield_now().await;
            }
            check_name(&clone.name)?;
            self.components.catalogue.read().check_free(&clone.name)?;
            if !names.insert(&clone.name) {
                return Err(Error::Exists(shorten(&clone.name)));
            }
            // A clone of a volume's current contents does not depend on the volume, which continues to
            // change.
            let origin = (from.role() != Role::Volume).then_some(from.id());
            if clone.write_cache > 0 && origin.is_none() {
                let (is, needs) = ("a volume", "an image or a snapshot, to which desktops can be reset");
                return Err(Error::WrongKind { name: shorten(source), is, needs });
            }
            let disk = DiskRecord {
                sync: if clone.write_cache > 0 { SyncMode::Never } else { clone.sync },
                write_cache: clone.write_cache,
                reset_at_disconnect: clone.reset_at_disconnect,
                // The clone already shares blocks with its source, so a separate domain would not isolate it.
                dedup_domain: from.record().dedup_domain,
                origin,
                ..self.components.editor.new_record(&clone.name, from.size(), Role::Volume)
            };
            ops.push(CatalogueOp::Create { disk, from: Some(from.id()) });
        }
        self.components.intake.commit_ops(ops).await?;
        self.components.profiles.prefetch_images((!clones.is_empty()).then_some(from.id()));
        let mut made = Vec::with_capacity(clones.len());
        for stretch in clones.chunks(CLONES_OF_STRETCH) {
            let found = stretch.iter().filter_map(|c| self.components.catalogue.read().find(&c.name).ok());
            made.extend(found.map(|disk| self.info(&disk)));
            yield_now().await;
        }
        Ok(made)
    }

    /// Creates a snapshot of a volume, which includes all writes acknowledged before.
    pub async fn create_snapshot(&self, volume: &str, name: &str) -> Result<DiskInfo> {
        check_name(name)?;
        let _admin = self.components.editor.lock.lock().await;
        let parent = self.components.editor.find_volume(volume)?;
        check_persistent(&parent, volume)?;
        parent.check_map(volume)?;
        parent.occupied.check_snapshot()?;
        let full = format!("{volume}@{name}");
        self.check_new(&full)?;
        let disk = DiskRecord {
            sync: parent.sync(),
            parent: Some(parent.id()),
            dedup_domain: parent.record().dedup_domain,
            ..self.components.editor.new_record(name, parent.size(), Role::Snapshot)
        };
        let made = self
            .components
            .intake
            .commit_ops(vec![CatalogueOp::Create { disk, from: Some(parent.id()) }])
            .await;
        if made.is_err() {
            count_again(self, &parent);
        }
        made?;
        self.disk(&full)
    }

    /// Creates an image of the contents of a volume or snapshot, including all writes acknowledged before.
    pub async fn create_image(&self, name: &str, source: &str) -> Result<DiskInfo> {
        check_name(name)?;
        let admin = self.components.editor.lock.lock().await;
        let from = self.components.catalogue.read().find(source)?;
        check_persistent(&from, source)?;
        from.check_map(source)?;
        self.check_new(name)?;
        let disk = DiskRecord {
            dedup_domain: from.record().dedup_domain,
            ..self.components.editor.new_record(name, from.size(), Role::Image)
        };
        let id = disk.id;
        self.components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: Some(from.id()) }]).await?;
        self.components.space.reclaim_is_due();
        drop(admin);
        if let Some(image) = disk_by_id(&self.components.catalogue, id) {
            self.components.classes.give_to_image(&image, &from).await;
        }
        self.disk(name)
    }

    /// Rolls a volume back to one of its snapshots. Refused while clients are connected.
    pub async fn rollback(&self, volume: &str, snapshot: &str) -> Result<()> {
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.components.editor.find_volume(volume)?;
        let full = format!("{volume}@{snapshot}");
        let from = self.components.catalogue.read().find(&full)?;
        from.check_map(&full)?;
        let _exclusive = disk.exclude_clients(volume)?;
        self.components.marks.ensure_settled().await?;
        let unmark = CatalogueOp::Mark { disk: disk.id(), mark: Mark::None };
        let copy = CatalogueOp::Copy { disk: disk.id(), from: from.id() };
        self.components.editor.copy_contents(vec![copy, unmark]).await?;
        count_again(self, &disk);
        Ok(())
    }

    /// Admits all clients to a disk again whose answered writes were lost with the memory that held them. The
    /// administrator has stopped or restarted the clients that had these answers. Has no effect on another
    /// disk.
    pub async fn resume(&self, volume: &str) -> Result<DiskInfo> {
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.components.editor.find_volume(volume)?;
        self.components.marks.resume(&disk, volume).await?;
        self.disk(volume)
    }

    /// Resets a clone to the image or snapshot from which it was made. Refused while clients are connected.
    pub async fn reset(&self, volume: &str) -> Result<()> {
        self.reset_all(&[volume]).await
    }

    /// Resets several clones in one commit: either all of them or none.
    pub async fn reset_all(&self, volumes: &[&str]) -> Result<()> {
        self.reset_all_to(volumes, None).await
    }

    /// Works like [`Pool::reset_all`], to another image or snapshot if one is given: it is the origin of the
    /// clones from then on, and they have its size. Names, identities and limits of the clones stay.
    ///
    /// # Errors
    /// [`Error::HasSnapshots`] for a volume with snapshots, which belong to its origin; [`Error::WrongKind`]
    /// if the new origin is a volume, or is in another deduplication domain.
    pub async fn reset_all_to(&self, volumes: &[&str], to: Option<&str>) -> Result<()> {
        let _admin = self.components.editor.lock.lock().await;
        let to = to.map(|name| self.new_origin(name)).transpose()?;
        self.reset_to(volumes, to).await
    }

    /// Works like [`Pool::reset_all_to`], for an origin that was found. The caller holds the lock of the
    /// editor.
    pub(super) async fn reset_to(&self, volumes: &[&str], to: Option<Arc<Disk>>) -> Result<()> {
        let (mut exclusive, mut ops, mut images) = (Vec::new(), Vec::new(), Vec::new());
        let mut moved = Vec::new();
        for name in volumes {
            let disk = self.components.editor.find_volume(name)?;
            let Some(before) = disk.record().origin else {
                return Err(Error::WrongKind {
                    name: shorten(name),
                    is: "a volume without an origin",
                    needs: "a clone of an image or a snapshot",
                });
            };
            let from = to.as_ref().map_or(before, |to| to.id());
            if let Some(image) = disk_by_id(&self.components.catalogue, from)
                && (!disk.is_desktop() || from != before)
            {
                image.check_map(&self.components.catalogue.read().export_name(&image))?;
            }
            exclusive.push(disk.exclude_clients(name)?);
            ops.push(CatalogueOp::Copy { disk: disk.id(), from });
            // A reset by an administrator, unlike an automatic one, accepts the loss of writes.
            ops.push(CatalogueOp::Mark { disk: disk.id(), mark: Mark::None });
            images.push(from);
            if let Some(to) = to.as_ref().filter(|_| from != before) {
                self.check_origin(&disk, name, to)?;
                let record = DiskRecord { origin: Some(from), ..(*disk.record()).clone() };
                ops.push(CatalogueOp::Update { disk: record });
                moved.push(disk);
            }
        }
        self.components.marks.ensure_settled().await?;
        self.components.editor.copy_contents(ops).await?;
        self.components.profiles.prefetch_images(images);
        moved.iter().for_each(|disk| count_again(self, disk));
        Ok(())
    }

    /// The image or snapshot of this name, which never changes.
    fn new_origin(&self, name: &str) -> Result<Arc<Disk>> {
        let disk = self.components.catalogue.read().find(name)?;
        match disk.role() {
            Role::Volume => {
                Err(Error::WrongKind { name: shorten(name), is: "a volume", needs: "an image or a snapshot" })
            }
            _ => Ok(disk),
        }
    }

    /// Checks that a volume can get another origin.
    fn check_origin(&self, disk: &Disk, name: &str, to: &Disk) -> Result<()> {
        let snapshots = self.components.catalogue.read().snapshots(disk.id());
        if snapshots > 0 {
            return Err(Error::HasSnapshots { name: shorten(name), snapshots });
        }
        if disk.dedup_domain() != to.dedup_domain() {
            return Err(Error::WrongKind {
                name: self.components.catalogue.read().export_name(to),
                is: "in another deduplication domain than the clone",
                needs: "an image or a snapshot in the domain of the clone",
            });
        }
        Ok(())
    }

    /// Deletes a volume, an image, or `VOLUME@SNAPSHOT`. Refused while the disk is in use, or while snapshots
    /// or clones depend on it.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.components.catalogue.read().find(name)?;
        self.delete_disks(&[disk]).await
    }

    /// Deletes a volume and all of its snapshots in one group. Refused as a whole while one of these disks is
    /// in use or has clones.
    pub async fn delete_with_snapshots(&self, volume: &str) -> Result<()> {
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.components.editor.find_volume(volume)?;
        let mut all = snapshots_of(&self.components.catalogue, disk.id());
        all.push(disk);
        self.delete_disks(&all).await
    }

    /// Deletes disks in one group. Deletes none of them if one is in use, has clones, or has snapshots that
    /// are not among `disks`.
    pub(super) async fn delete_disks(&self, disks: &[Arc<Disk>]) -> Result<()> {
        let components = &self.components;
        let (mut exclusive, mut ops): (Vec<Exclusive>, _) = (Vec::new(), Vec::new());
        for disk in disks {
            let name = components.catalogue.read().export_name(disk);
            exclusive.push(disk.exclude_clients(&name)?);
            {
                let catalogue = components.catalogue.read();
                let snapshots = catalogue.snapshots(disk.id());
                let is_deleted = |snapshot: &&Arc<Disk>| snapshot.record().parent == Some(disk.id());
                if snapshots > 0 && snapshots > disks.iter().filter(is_deleted).count() {
                    return Err(Error::HasSnapshots { name: shorten(&name), snapshots });
                }
                if let (clones, Some(example)) = catalogue.clones(disk.id()) {
                    return Err(Error::HasClones { name: shorten(&name), clones, example });
                }
            }
            ops.extend(components.editor.deletion(disk));
        }
        components.intake.commit_ops(ops).await?;
        components.space.reclaim_is_due();
        for disk in disks {
            // If the volume is deleted too, it is no longer in the catalogue.
            if let Some(volume) = disk.record().parent.and_then(|id| disk_by_id(&components.catalogue, id)) {
                count_again(self, &volume);
            }
            leave_tenant(self, disk);
        }
        Ok(())
    }

    /// Gives a volume another name. Its identity, its contents and everything that depends on it stay; its
    /// snapshots have names that begin with the new name. Refused while clients are connected to the volume
    /// or to one of its snapshots: a client names its disk, and connects to this name again.
    ///
    /// # Errors
    /// [`Error::Exists`], also if the volume has this name already; [`Error::BadName`]; [`Error::InUse`].
    pub async fn rename(&self, volume: &str, name: &str) -> Result<DiskInfo> {
        check_name(name)?;
        let components = &self.components;
        let _admin = components.editor.lock.lock().await;
        let disk = components.editor.find_volume(volume)?;
        components.catalogue.read().check_free(name)?;
        let mut exclusive = vec![disk.exclude_clients(volume)?];
        for snapshot in snapshots_of(&components.catalogue, disk.id()) {
            let full = components.catalogue.read().export_name(&snapshot);
            exclusive.push(snapshot.exclude_clients(&full)?);
        }
        let record = DiskRecord { name: name.to_owned(), ..(*disk.record()).clone() };
        components.intake.commit_ops(vec![CatalogueOp::Update { disk: record }]).await?;
        self.disk(name)
    }

    /// Changes the size of a volume. Shrinking discards the data beyond the new size, and is refused while
    /// clients are connected.
    pub async fn resize(&self, volume: &str, size: u64) -> Result<()> {
        self.resize_from(volume, None, size).await
    }

    /// Works like [`Pool::resize`], provided that the volume has the size `from`, if that is given.
    ///
    /// # Errors
    /// [`Error::OtherSize`] if another request has resized the volume.
    pub async fn resize_from(&self, volume: &str, from: Option<u64>, size: u64) -> Result<()> {
        check_size(size)?;
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.components.editor.find_volume(volume)?;
        check_persistent(&disk, volume)?;
        if from.is_some_and(|from| from != disk.size()) {
            return Err(Error::OtherSize { name: shorten(volume), size: disk.size() });
        }
        let _exclusive = if size < disk.size() { Some(disk.exclude_clients(volume)?) } else { None };
        self.zero_tail(&disk, size)?;
        self.components.intake.commit_ops(vec![CatalogueOp::Resize { disk: disk.id(), size }]).await
    }

    /// Zeroes the part of a disk's last block that is beyond its end, before the disk grows: it may hold data
    /// from a time when the disk was larger. Zeroing when the disk shrinks would be too early: after a crash
    /// the zeroes could be durable, but not the new size.
    fn zero_tail(&self, disk: &Arc<Disk>, size: u64) -> Result<()> {
        let (block, end) = (disk.size() / BLOCK as u64, (disk.size() % BLOCK as u64) as usize);
        if size <= disk.size() || end == 0 {
            return Ok(());
        }
        self.components.intake.change(disk, block..block + 1, |buffers, blocks| {
            buffers.change(blocks, |buffer| buffer.write(block, end..BLOCK, &[0; BLOCK][end..], None))
        })
    }

    /// Begins an import. Its disk is accessible only through this handle, and is removed by a crash or by
    /// [`Pool::abandon_import`].
    pub async fn begin_import(&self, name: &str, size: u64, dedup_domain: u32) -> Result<Arc<DiskHandle>> {
        check_name(name)?;
        check_size(size)?;
        let _admin = self.components.editor.lock.lock().await;
        self.check_new(name)?;
        let disk = DiskRecord { dedup_domain, ..self.components.editor.new_record(name, size, Role::Import) };
        let id = disk.id;
        self.components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: None }]).await?;
        let disk =
            disk_by_id(&self.components.catalogue, id).ok_or_else(|| Error::NotFound(shorten(name)))?;
        self.open_without_client(disk, name.to_owned())
    }

    /// Turns an import into an image, durably. After an error, the import is removed.
    pub async fn finish_import(self: &Arc<Pool>, import: Arc<DiskHandle>) -> Result<DiskInfo> {
        let _admin = self.components.editor.lock.lock().await;
        let image = self.import(&import)?;
        let made = self.make_image(&import, &image).await;
        let name = import.name();
        drop(import);
        if let Err(e) = made {
            // The first error is returned, since it is more useful. If the pool has latched, its next opening
            // removes the import.
            let _ = self.delete_imports(vec![image.id()]).await;
            return Err(e);
        }
        self.disk(&name)
    }

    async fn make_image(&self, import: &DiskHandle, image: &Arc<Disk>) -> Result<()> {
        import.flush().await?;
        image.check_map(&import.name())?;
        // The cleaner packs images, but cannot move an open segment.
        let ended = self.components.committer.write_log().await?.end_segment(Stream::Data).await;
        self.components.committer.latching(ended)?;
        let disk = DiskRecord { role: Role::Image, ..(*image.record()).clone() };
        image.guest.clear();
        self.components.intake.commit_ops(vec![CatalogueOp::Update { disk }]).await?;
        self.components.space.reclaim_is_due();
        self.components.classes.scans.request(image);
        Ok(())
    }

    /// Removes the disk of an import that will not be completed.
    pub async fn abandon_import(self: &Arc<Pool>, import: Arc<DiskHandle>) -> Result<()> {
        let _admin = self.components.editor.lock.lock().await;
        let disk = self.import(&import)?;
        drop(import);
        self.delete_imports(vec![disk.id()]).await
    }

    /// Removes imports that a crash interrupted, before new imports can begin.
    pub(crate) async fn remove_imports(self: &Arc<Pool>) -> Result<()> {
        let interrupted: Vec<_> = {
            let catalogue = self.components.catalogue.read();
            catalogue.iter().filter(|d| d.role() == Role::Import).map(|d| d.id()).collect()
        };
        if interrupted.is_empty() {
            return Ok(());
        }
        tracing::info!("removing {} interrupted imports and copies for exports", interrupted.len());
        self.delete_imports(interrupted).await
    }

    /// Deletes imports. If there is no room for that, a task tries again: a full pool must open, otherwise no
    /// disk could ever be deleted.
    async fn delete_imports(self: &Arc<Pool>, imports: Vec<DiskId>) -> Result<()> {
        match self.commit_deletions(&imports).await {
            Err(Error::NoSpace) => {
                tracing::warn!("no room to remove an import: retrying until there is");
                let pool = self.clone();
                let retry = async move {
                    while matches!(pool.commit_deletions(&imports).await, Err(Error::NoSpace)) {
                        pool.components.cx.host.sleep(FULL_RETRY).await;
                    }
                };
                self.components.cx.host.spawn("imports", Box::pin(retry));
                Ok(())
            }
            other => other,
        }
    }

    async fn commit_deletions(&self, imports: &[DiskId]) -> Result<()> {
        self.components
            .intake
            .commit_ops(imports.iter().map(|disk| CatalogueOp::Delete { disk: *disk }).collect())
            .await?;
        self.components.space.reclaim_is_due();
        Ok(())
    }

    /// The disk of an import that is under way.
    fn import(&self, handle: &DiskHandle) -> Result<Arc<Disk>> {
        let disk = disk_by_id(&self.components.catalogue, handle.id()).filter(|d| d.role() == Role::Import);
        disk.ok_or_else(|| Error::NotFound(shorten(&handle.name())))
    }
}
