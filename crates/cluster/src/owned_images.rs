//! The images of one shard, for the process that owns the shard.
//!
//! The module adds to [`crate::images`] the tasks of an owner: it publishes the images of the shard, attaches
//! images of other shards when they are cloned, removes registrations that are not needed, and removes the
//! segments of images that were deleted.
//!
//! **The order in this process.** For one image, attaching, deleting and the removal of the registration
//! exclude each other ([`OwnedImages::lock`]). So the shard does not get a reference between the mark that
//! finds none and the removal of its registration. A later owner of the shard may get one in between, and has
//! written a new registration before.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::rados::{Cluster, ImageObjects};
use forebay_store::{BoxFuture, SegmentId};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::error::{ClusterError, Result};
use crate::images::{Catalogue, Image, Images, Refusal, Registration, Seen, State, Use, Uuid};

/// Interval at which an owner looks at the images.
const OFTEN: Duration = Duration::from_secs(2);
/// Interval at which a deletion looks at the answers of the other shards, and their number.
const ANSWER: Duration = Duration::from_millis(500);
const ANSWERS: u32 = 40;
/// Passes between two sweeps.
const SWEEP_EVERY: u64 = 1800;

/// An image of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// Identity of the image.
    pub uuid: Uuid,
    /// Name of the image.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its deduplication domain.
    pub domain: u32,
    /// Its map is in segments of the image.
    pub is_adopted: bool,
}

/// A copy of an image in separate segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Root of the map, as bytes of a block reference.
    pub root: [u8; 12],
    /// Number of segments, the first of those that were reserved.
    pub segments: u32,
    /// Bytes of these segments.
    pub bytes: u64,
}

/// What the owner of a shard does with its pool. An error is text for the log; the pool is unchanged then, or
/// it has stopped.
pub trait ShardPool: Send + Sync {
    /// The images that have their names in this shard.
    fn local(&self) -> Vec<LocalImage>;

    /// The image of the shard with this identity.
    fn find(&self, uuid: Uuid) -> Option<LocalImage>;

    /// Whether an image is attached.
    fn is_attached(&self, uuid: Uuid) -> bool;

    /// Number of segments to reserve for an image of this size.
    fn segments_for(&self, size: u64) -> u32;

    /// Copies an image of the shard into segments with these numbers. `None` for an image without data.
    fn copy<'a>(
        &'a self,
        uuid: Uuid,
        numbers: Range<u32>,
        to: &'a ImageObjects,
    ) -> BoxFuture<'a, Result<Option<Copied>, String>>;

    /// Gives an image of the shard the map of its copy.
    fn adopt(&self, uuid: Uuid, root: [u8; 12]) -> BoxFuture<'_, Result<(), String>>;

    /// Makes clones of an image possible.
    fn attach<'a>(&'a self, uuid: Uuid, image: &'a Image) -> BoxFuture<'a, Result<(), String>>;

    /// Makes clones of an image impossible. If the shard has clones, returns their number and the name of
    /// one, and the image stays attached.
    fn detach(&self, uuid: Uuid) -> BoxFuture<'_, Result<Option<(u64, String)>, String>>;

    /// The segments of images to which disks of the shard refer, as found by a mark that begins now.
    fn segments_in_use(&self) -> BoxFuture<'_, Result<BTreeSet<u32>, String>>;

    /// Completes after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;

    /// Whether the pool has stopped: another server owns the shard, or will.
    fn has_stopped(&self) -> bool;
}

/// A deletion of an image that has begun: no shard has clones of it, or can make any. It ends with
/// [`OwnedImages::end_deletion`].
#[must_use]
pub struct Deletion {
    uuid: Uuid,
    published: Option<Seen<Image>>,
    _lock: OwnedMutexGuard<()>,
}

/// The images of the shard that this process owns.
pub struct OwnedImages {
    images: Images,
    segments: ImageObjects,
    shard: u32,
    term: u64,
    pool: Arc<dyn ShardPool>,
    locks: Mutex<BTreeMap<Uuid, Arc<AsyncMutex<()>>>>,
    /// Images that this process copies now.
    copying: Mutex<BTreeSet<Uuid>>,
    /// Images that could not be copied, or have no data: they are tried again after the next sweep.
    failed: Mutex<BTreeSet<Uuid>>,
    /// A pass is wanted at once.
    is_due: AtomicBool,
}

fn unusable(name: &str, why: String) -> ClusterError {
    ClusterError::Refused(format!("the image {name} cannot be used here: {why}"))
}

