//! The pool: opening, closing, and everything an administrator does to disks.

use std::sync::Arc;

use forebay_format::{DiskId, Role, SyncMode};
use forebay_store::Store;
use serde::Serialize;

use crate::{Disk, Host, PoolStats, Result};

/// How a pool is run. All sizes in bytes.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Budget of the read cache.
    pub read_cache: u64,
    /// Budget of the map cache.
    pub map_cache: u64,
    /// Most dirty data that is held before writers wait.
    pub write_buffer: u64,
    /// Size at which new segments are sealed.
    pub segment_bytes: u32,
    /// Log bytes after which a checkpoint is made.
    pub checkpoint_bytes: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            read_cache: 1 << 30,
            map_cache: 128 << 20,
            write_buffer: 64 << 20,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 512 << 20,
        }
    }
}

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
}

/// One clone to be made.
#[derive(Debug, Clone)]
pub struct CloneRequest {
    /// Name of the new volume.
    pub name: String,
    /// Its durability.
    pub sync: SyncMode,
    /// RAM write cache of a desktop; 0 for an ordinary volume.
    pub write_cache: u64,
}

/// An open pool.
pub struct Pool {}

#[allow(clippy::todo, unused_variables)]
impl Pool {
    /// Opens the pool on `store`; makes one where the store is empty.
    pub async fn open(store: Arc<dyn Store>, host: Arc<dyn Host>, config: PoolConfig) -> Result<Arc<Pool>> {
        todo!()
    }
    /// Flushes, makes a checkpoint, stops the background tasks. Later requests fail with `Closed`.
    pub async fn close(&self) -> Result<()> {
        todo!()
    }
    /// All disks but imports under way, by name.
    pub fn disks(&self) -> Vec<DiskInfo> {
        todo!()
    }
    /// One disk: `NAME`, or `VOLUME@SNAPSHOT`.
    pub fn disk(&self, name: &str) -> Result<DiskInfo> {
        todo!()
    }
    /// Makes an empty volume.
    pub async fn create_volume(&self, name: &str, size: u64, sync: SyncMode) -> Result<DiskInfo> {
        todo!()
    }
    /// Makes clones of `source` (`IMAGE`, `VOLUME`, `VOLUME@SNAPSHOT`), all or none.
    pub async fn clone_disk(&self, source: &str, clones: &[CloneRequest]) -> Result<Vec<DiskInfo>> {
        todo!()
    }
    /// Makes a snapshot of a volume; it holds every write acknowledged before.
    pub async fn create_snapshot(&self, volume: &str, name: &str) -> Result<DiskInfo> {
        todo!()
    }
    /// Sets a volume back to one of its snapshots. Refused while clients are connected.
    pub async fn rollback(&self, volume: &str, snapshot: &str) -> Result<()> {
        todo!()
    }
    /// Sets a clone back to the image or snapshot it came from. Refused while clients are connected.
    pub async fn reset(&self, volume: &str) -> Result<()> {
        todo!()
    }
    /// Deletes a volume, an image, or `VOLUME@SNAPSHOT`; refused while it is in use or others depend on it.
    pub async fn delete(&self, name: &str) -> Result<()> {
        todo!()
    }
    /// Changes the size of a volume; shrinking discards what lies beyond.
    pub async fn resize(&self, volume: &str, size: u64) -> Result<()> {
        todo!()
    }
    /// Begins an import: a disk that only this handle knows, and that a crash or `abandon_import` removes.
    pub async fn begin_import(&self, name: &str, size: u64) -> Result<Arc<Disk>> {
        todo!()
    }
    /// Makes an import an image, durably.
    pub async fn finish_import(&self, import: Arc<Disk>) -> Result<DiskInfo> {
        todo!()
    }
    /// Removes an import.
    pub async fn abandon_import(&self, import: Arc<Disk>) -> Result<()> {
        todo!()
    }
    /// Opens a disk by its export name; it counts as a client until the handle is dropped.
    pub fn attach(&self, name: &str) -> Result<Arc<Disk>> {
        todo!()
    }
    /// Makes everything durable that was acknowledged so far.
    pub async fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Makes a checkpoint now.
    pub async fn checkpoint(&self) -> Result<()> {
        todo!()
    }
    /// Finds segments in which nothing is live, and frees them; returns the bytes freed.
    pub async fn reclaim(&self) -> Result<u64> {
        todo!()
    }
    /// The counters.
    pub async fn stats(&self) -> PoolStats {
        todo!()
    }
    /// What guests did to one disk since the pool was opened.
    pub fn disk_stats(&self, name: &str) -> Result<crate::GuestStats> {
        todo!()
    }
}
