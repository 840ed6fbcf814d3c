//! Operations of the pool that one of its components performs: flushing, checkpoints, reclaiming, metadata,
//! boot profiles, classes, desktops and limits.

use std::sync::Arc;

use forebay_format::{DiskId, SyncMode};

use super::admin::DiskInfo;
use super::cluster_image::ClusterImages;
use super::export::{self, Export};
use super::internal;
use super::limits::{self, DiskLimits, TenantInfo};
use super::pool::Pool;
use super::receive::{self, ReceiveError, ReceiveRequest, Receiving};
use crate::handle::{DiskHandle, Since};
use crate::{CachedBlock, ClassesInfo, GcProgress, Host, Limits, Peek, Prefetched, ProfileInfo, Result};

impl Pool {
    /// The clock, the tasks and the randomness of the pool.
    pub fn host(&self) -> Arc<dyn Host> {
        self.components.cx.host.clone()
    }

    /// The internal disks of a purpose.
    pub fn internal_disks(&self, purpose: &str) -> Vec<DiskId> {
        internal::find(self, purpose)
    }

    /// Creates an internal disk, durably, and opens it. With `from`, the disk has the contents that this disk
    /// has now, and shares all blocks with it.
    ///
    /// # Errors
    /// [`crate::Error::BadSize`]; those of a commit.
    pub async fn create_internal(
        &self,
        purpose: &str,
        size: u64,
        from: Option<&DiskHandle>,
    ) -> Result<Arc<DiskHandle>> {
        internal::create(self, purpose, size, from).await
    }

