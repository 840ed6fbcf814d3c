//! An open pool: opening and closing it, attaching disks, and its counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

use forebay_format::{Mark, SegmentId, Stream};
use forebay_store::{Capacity, Metered, Store};

use super::health::PoolHealth;
use crate::components::Components;
use crate::disk::Disk;
use crate::handle::DiskHandle;
use crate::limit::Tenant;
use crate::limits::ATTACH_WAIT;
use crate::recovery::{MemoryLoss, Mode, OnLoss, TakenOver, recover};
use crate::stats::{StoreStats, count};
use crate::sync::Mutex;
use crate::text::shorten;
use crate::{Client, DiskGuestStats, DiskStats, Error, Host, Memory, PoolConfig, PoolStats, Result};

/// An open pool.
pub struct Pool {
    pub(super) components: Components,
    /// The tenants of disks, by name.
    pub(super) tenants: Mutex<BTreeMap<String, Arc<Tenant>>>,
    recovered_batches: u64,
    recovery_ms: u64,
    memory_identity: u64,
    opening_identity: u64,
}

#[cfg(test)]
impl Pool {
    pub(crate) fn reclaimer(&self) -> &crate::reclaim::Reclaimer {
        &self.components.reclaimer
    }
}

impl Drop for Pool {
    /// Leaves the retained memory as a crash does, since the pool was dropped without being closed.
    fn drop(&mut self) {
        self.components.cx.retained.leave();
    }
}

impl Pool {
    /// Opens the pool on `store`; creates one if the store is empty.
    ///
    /// # Errors
    /// [`Error::Format`] if the pool on the store is damaged, of another program or of a newer format;
    /// [`Error::LogDamaged`] if flushed writes would be lost; [`Error::Store`] if the store cannot be read or
    /// written.
    pub async fn open(store: Arc<dyn Store>, host: Arc<dyn Host>, config: PoolConfig) -> Result<Arc<Pool>> {
        let clock = host.clone();
        let store = Arc::new(Metered::new(store, Arc::new(move || clock.now())));
        let mut recovered = recover(store, host, config, Mode::Own, OnLoss::Refuse).await?;
        let warm = std::mem::take(&mut recovered.warm);
        // Dropped only after the retained memory was left, if the opening fails: the memory stays as it was.
        let mut taken = std::mem::take(&mut recovered.taken);
        let (recovered_batches, recovery_ms) = (recovered.batches, recovered.took.as_millis() as u64);
        let next_segment = recovered.log.next_segment();
        let (components, tenants) = (Components::assemble(recovered), Mutex::default());
        let memory_identity = memory_identity(&components, &taken);
        components.catalogue.read().iter().for_each(|disk| disk.forget_replacements());
        let opening_identity = random_identity(&components);
        let pool = Arc::new(Pool {
            components,
            tenants,
            recovered_batches,
            recovery_ms,
            memory_identity,
            opening_identity,
        });
        // Reserves room before the upkeep task starts, for which unknown room would look like a full store.
        pool.components.committer.reserve_room().await?;
        taken.dirty.iter().for_each(|(disk, cost)| pool.components.intake.restored(disk, *cost));
        pool.start(warm, next_segment);
        if let Err(e) = pool.prepare(&mut taken).await {
            pool.components.cx.latch(&e);
            pool.stop().await;
            return Err(e);
        }
        Ok(pool)
    }

    /// Prepares the pool after the background tasks were started, and before any client is served.
    async fn prepare(self: &Arc<Pool>, taken: &mut TakenOver) -> Result<()> {
        let Components { cx, classes, profiles, desktops, marks, .. } = &self.components;
        // Marks are settled before desktops are reset.
        marks.settle(&taken.loss, std::mem::take(&mut taken.damaged_pages)).await?;
        cx.host.spawn("marks", Box::pin(marks.clone().mark_loop()));
        self.remove_imports().await?;
        desktops.restore(std::mem::take(&mut taken.valid), taken.loss.reason().is_some()).await?;
        cx.host.spawn("resets", Box::pin(desktops.clone().reset_loop()));
        profiles.prefetch_all_images();
        cx.host.spawn("classes", Box::pin(classes.clone().load()));
        self.components.used.request_all();
        Ok(())
    }

    /// The components of the pool.
    #[cfg(test)]
    pub(crate) fn components(&self) -> &Components {
        &self.components
    }