impl OwnedImages {
    /// The images of `shard`, for its owner in this term. `cluster` is the namespace of the cluster, and
    /// `segments` the namespace of the segments of images.
    pub fn new(
        cluster: Arc<dyn Cluster>,
        segments: Arc<dyn Cluster>,
        (shard, term): (u32, u64),
        pool: Arc<dyn ShardPool>,
    ) -> OwnedImages {
        OwnedImages {
            images: Images::new(cluster),
            segments: ImageObjects::new(segments),
            shard,
            term,
            pool,
            locks: Mutex::default(),
            copying: Mutex::default(),
            failed: Mutex::default(),
            is_due: AtomicBool::new(false),
        }
    }

    /// Excludes other changes of the shard's use of an image.
    async fn lock(&self, uuid: Uuid) -> OwnedMutexGuard<()> {
        let lock = self.locks.lock().entry(uuid).or_default().clone();
        lock.lock_owned().await
    }

    /// Excludes other changes of the shard's use of an image, if there is none under way.
    fn try_lock(&self, uuid: Uuid) -> Option<OwnedMutexGuard<()>> {
        let lock = self.locks.lock().entry(uuid).or_default().clone();
        lock.try_lock_owned().ok()
    }

    /// Makes clones of the image of this name possible in this shard. Returns the identity of the image;
    /// `None` if the cluster has no live image of the name.
    ///
    /// # Errors
    /// The errors of [`Images::register`]; [`ClusterError::Refused`] if the pool cannot attach the image.
    pub async fn attach(&self, name: &str) -> Result<Option<Uuid>> {
        let Some((uuid, _)) = self.images.live(name).await? else { return Ok(None) };
        let _lock = self.lock(uuid).await;
        if self.pool.is_attached(uuid) {
            // The registration is older than the disk, and is removed only after the disk.
            return Ok(Some(uuid));
        }
        let image = self.images.register(&uuid, name, self.shard, self.term).await?;
        self.pool.attach(uuid, &image).await.map_err(|why| unusable(name, why))?;
        Ok(Some(uuid))
    }

    /// Begins to delete an image of this shard: waits until no other shard can have clones of it.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] if a shard has clones of the image, or does not answer: then it stays as it
    /// was; the errors of Ceph.
    pub async fn begin_deletion(&self, uuid: Uuid, name: &str) -> Result<Deletion> {
        let lock = self.lock(uuid).await;
        loop {
            let Some(seen) = self.images.look_up(&uuid, self.shard).await?.0 else {
                return Ok(Deletion { uuid, published: None, _lock: lock });
            };
            match seen.value.state {
                // The copy cannot become live any more, and is removed when it ends.
                State::Publishing => {
                    if self.images.remove(&uuid, &seen).await? {
                        return Ok(Deletion { uuid, published: None, _lock: lock });
                    }
                }
                State::Live | State::Deleting => {
                    let Some(begun) = self.images.begin_deletion(&uuid, &seen, self.term).await? else {
                        continue;
                    };
                    let asked = self.ask_others(uuid, name, &begun).await;
                    let deletion = Deletion { uuid, published: Some(begun), _lock: lock };
                    return match asked {
                        Ok(()) => Ok(deletion),
                        Err(e) => {
                            self.end_deletion(deletion, false).await;
                            Err(e)
                        }
                    };
                }
            }
        }
    }

    /// Waits until all other shards have stated that they have no clones of an image.
    async fn ask_others(&self, uuid: Uuid, name: &str, begun: &Seen<Image>) -> Result<()> {
        let mut silent = self.shard;
        for _ in 0..ANSWERS {
            let all = self.images.read().await?;
            let mut waits_for = None;
            for (shard, seen) in all.users(uuid).filter(|(shard, _)| *shard != self.shard) {
                let Registration { used, refusal, .. } = &seen.value;
                match refusal {
                    Some(refusal) if refusal.generation == begun.value.generation => {
                        let Refusal { clones, example, .. } = refusal;
                        let (image, example) = (name.to_owned(), example.clone());
                        return Err(ClusterError::HasClones { image, shard, clones: *clones, example });
                    }
                    _ if *used == Use::Detached => {}
                    _ => waits_for = Some(shard),
                }
            }
            let Some(shard) = waits_for else { return Ok(()) };
            silent = shard;
            self.pool.sleep(ANSWER).await;
        }
        Err(ClusterError::Refused(format!(
            "the image {name} may have clones in shard {silent}, which does not answer; repeat the request \
             when a node serves the shard"
        )))
    }

