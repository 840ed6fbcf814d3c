//! Counters: what guests asked for, what it cost, what it takes in memory. All since the pool was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Operations and bytes of one kind.
#[derive(Debug, Default)]
pub struct Counter {
    ops: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// Counts one operation.
    pub fn add(&self, bytes: u64) {
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
    /// What was counted.
    pub fn get(&self) -> Count {
        Count { ops: self.ops.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

/// Operations and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What guests did to one disk.
#[derive(Debug, Default)]
pub(crate) struct GuestCounters {
    pub read: Counter,
    pub write: Counter,
    pub discard: Counter,
    pub flush: Counter,
}

impl GuestCounters {
    pub(crate) fn get(&self) -> GuestStats {
        GuestStats {
            read: self.read.get(),
            write: self.write.get(),
            discard: self.discard.get(),
            flush: self.flush.get().ops,
        }
    }
}

/// Guest operations, of a disk or of all.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct GuestStats {
    /// Reads.
    pub read: Count,
    /// Writes, FUA included.
    pub write: Count,
    /// Discards and write-zeroes.
    pub discard: Count,
    /// Flushes.
    pub flush: u64,
}

/// Store operations.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StoreStats {
    /// Reads.
    pub read: Count,
    /// Appends and superblock writes.
    pub write: Count,
    /// Syncs.
    pub sync: u64,
    /// Deleted objects.
    pub delete: u64,
}

/// Hits and misses of a cache, and what it holds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CacheStats {
    /// Look-ups that found it.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Bytes held, overhead included.
    pub bytes: u64,
    /// The budget in bytes.
    pub budget: u64,
}

/// The whole pool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PoolStats {
    /// Guest operations of all disks, deleted ones included.
    pub guest: GuestStats,
    /// Store operations.
    pub store: StoreStats,
    /// The read cache.
    pub read_cache: CacheStats,
    /// The map cache.
    pub map_cache: CacheStats,
    /// Bytes in write buffers that are not yet durable.
    pub dirty_bytes: u64,
    /// Bytes that all segments occupy on the store.
    pub stored_bytes: u64,
    /// Room in the store in all.
    pub store_total_bytes: u64,
    /// Room in the store that is free.
    pub store_free_bytes: u64,
    /// Volumes, snapshots, images.
    pub disks: u64,
    /// Segments.
    pub segments: u64,
    /// Sequence number of the last durable batch.
    pub seq: u64,
    /// Commits since the pool was opened.
    pub commits: u64,
    /// Checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// Blocks whose checksum did not match.
    pub damaged_blocks: u64,
    /// Batches replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Milliseconds that recovery took.
    pub recovery_ms: u64,
}

/// A count of the store's meter.
pub(crate) fn count(c: forebay_store::OpCount) -> Count {
    Count { ops: c.ops, bytes: c.bytes }
}
