//! Images of a cluster, of which the pool is a shard.
//!
//! An image of the cluster is stored once, in separate segments (`SegmentId::is_of_image`), which no pool
//! writes, moves or deletes: `store::WithImages` adds them to the objects that a pool can read. A pool that
//! uses the image has a hidden disk with the root of the image's map, and the clones that the pool has of
//! the image are clones of that disk. So reads, writes, snapshots, resets and copies of these clones need
//! nothing else: an address is an address.
//!
//! **Writing.** [`ClusterImages::write`] copies an image of this pool into new segments, while the pool
//! serves its clients. Then the image of this pool gets the root of the copy ([`ClusterImages::adopt`]),
//! and its former blocks are reclaimed, unless clones refer to them that were made before.
//!
//! **Use.** The caller registers the pool as a user of the image before it calls
//! [`ClusterImages::attach`] or [`ClusterImages::adopt`], so no disk of the pool can refer to a
//! segment of the image without a registration. Only these calls, and copies of what a disk of the pool
//! refers to already, make such a reference: the index of fingerprints does not contain blocks of images.
//!
//! **The end of use.** The registration may be removed only when the pool has no reference any more, and can
//! get none again. [`ClusterImages::detach`] removes the hidden disk, unless it has clones; but other
//! disks may hold blocks of the image that were copied by reference. [`ClusterImages::segments_in_use`]
//! states the segments to which the pool refers, as found by a mark that begins after the call. Both
//! superblock copies are at the checkpoint of the mark or behind it, so that no recovery leads back to a
//! state with more references. The caller makes both calls, and does not attach the image in between.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskRecord, MapValue, Role, SegmentId};

use super::admin::{CloneRequest, DiskInfo};
use super::export::hidden_copy;
use super::image_copy::{ImageRoot, ImageSegments, WrittenImage, copy_image};
use super::pool::Pool;
use crate::catalogue::{check_name, check_size};
use crate::disk::Disk;
use crate::{Error, Result};

/// An image that has its name in this pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolImage {
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Name of the image.
    pub name: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Deduplication domain of the image.
    pub dedup_domain: u32,
    /// The map of the image is in segments of an image of the cluster.
    pub is_adopted: bool,
}

/// An image of the cluster, as a pool needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterImage {
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Name of the image.
    pub name: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Deduplication domain of the image, and of its clones.
    pub dedup_domain: u32,
    /// Root of the block map of the image.
    pub root: ImageRoot,
}

/// The images of the cluster, for a pool that is a shard of it.
pub struct ClusterImages(pub(super) Arc<Pool>);

impl ClusterImages {
    /// Copies an image of this pool into segments, whose numbers the caller has reserved
    /// ([`segments_of_image`]). Returns `None` for an image without data, which needs no segments.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the errors of reading the image and of writing the segments. The segments that
    /// were written are not in use then.
    pub async fn write(
        &self,
        uuid: [u8; 16],
        numbers: Range<u32>,
        to: &dyn ImageSegments,
    ) -> Result<Option<WrittenImage>> {
        let admin = self.0.components.editor.lock.lock().await;
        let image = self.find_local(uuid)?;
        let name = image.record().name.clone();
        let copy = hidden_copy(&self.0, &image, &name).await?;
        drop(admin);
        let done = copy_image(&self.0.components.reader, &copy.disk, numbers, to).await;
        let ended = self.0.abandon_import(copy).await;
        done.and_then(|written| ended.map(|()| written))
    }

    /// The image of this pool with this identity.
    fn find_local(&self, uuid: [u8; 16]) -> Result<Arc<Disk>> {
        let catalogue = self.0.components.catalogue.read();
        let found = catalogue.images_with(uuid).find(|disk| disk.role() == Role::Image);
        found.cloned().ok_or_else(|| Error::NotFound("the image".to_owned()))
    }

    /// The images that have their names in this pool.
    pub fn local(&self) -> Vec<PoolImage> {
        let catalogue = self.0.components.catalogue.read();
        catalogue.images().filter(|disk| disk.role() == Role::Image).map(|disk| describe(disk)).collect()
    }

    /// The image with this identity, if its name is in this pool.
    pub fn find(&self, uuid: [u8; 16]) -> Option<PoolImage> {
        self.find_local(uuid).ok().map(|disk| describe(&disk))
    }

    /// The images of the cluster that are attached to this pool: their identities.
    pub fn attached(&self) -> Vec<[u8; 16]> {
        let catalogue = self.0.components.catalogue.read();
        let attached = catalogue.images().filter(|disk| disk.role() == Role::ClusterImage);
        attached.map(|disk| disk.record().uuid).collect()
    }