    /// Ends a deletion: the image does not exist in this shard any more, or it is used as before.
    pub async fn end_deletion(&self, deletion: Deletion, is_deleted: bool) {
        let Deletion { uuid, published, _lock } = &deletion;
        if let Some(begun) = published.as_ref().filter(|_| !is_deleted)
            && let Err(e) = self.restore(uuid, begun).await
        {
            tracing::warn!("an image of shard {} can be cloned again later: {e}", self.shard);
        }
        drop(deletion);
        self.is_due.store(true, Relaxed);
    }

    async fn restore(&self, uuid: &Uuid, seen: &Seen<Image>) -> Result<()> {
        if let (_, Some(home)) = self.images.look_up(uuid, seen.value.home).await? {
            self.images.restore(uuid, seen, &home, self.term).await?;
        }
        Ok(())
    }

    /// Keeps the images of the shard in accord with the cluster, until another process owns the shard.
    pub async fn maintain(&self) {
        let mut passes = 0;
        while !self.pool.has_stopped() {
            self.is_due.store(false, Relaxed);
            let done = async {
                let all = self.images.read().await?;
                self.keep_images(&all).await?;
                self.keep_registrations(&all).await?;
                if passes % SWEEP_EVERY != 0 {
                    return Ok(());
                }
                self.failed.lock().clear();
                // One shard removes what servers have written that were paused.
                if self.shard == 1 { self.remove_leaks().await } else { Ok(()) }
            };
            match done.await {
                Ok(()) => passes += 1,
                Err(e) => tracing::warn!("the images of shard {} are looked after later: {e}", self.shard),
            }
            let mut pause = OFTEN;
            while pause > Duration::ZERO && !self.is_due.load(Relaxed) && !self.pool.has_stopped() {
                self.pool.sleep(ANSWER).await;
                pause = pause.saturating_sub(ANSWER);
            }
        }
    }