    /// Starts the background tasks.
    fn start(&self, warm: Vec<SegmentId>, next_segment: u32) {
        let Components { cx, intake, committer, reclaimer, desktops, .. } = &self.components;
        let commits = Box::pin(committer.clone().commit_loop());
        cx.host.spawn("commit", Box::pin(intake.driver().run(commits)));
        cx.host.spawn("cold writes", Box::pin(intake.clone().warm_loop()));
        cx.host.spawn("upkeep", Box::pin(reclaimer.clone().upkeep_loop()));
        cx.host.spawn("orphans", Box::pin(reclaimer.clone().find_orphans(next_segment)));
        let index = committer.clone();
        cx.host.spawn("index", Box::pin(async move { index.rebuild_index(warm).await }));
        cx.host.spawn("overflow", Box::pin(desktops.clone().overflow_loop()));
    }

    /// Commits, makes a checkpoint, stops the background tasks. Later requests fail with `Closed`.
    ///
    /// # Errors
    /// The error because of which acknowledged data did not become durable, or because of which the
    /// checkpoint failed.
    pub async fn close(&self) -> Result<()> {
        self.stop().await;
        let Components { committer, cx, .. } = &self.components;
        cx.check_latch()?;
        // Ending the segment writes its directory, from which the next start reads the fingerprints.
        let ended = committer.write_log().await?.end_segment(Stream::Data).await;
        committer.latching(ended)?;
        committer.checkpoint().await?;
        let mut log = committer.write_log().await?;
        log.discard_prepared().await;
        let memory = log.superblock().memory;
        // A superblock with another id names memory whose loss is not recorded yet.
        if !self.retains() && memory == cx.retained.id() {
            // The superblock no longer names the memory, so the caller may remove it without a recorded loss.
            let disowned = log.swap_superblock(|superblock| superblock.memory = 0).await;
            committer.latching(disowned)?;
        }
        Ok(())
    }

    /// Makes the last commit, and stops the background tasks.
    async fn stop(&self) {
        let Components { intake, reclaimer, cx, marks, caches, progress, .. } = &self.components;
        intake.close(|| marks.last_ops());
        marks.stop();
        caches.wake();
        caches.wake_resets();
        let mut progress = progress.subscribe();
        // The sender exists as long as the pool.
        let _ = progress.wait_for(|p| p.stopped).await;
        // The memory now holds only writes to desktops, and writes for which the store has no room.
        cx.retained.leave();
        reclaimer.stop().await;
    }

    /// Whether the retained memory holds something that the next opening needs. If this is false after
    /// [`Pool::close`], the memory may be removed.
    pub fn retains(&self) -> bool {
        !self.components.cx.retained.is_empty()
    }

    /// Works like [`Pool::attach_as`], for a client of this host whose age is unknown.
    ///
    /// # Errors
    /// The errors of [`Pool::attach_as`].
    pub fn attach(&self, name: &str) -> Result<Arc<DiskHandle>> {
        self.attach_as(name, Client::Local { started_ms: None })
    }

    /// Opens a disk by its export name. The handle counts as a client until it is dropped, or as many as
    /// [`DiskHandle::set_clients`] says.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::InUse`]; [`Error::MemoryLost`] if the client may have had writes
    /// answered that are lost; [`Error::Resetting`], for which [`Pool::attach_when_reset`] waits.
    pub fn attach_as(&self, name: &str, client: Client) -> Result<Arc<DiskHandle>> {
        self.components.cx.check_fenced()?;
        let disk = self.components.catalogue.read().find(name)?;
        self.components.marks.check(&disk, client, name)?;
        self.attach_disk(disk, name, client)
    }

    /// Opens a disk for the pool itself, or for a front end, without a client: so writes are not marked.
    pub(super) fn open_without_client(&self, disk: Arc<Disk>, name: String) -> Result<Arc<DiskHandle>> {
        disk.attach(&name)?;
        let Components { metadata, marks, .. } = &self.components;
        Ok(Arc::new(DiskHandle::new(metadata.clone(), marks.clone(), disk, name, None)))
    }

    fn attach_disk(&self, disk: Arc<Disk>, name: &str, client: Client) -> Result<Arc<DiskHandle>> {
        if disk.attach(name)? == 1 {
            self.components.profiles.on_first_attach(&disk);
        }
        let Components { metadata, marks, .. } = &self.components;
        let id = disk.id();
        let handle = DiskHandle::new(metadata.clone(), marks.clone(), disk, name.to_owned(), Some(client));
        // Since the look-up, the disk may have been renamed or deleted, which required that it had no client.
        match self.components.catalogue.read().find(name)?.id() == id {
            true => Ok(Arc::new(handle)),
            false => Err(Error::NotFound(shorten(name))),
        }
    }

