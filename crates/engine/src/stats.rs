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
        self.next(bytes);
    }
    /// Counts one operation; how many there were before.
    pub fn next(&self, bytes: u64) -> u64 {
        self.bytes.fetch_add(bytes, Relaxed);
        self.ops.fetch_add(1, Relaxed)
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
    /// Writes, FUA included, and copies.
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

/// What was not stored because it need not be, since the pool was opened, and what finds it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ReductionStats {
    /// Blocks that were all zero.
    pub zero_blocks: u64,
    /// Blocks that were as the disk had them already.
    pub unchanged_blocks: u64,
    /// Blocks that were stored already.
    pub duplicate_blocks: u64,
    /// Blocks that were stored.
    pub new_blocks: u64,
    /// Bytes that the stored blocks took, compressed or not.
    pub new_bytes: u64,
    /// Fingerprints in the index.
    pub index_entries: u64,
    /// Bytes of the index, its cache of directories included.
    pub index_bytes: u64,
    /// Its budget.
    pub index_budget: u64,
    /// The index keeps one of `2^index_sampling` fingerprints.
    pub index_sampling: u8,
    /// Segments whose fingerprints are still to be read, after the pool was opened.
    pub index_segments_left: u64,
}

/// Memory whose budgets can be changed while a pool is open, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// What the read cache takes, all overhead included.
    pub read_cache: u64,
    /// Its budget.
    pub read_cache_budget: u64,
    /// What the write caches of desktops take.
    pub desktops: u64,
    /// Their budget.
    pub desktops_budget: u64,
}

/// What the commit scheduler sees and decides.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CommitStats {
    /// Microseconds that a commit costs on the store at present: an append and a sync.
    pub cost_us: u64,
    /// Commits that began because data was of age.
    pub by_age: u64,
    /// Commits that began because somebody waited, or a buffer filled up.
    pub by_demand: u64,
    /// Microseconds that these waited for others, in all.
    pub delayed_us: u64,
    /// How many guests lately waited for each of them.
    pub waiting: f64,
}

/// Desktops, and what of their writes is where.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DesktopStats {
    /// How many there are.
    pub count: u64,
    /// Bytes in their write caches.
    pub cached_bytes: u64,
    /// Most bytes that may be in there.
    pub budget: u64,
    /// Times that one let something overflow, and the bytes that it had taken in RAM.
    pub overflow: Count,
}

/// Where the space goes, as the last mark found it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SpaceStats {
    /// When that was, in Unix milliseconds.
    pub as_of_ms: u64,
    /// Sizes of all disks.
    pub logical_bytes: u64,
    /// Blocks that disks hold, each as often as disks hold it, times 4096.
    pub mapped_bytes: u64,
    /// Distinct blocks that disks hold, times 4096.
    pub unique_bytes: u64,
    /// Bytes on the store of what disks hold, and of their maps.
    pub live_bytes: u64,
    /// Bytes on the store that hold nothing; a cleaning frees most of them. What must be kept because of damage is
    /// not among them.
    pub reclaimable_bytes: u64,
    /// Disks of whose block maps something could not be read: their figures are of the rest, and nothing older than
    /// the damage is freed.
    pub damaged_disks: u64,
}

/// How much room the store has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Room {
    /// Enough.
    #[default]
    Ok,
    /// So little that somebody should look.
    Low,
    /// None for data: writes are refused.
    Full,
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
    /// What the commit scheduler sees and decides.
    pub commit: CommitStats,
    /// Checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// Blocks whose checksum did not match.
    pub damaged_blocks: u64,
    /// Batches replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Milliseconds that recovery took.
    pub recovery_ms: u64,
    /// How much room there is.
    pub room: Room,
    /// What reduction did.
    pub reduction: ReductionStats,
    /// Desktops.
    pub desktops: DesktopStats,
    /// Where the space goes; none before the first mark.
    pub space: Option<SpaceStats>,
    /// Bytes that the cleaner has written since the pool was opened.
    pub moved_bytes: u64,
    /// Bytes that were freed since the pool was opened.
    pub freed_bytes: u64,
}

/// What one disk did and holds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskStats {
    /// Guest operations since the pool was opened.
    pub guest: GuestStats,
    /// What it holds, as the last mark found it.
    pub space: Option<DiskSpace>,
    /// Of a desktop: bytes in its write cache.
    pub cached_bytes: u64,
}

/// What one disk holds, as the last mark found it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskSpace {
    /// Blocks that it holds, times 4096.
    pub mapped_bytes: u64,
    /// Bytes on the store that only it holds: what deleting it would free.
    pub exclusive_bytes: u64,
}

/// How far a reclaiming is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct GcProgress {
    /// What is being done.
    pub phase: GcPhase,
    /// Steps done of this phase: disks marked, or segments cleaned.
    pub done: u64,
    /// Steps of this phase in all.
    pub total: u64,
    /// Bytes freed so far.
    pub freed_bytes: u64,
    /// Bytes moved so far.
    pub moved_bytes: u64,
}

/// A phase of reclaiming.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GcPhase {
    /// Finding what is live.
    #[default]
    Mark,
    /// Moving what is live out of segments with little of it.
    Clean,
    /// All done.
    Done,
}

/// A count of the store's meter.
pub(crate) fn count(c: forebay_store::OpCount) -> Count {
    Count { ops: c.ops, bytes: c.bytes }
}