    /// One pass over the images whose home is this shard: continues what earlier owners have begun.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn keep_images(&self, all: &Catalogue) -> Result<()> {
        for (uuid, seen) in &all.images {
            let image = &seen.value;
            if image.home != self.shard || image.term > self.term {
                continue;
            }
            let Some(_lock) = self.try_lock(*uuid) else { continue };
            match (image.state, self.pool.find(*uuid)) {
                (State::Publishing, _) if self.copying.lock().contains(uuid) => {}
                (State::Publishing, _) => {
                    if self.images.remove(uuid, seen).await? {
                        self.remove_leaks().await?;
                    }
                }
                (State::Live, Some(local)) => {
                    if let Some(root) = image.root().filter(|_| !local.is_adopted) {
                        self.adopt(uuid, &local.name, root).await;
                    }
                    if local.name != image.name {
                        self.images.rename(uuid, seen, &local.name).await?;
                    }
                }
                (State::Live, None) => {
                    self.images.begin_deletion(uuid, seen, self.term).await?;
                }
                (State::Deleting, Some(_)) => self.restore(uuid, seen).await?,
                (State::Deleting, None) => {
                    if all.users(*uuid).next().is_none() {
                        for segment in image.segments() {
                            self.segments.delete(SegmentId(segment)).await.map_err(store_failed)?;
                        }
                        self.images.remove(uuid, seen).await?;
                        self.locks.lock().remove(uuid);
                    }
                }
            }
        }
        Ok(())
    }

    async fn adopt(&self, uuid: &Uuid, name: &str, root: [u8; 12]) {
        match self.pool.adopt(*uuid, root).await {
            Ok(()) => tracing::info!(image = name, "every node can clone the image"),
            Err(why) => {
                tracing::warn!(image = name, "the image keeps its blocks in the shard for now: {why}")
            }
        }
    }

    /// One pass over the registrations of this shard: states whether images that are to be deleted have
    /// clones, and removes registrations that are not needed.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn keep_registrations(&self, all: &Catalogue) -> Result<()> {
        let mut in_use: Option<BTreeSet<u32>> = None;
        for ((uuid, shard), seen) in &all.registrations {
            if *shard != self.shard || seen.value.term > self.term {
                continue;
            }
            let Some(_lock) = self.try_lock(*uuid) else { continue };
            // Without an entry, the image was published since the images were read: no other image has
            // registrations.
            let Some(image) = all.images.get(uuid).map(|seen| &seen.value) else { continue };
            let is_local = image.home == self.shard && self.pool.find(*uuid).is_some();
            let is_attached = self.pool.is_attached(*uuid);
            let is_deleting = image.state == State::Deleting;
            if is_local || (is_attached && !is_deleting) {
                continue;
            }
            if is_attached {
                self.detach(uuid, image, seen).await?;
                continue;
            }
            // The lock excludes an attachment. One that was made after the mark, for another image of this
            // pass, has replaced the registration.
            if in_use.is_none() {
                match self.pool.segments_in_use().await {
                    Ok(found) => in_use = Some(found),
                    Err(why) => {
                        tracing::warn!("the images that shard {} uses are not known: {why}", self.shard);
                        return Ok(());
                    }
                }
            }
            let is_used = in_use.as_ref().is_some_and(|found| found.range(image.segments()).next().is_some());
            match is_used {
                false => drop(self.images.unregister(uuid, self.shard, seen).await?),
                true if seen.value.used == Use::Attached => {
                    let new = (Use::Detached, None);
                    self.images.state_use(uuid, self.shard, seen, self.term, new).await?;
                }
                true => {}
            }
        }
        Ok(())
    }

    /// Detaches an image that is to be deleted, or states why that is not possible.
    async fn detach(&self, uuid: &Uuid, image: &Image, seen: &Seen<Registration>) -> Result<()> {
        let refused_before = seen.value.refusal.as_ref().map(|refusal| refusal.generation);
        let new = match self.pool.detach(*uuid).await {
            Ok(None) => (Use::Detached, None),
            Ok(Some(_)) if refused_before == Some(image.generation) => return Ok(()),
            Ok(Some((clones, example))) => {
                (Use::Attached, Some(Refusal { generation: image.generation, clones, example }))
            }
            Err(why) => {
                tracing::warn!(image = image.name, "the image stays in use for now: {why}");
                return Ok(());
            }
        };
        self.images.state_use(uuid, self.shard, seen, self.term, new).await.map(drop)
    }

    /// Removes segments that belong to no image, which copies have left that were given up.
    async fn remove_leaks(&self) -> Result<()> {
        // The segments are listed before the images are read.
        let found = self.segments.list().await.map_err(store_failed)?;
        let all = self.images.read().await?;
        for segment in found.into_iter().filter(|segment| !all.has_segment(segment.0)) {
            self.segments.delete(segment).await.map_err(store_failed)?;
        }
        Ok(())
    }

    /// Publishes the images of the shard, one after the other, until another process owns the shard.
    pub async fn publish_all(&self) {
        while !self.pool.has_stopped() {
            match self.publish_next().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) => tracing::warn!("an image of shard {} is published later: {e}", self.shard),
            }
            self.pool.sleep(OFTEN).await;
        }
    }

    /// Publishes one image. Returns whether there was one.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn publish_next(&self) -> Result<bool> {
        let waiting: Vec<_> = {
            let failed = self.failed.lock();
            let local = self.pool.local().into_iter();
            local.filter(|image| !image.is_adopted && !failed.contains(&image.uuid)).collect()
        };
        if waiting.is_empty() {
            return Ok(false);
        }
        let all = self.images.read().await?;
        let Some(image) = waiting.into_iter().find(|image| !all.images.contains_key(&image.uuid)) else {
            return Ok(false);
        };
        let (uuid, place) = (image.uuid, (self.shard, self.term));
        let count = self.pool.segments_for(image.size);
        self.copying.lock().insert(uuid);
        let about = (image.name.as_str(), image.size, image.domain);
        let done = match self.images.reserve(uuid, about, count, place).await {
            Ok(seen) => self.copy(&image, seen).await,
            Err(e) => Err(e),
        };
        self.copying.lock().remove(&uuid);
        done.map(|()| true)
    }

    async fn copy(&self, image: &LocalImage, seen: Seen<Image>) -> Result<()> {
        let uuid = image.uuid;
        let copied = self.pool.copy(uuid, seen.value.segments(), &self.segments).await;
        let published = match &copied {
            Ok(Some(Copied { root, segments, bytes })) => {
                let copy = (*root, *segments, *bytes);
                self.images.publish(&uuid, &seen, copy, self.term).await?.map(|_| *root)
            }
            Ok(None) | Err(_) => {
                self.images.remove(&uuid, &seen).await?;
                None
            }
        };
        match (published, copied) {
            (Some(root), _) => {
                let _lock = self.lock(uuid).await;
                self.adopt(&uuid, &image.name, root).await;
                return Ok(());
            }
            // The image was removed in the meantime, or this process does not own the shard any more.
            (None, Ok(Some(_))) => {}
            (None, Ok(None)) => drop(self.failed.lock().insert(uuid)),
            (None, Err(why)) => {
                self.failed.lock().insert(uuid);
                tracing::warn!(image = image.name, "the image is cloned by its shard only: {why}");
            }
        }
        self.remove_leaks().await
    }
}

fn store_failed(e: forebay_store::StoreError) -> ClusterError {
    ClusterError::Refused(e.to_string())
}