    /// Whether an image of the cluster is attached to this pool.
    pub fn is_attached(&self, uuid: [u8; 16]) -> bool {
        self.find_attached(&uuid).is_some()
    }

    /// Gives an image of this pool the map of its copy, which has the same contents.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the image was removed in the meantime.
    pub async fn adopt(&self, uuid: [u8; 16], root: ImageRoot) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        let image = self.find_local(uuid)?;
        let attach = CatalogueOp::Attach { disk: image.id(), root: root.0 };
        self.0.components.intake.commit_ops(vec![attach]).await?;
        self.0.components.space.reclaim_is_due();
        Ok(())
    }

    /// Makes clones of an image of the cluster possible in this pool. Has no effect if they are possible
    /// already.
    ///
    /// # Errors
    /// [`Error::TooManyDisks`]; [`Error::BadName`] and [`Error::BadSize`] if no image can be like this.
    pub async fn attach(&self, image: &ClusterImage) -> Result<()> {
        check_name(&image.name)?;
        check_size(image.size)?;
        let _admin = self.0.components.editor.lock.lock().await;
        if self.find_attached(&image.uuid).is_some() || self.find_local(image.uuid).is_ok() {
            return Ok(());
        }
        self.0.check_count(1)?;
        let disk = DiskRecord {
            uuid: image.uuid,
            dedup_domain: image.dedup_domain,
            ..self.0.components.editor.new_record(&image.name, image.size, Role::ClusterImage)
        };
        let attach = CatalogueOp::Attach { disk: disk.id, root: image.root.0 };
        self.0.components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: None }, attach]).await?;
        if let Some(disk) = self.find_attached(&image.uuid) {
            self.0.components.classes.scans.request(&disk);
        }
        Ok(())
    }

    /// The hidden disk of an image of the cluster.
    fn find_attached(&self, uuid: &[u8; 16]) -> Option<Arc<Disk>> {
        let catalogue = self.0.components.catalogue.read();
        catalogue.images_with(*uuid).find(|disk| disk.role() == Role::ClusterImage).cloned()
    }

    /// Creates clones of an image of the cluster: all of them, or none. The image is attached, or is an image
    /// of this pool.
    ///
    /// # Errors
    /// As [`Pool::clone_disk`].
    pub async fn clone_to(&self, uuid: [u8; 16], clones: &[CloneRequest]) -> Result<Vec<DiskInfo>> {
        let _admin = self.0.components.editor.lock.lock().await;
        let from = self.usable_image(uuid)?;
        let name = from.record().name.clone();
        self.0.make_clones(&from, &name, clones).await
    }

    /// Resets clones to an image of the cluster, which is their origin from then on: all of them, or none.
    /// The image is attached, or is an image of this pool.
    ///
    /// # Errors
    /// As [`Pool::reset_all_to`].
    pub async fn reset(&self, volumes: &[&str], uuid: [u8; 16]) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        let image = self.usable_image(uuid)?;
        self.0.reset_to(volumes, Some(image)).await
    }

    /// The hidden disk of an image of the cluster, or the image of this pool.
    fn usable_image(&self, uuid: [u8; 16]) -> Result<Arc<Disk>> {
        self.find_attached(&uuid).map_or_else(|| self.find_local(uuid), Ok)
    }

    /// Makes clones of an image of the cluster impossible in this pool. Other disks may continue to refer to
    /// segments of the image. Has no effect on an image that is not attached.
    ///
    /// # Errors
    /// [`Error::HasClones`]
    pub async fn detach(&self, uuid: [u8; 16]) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        match self.find_attached(&uuid) {
            Some(disk) => self.0.delete_disks(&[disk]).await,
            None => Ok(()),
        }
    }

    /// The segments of images to which this pool refers, as found by a reclaim that begins now; see the
    /// module documentation.
    ///
    /// # Errors
    /// [`Error::MapsDamaged`] if they cannot be known, since a map is damaged; the errors of a reclaim.
    pub async fn segments_in_use(&self) -> Result<BTreeSet<SegmentId>> {
        self.0.components.reclaimer.image_segments_in_use().await
    }
}

fn describe(disk: &Disk) -> PoolImage {
    let (record, root) = (disk.record(), disk.tree.read().record());
    PoolImage {
        uuid: record.uuid,
        name: record.name.clone(),
        size: disk.size(),
        dedup_domain: record.dedup_domain,
        is_adopted: matches!(root, Some((MapValue::At(at), _)) if at.addr.segment.is_of_image()),
    }
}