    /// Opens an internal disk. The front end answers for the durability of the answers that it gives: the
    /// disk is never marked, and its clients are not refused after a loss of memory.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn open_internal(&self, id: DiskId) -> Result<Arc<DiskHandle>> {
        internal::open(self, id)
    }

    /// Deletes internal disks, durably. No request on them is in progress, and none follows.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn remove_internal(&self, ids: &[DiskId]) -> Result<()> {
        internal::remove(self, ids).await
    }

    /// Waits until everything is durable that was acknowledged on any disk before the call.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] if the store is full; [`crate::Error::Latched`] and
    /// [`crate::Error::Closed`].
    pub async fn flush(&self) -> Result<()> {
        self.components.intake.flush().await
    }

    /// The images of the cluster of which this pool is a shard.
    pub fn cluster_images(self: &Arc<Pool>) -> ClusterImages {
        ClusterImages(self.clone())
    }

    /// Makes a checkpoint now.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] and errors of the store; the checkpoint before stays in force.
    pub async fn checkpoint(&self) -> Result<()> {
        self.components.committer.checkpoint().await
    }

    /// Marks live blocks and frees the others, as far as it is worth it; returns the bytes freed. Calls
    /// `progress` at each step.
    ///
    /// # Errors
    /// [`crate::Error::MapsDamaged`] if data below damaged maps was kept: the rest is freed. Others end it
    /// early.
    pub async fn reclaim(&self, progress: &(dyn Fn(GcProgress) + Send + Sync)) -> Result<u64> {
        self.components.reclaimer.reclaim(progress).await
    }

    /// The persistent reservations that a front end keeps with a disk, read without opening it; `None` if
    /// there are none.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; the errors of a read; [`crate::Error::Damaged`].
    pub async fn reservations(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.components.metadata.reservations(name).await
    }

    /// Replaces the persistent reservations of a disk that no front end has open, durably; `None` removes
    /// them.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; the errors of a write.
    pub async fn set_reservations(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        self.components.metadata.set_reservations(name, content).await
    }

    /// Reads a document of the pool; `None` if no document has this name.
    ///
    /// # Errors
    /// The errors of a read; [`crate::Error::Damaged`].
    pub async fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.components.metadata.document(name).await
    }

    /// Replaces a document of the pool, durably, or removes it: after a crash it is the old one or the new
    /// one. Document names follow the rules of disk names, and are separate from them.
    ///
    /// # Errors
    /// [`crate::Error::BadName`]; [`crate::Error::BadSize`] above 64 MiB; the errors of a write.
    pub async fn set_document(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        self.components.metadata.set_document(name, content).await
    }

    /// The boot profile of an image.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`], and [`crate::Error::WrongKind`] for a volume.
    pub async fn profile(&self, image: &str) -> Result<ProfileInfo> {
        self.components.profiles.info(image).await
    }

    /// Records the next boot of a clone, in place of the present profile.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub fn record_profile(&self, image: &str) -> Result<()> {
        self.components.profiles.record_next(image)
    }

    /// Ends a recording now: the blocks read so far are the profile, which is kept a moment later. False if
    /// there was no recording.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub fn end_recording(&self, image: &str) -> Result<bool> {
        self.components.profiles.end_recording(image)
    }

    /// Removes an image's boot profile.
    ///
    /// # Errors
    /// As [`Pool::profile`], and those of a write.
    pub async fn forget_profile(&self, image: &str) -> Result<()> {
        self.components.profiles.forget(image).await
    }

    /// Prefetches an image now; reads nothing if it has no profile.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub async fn prefetch(&self, image: &str) -> Result<Prefetched> {
        self.components.profiles.prefetch(image).await
    }

    /// Passes a copy of each block in the read cache to `receive`, until `receive` returns false. This may
    /// take long, and blocks the thread.
    pub fn copy_read_cache(&self, receive: &mut dyn FnMut(&CachedBlock) -> bool) {
        self.components.reader.cache.copy_all(receive);
    }

    /// Adds a copy of a block, made by another process that had this pool open, to the read cache, unless it
    /// is damaged or would displace another block. Returns whether it was added.
    pub fn add_to_read_cache(&self, copy: &[u8; CachedBlock::SIZE]) -> bool {
        self.components.reader.cache.insert_copy(copy)
    }

    /// The classes of a disk's blocks, and the traffic of each.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn classes(&self, name: &str) -> Result<ClassesInfo> {
        Ok(self.components.catalogue.read().find(name)?.classes.info())
    }

    /// A disk to be scanned now.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn peek(&self, name: &str) -> Result<Peek> {
        self.components.classes.peek(name)
    }

    /// Waits for a disk that is to be scanned.
    pub async fn next_to_learn(&self) -> Peek {
        self.components.classes.next().await
    }

    /// Makes a desktop a persistent volume, which keeps everything written to it. Its guest may continue to
    /// use it.
    ///
    /// # Errors
    /// [`crate::Error::WrongKind`] if it is not a desktop; [`crate::Error::NoSpace`]: it is still a desktop.
    pub async fn persist(&self, name: &str, sync: SyncMode) -> Result<DiskInfo> {
        let _admin = self.components.editor.lock.lock().await;
        self.components.desktops.persist(name, sync).await?;
        self.components.marks.recheck();
        self.disk(name)
    }

    /// Begins an export of a volume, an image, or `VOLUME@SNAPSHOT`.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; [`crate::Error::WrongKind`] for a desktop; [`crate::Error::MapDamaged`];
    /// [`crate::Error::NoSpace`] for a volume of a full pool.
    pub async fn begin_export(&self, name: &str) -> Result<Export> {
        export::begin(self, name, None).await
    }

    /// Works like [`Pool::begin_export`], for the changes since an earlier disk, which [`Pool::since`] names.
    ///
    /// # Errors
    /// The errors of [`Pool::begin_export`] and [`Pool::since`].
    pub async fn begin_export_since(&self, name: &str, earlier: Option<&str>) -> Result<Export> {
        export::begin(self, name, earlier).await
    }

    /// Begins to receive what another pool has sent; see the module `receive` for its guarantees.
    ///
    /// # Errors
    /// The disk from which the stream starts is not in the pool, the volume has changed since, a name is
    /// taken, or there is no room.
    pub async fn begin_receive(
        &self,
        request: ReceiveRequest,
    ) -> std::result::Result<Receiving, ReceiveError> {
        receive::begin(self, request).await
    }

    /// Makes what was received visible, durably, in one commit. After an error, everything that was received
    /// is discarded.
    ///
    /// # Errors
    /// As [`Pool::begin_receive`]; [`Error::InUse`](crate::Error::InUse) if a client has the volume open.
    pub async fn finish_receive(
        self: &Arc<Pool>,
        receiving: Receiving,
    ) -> std::result::Result<DiskInfo, ReceiveError> {
        receive::finish(self, receiving).await
    }

    /// Discards what was received.
    ///
    /// # Errors
    /// The errors of the removal of a disk.
    pub async fn abandon_receive(self: &Arc<Pool>, receiving: Receiving) -> Result<()> {
        self.abandon_import(receiving.into_hidden()).await
    }

    /// Opens an earlier disk for comparisons with the disk `name`: the name of a snapshot of the same volume,
    /// otherwise an image, or `VOLUME@SNAPSHOT`.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound); [`Error::WrongKind`](crate::Error::WrongKind) for a
    /// volume; [`Error::InUse`](crate::Error::InUse) while the earlier disk is being removed.
    pub fn since(&self, name: &str, earlier: &str) -> Result<Since> {
        export::compare(self, name, earlier)
    }

    /// Ends an export, and removes its copy of the disk.
    ///
    /// # Errors
    /// The errors of a commit. The next opening of the pool removes the copy.
    pub async fn end_export(self: &Arc<Pool>, export: Export) -> Result<()> {
        export::end(self, export).await
    }

    /// The limits of a disk, and its tenant.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn limits(&self, name: &str) -> Result<DiskLimits> {
        let disk = self.components.catalogue.read().find(name)?;
        Ok(limits::limits_of(&disk))
    }

    /// Replaces the limits and the tenant of a disk, also for requests of connected clients that wait. The
    /// caller has checked them ([`Limits::is_valid`]).
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn set_limits(&self, name: &str, new: &DiskLimits) -> Result<()> {
        limits::set_limits(self, name, new)
    }

    /// The tenants that have limits or disks, ordered by name.
    pub fn tenants(&self) -> Vec<TenantInfo> {
        limits::tenants(self)
    }

    /// Replaces the limits of a tenant; they apply to waiting requests too. The caller has checked the
    /// limits.
    pub fn set_tenant_limits(&self, name: &str, limits: Limits) {
        limits::set_tenant_limits(self, name, limits);
    }

    /// With `true`, admits all requests at once, also those that wait for a limit, until a call with `false`.
    /// A server uses this to finish its requests before another process replaces it.
    pub fn lift_limits(&self, lifted: bool) {
        limits::lift_limits(self, lifted);
    }
}