    /// Works like [`Pool::attach_as`], also for a client that may have had writes answered that are lost: it
    /// sees the disk, but its requests fail with [`Error::MemoryLost`] until an administrator resumes the
    /// disk.
    ///
    /// # Errors
    /// The errors of [`Pool::attach_as`], apart from [`Error::MemoryLost`].
    pub fn attach_visible(&self, name: &str, client: Client) -> Result<Arc<DiskHandle>> {
        let disk = self.components.catalogue.read().find(name)?;
        let refused = self.components.marks.check(&disk, client, name).is_err();
        let handle = self.attach_disk(disk, name, client)?;
        if refused {
            handle.refuse_until_resumed();
        }
        Ok(handle)
    }

    /// Works like [`Pool::attach_when_reset_as`], for a client of this host whose age is unknown.
    ///
    /// # Errors
    /// The errors of [`Pool::attach_when_reset_as`].
    pub async fn attach_when_reset(&self, name: &str) -> Result<Arc<DiskHandle>> {
        self.attach_when_reset_as(name, Client::Local { started_ms: None }).await
    }

    /// Opens a disk by its export name, as [`Pool::attach_as`] does. If it is a desktop that is being reset
    /// after its last client, waits for the reset, at most 10 seconds.
    ///
    /// # Errors
    /// The errors of [`Pool::attach_as`], [`Error::Resetting`] after that time, [`Error::Latched`] and
    /// [`Error::Closed`].
    pub async fn attach_when_reset_as(&self, name: &str, client: Client) -> Result<Arc<DiskHandle>> {
        let mut progress = self.components.progress.subscribe();
        let mut timeout = self.components.cx.host.sleep(ATTACH_WAIT);
        loop {
            progress.mark_unchanged();
            match self.attach_as(name, client) {
                Err(Error::Resetting(_)) => self.components.cx.check_running()?,
                other => return other,
            }
            tokio::select! {
                biased;
                changed = progress.changed() => changed.map_err(|_| Error::Closed)?,
                () = &mut timeout => return self.attach_as(name, client),
            }
        }
    }

    /// Identity of the memory that holds answered writes which are not durable. If a later opening of the
    /// pool has the same identity, no such write was lost in between. If the identity differs, such writes
    /// may be lost.
    pub fn memory_identity(&self) -> u64 {
        self.memory_identity
    }

    /// Identity of this opening of the pool: no other opening has it.
    pub fn opening_identity(&self) -> u64 {
        self.opening_identity
    }

    /// Waits until this server has lost the pool because another server has opened it. Then every request
    /// fails with [`Error::Fenced`], and the process should end.
    pub async fn fenced(&self) {
        self.components.cx.fenced().await;
    }

    /// The thread that now makes a commit for its client ([`commit_here`](crate::commit_here)). The store may
    /// block this thread.
    pub fn helper(&self) -> Option<ThreadId> {
        self.components.intake.driver().helper()
    }

