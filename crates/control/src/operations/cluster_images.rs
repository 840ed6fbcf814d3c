//! The images of a cluster, if the pool is a shard of one: any shard clones them, and no image is removed
//! that a shard uses.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::images::{Image, Uuid};
use forebay_cluster::owned_images::{Copied, LocalImage, OwnedImages, ShardPool};
use forebay_engine::{
    CloneRequest, ClusterImage, DiskInfo, Error as EngineError, ImageRoot, ImageSegments, Pool, PoolImage,
    Role, SegmentId, segments_of_image,
};
use forebay_store::BoxFuture;
use forebay_store::rados::ImageObjects;

use super::{Control, Result};

/// The images of a pool that is a shard of a cluster.
pub struct ImagesOfShard {
    /// The pool.
    pub pool: Arc<Pool>,
}

/// The segments of images as the engine writes them.
struct Written<'a>(&'a ImageObjects);

impl ImageSegments for Written<'_> {
    fn write(&self, segment: SegmentId, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move { Ok(self.0.write(segment, &bytes).await?) })
    }
}

fn text<T>(done: Result<T, EngineError>) -> Result<T, String> {
    done.map_err(|e| e.to_string())
}

fn local(image: PoolImage) -> LocalImage {
    LocalImage {
        uuid: image.uuid,
        name: image.name,
        size: image.size,
        domain: image.dedup_domain,
        is_adopted: image.is_adopted,
    }
}

fn root_of(bytes: &[u8; 12]) -> Result<ImageRoot, String> {
    ImageRoot::from_bytes(bytes).ok_or_else(|| "the root of its map is damaged".to_owned())
}

impl ShardPool for ImagesOfShard {
    fn local(&self) -> Vec<LocalImage> {
        self.pool.cluster_images().local().into_iter().map(local).collect()
    }

    fn find(&self, uuid: Uuid) -> Option<LocalImage> {
        self.pool.cluster_images().find(uuid).map(local)
    }

    fn is_attached(&self, uuid: Uuid) -> bool {
        self.pool.cluster_images().is_attached(uuid)
    }

    fn segments_for(&self, size: u64) -> u32 {
        segments_of_image(size)
    }

    fn copy<'a>(
        &'a self,
        uuid: Uuid,
        numbers: Range<u32>,
        to: &'a ImageObjects,
    ) -> BoxFuture<'a, Result<Option<Copied>, String>> {
        Box::pin(async move {
            let written = text(self.pool.cluster_images().write(uuid, numbers, &Written(to)).await)?;
            Ok(written.map(|written| Copied {
                root: written.root.to_bytes(),
                segments: written.segments,
                bytes: written.bytes,
            }))
        })
    }

    fn adopt(&self, uuid: Uuid, root: [u8; 12]) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { text(self.pool.cluster_images().adopt(uuid, root_of(&root)?).await) })
    }

    fn attach<'a>(&'a self, uuid: Uuid, image: &'a Image) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let root = image.root().ok_or("the root of its map is missing")?;
            let image = ClusterImage {
                uuid,
                name: image.name.clone(),
                size: image.size,
                dedup_domain: image.domain,
                root: root_of(&root)?,
            };
            text(self.pool.cluster_images().attach(&image).await)
        })
    }

    fn detach(&self, uuid: Uuid) -> BoxFuture<'_, Result<Option<(u64, String)>, String>> {
        Box::pin(async move {
            match self.pool.cluster_images().detach(uuid).await {
                Ok(()) => Ok(None),
                Err(EngineError::HasClones { clones, example, .. }) => Ok(Some((clones as u64, example))),
                Err(e) => Err(e.to_string()),
            }
        })
    }

    fn segments_in_use(&self) -> BoxFuture<'_, Result<BTreeSet<u32>, String>> {
        Box::pin(async move {
            let found = text(self.pool.cluster_images().segments_in_use().await)?;
            Ok(found.into_iter().map(|segment| segment.0).collect())
        })
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn has_stopped(&self) -> bool {
        self.pool.has_stopped()
    }
}

impl Control {
    /// The pool uses images of a cluster from now on.
    pub fn set_images(&self, images: Arc<OwnedImages>) {
        // They are set once, before the API is served.
        let _ = self.inner.images.set(images);
    }

    /// Creates clones of a disk of this pool, or of an image of the cluster: all of them, or none.
    pub(crate) async fn clone_disk(&self, source: &str, clones: &[CloneRequest]) -> Result<Vec<DiskInfo>> {
        match self.pool().clone_disk(source, clones).await {
            Err(e @ EngineError::NotFound(_)) => {
                let Some(images) = self.inner.images.get() else { return Err(e.into()) };
                let uuid = images.attach(source).await?.ok_or(e)?;
                Ok(self.pool().cluster_images().clone_to(uuid, clones).await?)
            }
            made => {
                let mut made = made?;
                self.inherit_tenant(source, &mut made).await?;
                Ok(made)
            }
        }
    }

    /// Resets clones, to an image of this pool or of the cluster if one is given: all of them, or none.
    pub(crate) async fn reset_disks(&self, volumes: &[&str], image: Option<&str>) -> Result<()> {
        let pool = self.pool();
        let elsewhere = image.filter(|image| pool.disk_in_brief(image).is_err());
        if let Some((images, name)) = self.inner.images.get().zip(elsewhere)
            && let Some(uuid) = images.attach(name).await?
        {
            return Ok(pool.cluster_images().reset(volumes, uuid).await?);
        }
        Ok(pool.reset_all_to(volumes, image).await?)
    }

    /// Removes an image of this pool. In a cluster, no shard has clones of it then.
    pub(super) async fn delete_image(&self, name: &str) -> Result<()> {
        let image = self.pool().disk(name)?;
        match self.inner.images.get() {
            // The pool refuses to remove an image that has clones here.
            Some(images) if image.role == Role::Image && image.clones == 0 => {
                let deletion = images.begin_deletion(image.uuid, name).await?;
                let deleted = self.pool().delete(name).await;
                images.end_deletion(deletion, deleted.is_ok()).await;
                Ok(deleted?)
            }
            _ => Ok(self.pool().delete(name).await?),
        }
    }
}