    /// Checks the free room of the store now, and returns it. Without this, an idle pool does not notice
    /// other writers.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn check_room(&self) -> Result<Capacity> {
        self.components.committer.check_space().await
    }

    /// What is wrong with the pool. Does not access the store.
    pub async fn health(&self) -> PoolHealth {
        PoolHealth::of(&self.components).await
    }

    /// Whether this server has lost the pool.
    pub fn is_fenced(&self) -> bool {
        self.components.cx.is_fenced()
    }

    /// Whether the pool accepts no changes any more: it has failed, or another server has opened it. A change
    /// that was not reported as done may be durable nevertheless.
    pub fn has_stopped(&self) -> bool {
        self.components.cx.check_latch().is_err()
    }

    /// Use of the memory whose budgets can be changed. Servers call this often, so it also updates the advice
    /// on the read cache.
    pub fn memory(&self) -> Memory {
        self.components.reader.cache.tick(self.components.cx.host.now());
        let cache = self.components.reader.cache.stats();
        Memory {
            read_cache: cache.bytes,
            read_cache_budget: cache.budget,
            desktops: self.components.caches.cached(),
            desktops_budget: self.components.caches.budget(),
        }
    }

    /// Changes the budgets of the read cache and of all desktops. On return the read cache is within its new
    /// budget; desktops overflow until they are within their budget.
    pub fn set_memory(&self, read_cache: u64, desktops: u64) {
        if self.components.reader.cache.stats().budget != read_cache {
            self.components.reader.cache.set_budget(read_cache);
        }
        self.components.caches.set_budget(desktops);
    }

    /// Threshold for the free bytes of a file system of `total` bytes that holds the pool. Below the
    /// threshold the pool is low on room, and other writers to the file system should stop.
    pub fn low_threshold(&self, total: u64) -> u64 {
        self.components.space.reserve.low_threshold(total)
    }

    /// Counters of the pool.
    pub async fn stats(&self) -> PoolStats {
        let log = self.components.committer.log_figures();
        let room = self.components.reader.source.store.capacity().await.ok();
        let (mut guest, disks) = (self.components.committer.retired(), {
            let catalogue = self.components.catalogue.read();
            catalogue.visible().count() as u64
        });
        self.components.catalogue.read().visible().for_each(|d| guest += d.guest.get());
        let counts = self.components.reader.source.store.counts();
        PoolStats {
            guest,
            store: StoreStats {
                read: count(counts.read),
                write: count(counts.write),
                sync: counts.sync,
                delete: counts.delete,
            },
            read_cache: self.components.reader.cache.stats(),
            read_cache_evictions: self.components.reader.cache.evictions(),
            read_cache_advice: self.components.reader.cache.advice(self.components.cx.host.now()),
            class_reads: self.components.reader.class_reads(),
            map_cache: self.components.reader.nodes.cache.stats(),
            dirty_bytes: self.components.space.buffers.dirty(),
            stored_bytes: log.stored_bytes,
            store_total_bytes: room.map_or(0, |r| r.total),
            store_free_bytes: room.map_or(0, |r| r.free),
            store_reserve_bytes: room.map_or(0, |r| self.components.space.reserve.bytes(r.total)),
            disks,
            segments: log.segments,
            seq: log.seq,
            commits: self.components.committer.commits(),
            commit: self.components.committer.commit_stats(),
            checkpoints: self.components.committer.checkpoints().ops,
            damaged_blocks: self.components.reader.source.damage.get().ops,
            recovered_batches: self.recovered_batches,
            recovery_ms: self.recovery_ms,
            reduction: self.components.committer.reduction(),
            desktops: self.components.desktops.stats(),
            room: self.components.space.store.state(),
            space: self.components.reclaimer.pool_space(),
            moved_bytes: self.components.space.reclaims.moved.get().bytes,
            freed_bytes: self.components.space.reclaims.freed.get().bytes,
        }
    }

    /// Counters of all disks except imports under way. Guests do not wait for this call.
    pub fn guest_stats(&self) -> Vec<DiskGuestStats> {
        let disks: Vec<_> = {
            let catalogue = self.components.catalogue.read();
            catalogue.visible().map(|disk| (catalogue.export_name(disk), disk.clone())).collect()
        };
        disks.into_iter().map(guest_stats_of).collect()
    }

    /// Counters of at most `most` disks whose names follow `name` in the order of names, so that a list of
    /// all disks can be made in pages. No disk needs to have the name `name`.
    pub fn guest_stats_after(&self, name: &str, most: usize) -> Vec<DiskGuestStats> {
        let disks: Vec<_> = {
            let catalogue = self.components.catalogue.read();
            catalogue.after(name).take(most).map(|(name, disk)| (name.clone(), disk.clone())).collect()
        };
        disks.into_iter().map(guest_stats_of).collect()
    }

    /// Counters and space of one disk.
    pub fn disk_stats(&self, name: &str) -> Result<DiskStats> {
        let disk = self.components.catalogue.read().find(name)?;
        let space = self.components.reclaimer.disk_space(disk.id());
        Ok(DiskStats {
            guest: disk.guest.get(),
            space,
            cached_bytes: disk.cached(),
            write_cache: disk.write_cache(),
            overflow: disk.overflows(),
            limited: disk.limiter.waited.get(),
        })
    }
}

/// The counters of a disk with this export name.
fn guest_stats_of((name, disk): (String, Arc<Disk>)) -> DiskGuestStats {
    DiskGuestStats {
        name,
        role: disk.role(),
        clients: disk.clients(),
        guest: disk.guest.get(),
        cached_bytes: disk.cached(),
        memory_lost: matches!(disk.record().mark, Mark::Lost { .. }),
        map_damaged: disk.has_damaged_map(),
    }
}

fn random_identity(components: &Components) -> u64 {
    let mut identity = [0; 8];
    components.cx.host.random(&mut identity);
    u64::from_le_bytes(identity)
}

/// The identity of the memory of an opening, see [`Pool::memory_identity`].
fn memory_identity(components: &Components, taken: &TakenOver) -> u64 {
    let cx = &components.cx;
    match taken.loss {
        // A memory that lost writes of some disks keeps its id.
        MemoryLoss::Some(_) => random_identity(components),
        MemoryLoss::Nothing | MemoryLoss::All(_) => cx.retained.id(),
    }
}
