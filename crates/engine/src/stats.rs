//! Counters of guest operations, store operations and memory use, since the pool was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// A counter of operations and bytes of one kind.
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
    /// Counts one operation; returns the previous number of operations.
    pub fn next(&self, bytes: u64) -> u64 {
        self.bytes.fetch_add(bytes, Relaxed);
        self.ops.fetch_add(1, Relaxed)
    }
    /// Begins again with nothing.
    pub fn clear(&self) {
        self.bytes.store(0, Relaxed);
        self.ops.store(0, Relaxed);
    }
    /// The current count.
    pub fn get(&self) -> Count {
        Count { ops: self.ops.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

/// A count of operations and of their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of operations.
    pub ops: u64,
    /// Bytes of these operations.
    pub bytes: u64,
}

/// Guest operations on one disk.
#[derive(Debug, Default)]
pub(crate) struct GuestCounters {
    pub read: Counter,
    pub write: Counter,
    pub discard: Counter,
    pub flush: Counter,
}

impl GuestCounters {
    /// Begins again with nothing: an import, whose writes are not those of guests, has become an image.
    pub(crate) fn clear(&self) {
        [&self.read, &self.write, &self.discard, &self.flush].into_iter().for_each(Counter::clear);
    }
    pub(crate) fn get(&self) -> GuestStats {
        GuestStats {
            read: self.read.get(),
            write: self.write.get(),
            discard: self.discard.get(),
            flush: self.flush.get().ops,
        }
    }
}

/// Guest operations on one disk or on all disks.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct GuestStats {
    /// Reads by clients.
    pub read: Count,
    /// Writes, FUA included, and copies.
    pub write: Count,
    /// Discards and write-zeroes by clients.
    pub discard: Count,
    /// Flushes by clients.
    pub flush: u64,
}

/// Operations on the store.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StoreStats {
    /// Reads from the store.
    pub read: Count,
    /// Appends and superblock writes.
    pub write: Count,
    /// Syncs of the store.
    pub sync: u64,
    /// Objects deleted from the store.
    pub delete: u64,
}

/// Figures of a cache: hits, misses and size.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CacheStats {
    /// Look-ups in the cache that found their key.
    pub hits: u64,
    /// Look-ups in the cache that did not find their key.
    pub misses: u64,
    /// Bytes of the cache in memory, overhead included.
    pub bytes: u64,
    /// The budget of the cache in bytes.
    pub budget: u64,
}

/// What a read cache of another size would save.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CacheAdvice {
    /// The size of the larger cache in bytes.
    pub size: u64,
    /// By how many percent the cache would be larger than the present cache.
    pub more_percent: u64,
    /// Blocks that were read from the store and would have been in a cache of this size: an estimate, since
    /// the pool was opened or the size of the sample changed.
    pub saved_reads: u64,
    /// `saved_reads` for each second of the last minutes; `None` if that is not known yet.
    pub saved_reads_per_s: Option<f64>,
}

/// Reads of guests by the class of their first block, on disks whose classes are known: an estimate from one
/// of 16 reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClassReads {
    /// The class of the first block.
    pub class: forebay_guest::Class,
    /// Reads that were served from RAM.
    pub hits: u64,
    /// Reads that waited for the store.
    pub misses: u64,
}

/// Data reduction since the pool was opened, and the state of the dedup index.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ReductionStats {
    /// Number of blocks that were all zero.
    pub zero_blocks: u64,
    /// Blocks whose content equalled the disk's current content.
    pub unchanged_blocks: u64,
    /// Number of blocks that were stored already.
    pub duplicate_blocks: u64,
    /// Number of blocks that were stored.
    pub new_blocks: u64,
    /// Bytes that the stored blocks took, after compression.
    pub new_bytes: u64,
    /// Number of fingerprints in the index.
    pub index_entries: u64,
    /// Bytes of the index, its cache of directories included.
    pub index_bytes: u64,
    /// The budget of the index in bytes.
    pub index_budget: u64,
    /// The index keeps one of `2^index_sampling` fingerprints.
    pub index_sampling: u8,
    /// Segments whose fingerprints are still to be read, after the pool was opened.
    pub index_segments_left: u64,
}

/// Memory whose budgets can be changed while a pool is open, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the read cache, including all overhead.
    pub read_cache: u64,
    /// The budget of the read cache.
    pub read_cache_budget: u64,
    /// Bytes of the write caches of desktops.
    pub desktops: u64,
    /// The budget of the desktops' write caches.
    pub desktops_budget: u64,
}

/// Measurements and decisions of the commit scheduler.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CommitStats {
    /// Current cost of a commit on the store (an append and a sync), in microseconds.
    pub cost_us: u64,
    /// Commits that began because data reached the maximum age.
    pub by_age: u64,
    /// Commits that began because a request waited, or because a write buffer was nearly full.
    pub by_demand: u64,
    /// Microseconds that commits by demand were delayed to coalesce, in total.
    pub delayed_us: u64,
    /// Recent mean number of requests that wait for a commit by demand.
    pub waiting: f64,
}

/// Desktops, and the state of their writes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DesktopStats {
    /// Number of desktops.
    pub count: u64,
    /// Bytes in the write caches of all desktops.
    pub cached_bytes: u64,
    /// Limit of `cached_bytes`.
    pub budget: u64,
    /// Number of overflows, and the bytes of RAM that they freed.
    pub overflow: Count,
}

/// Space usage, as of the last mark.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SpaceStats {
    /// Time of the mark, in Unix milliseconds.
    pub as_of_ms: u64,
    /// Sum of the sizes of all disks, in bytes.
    pub logical_bytes: u64,
    /// Blocks mapped by disks, counted once per disk, times 4096.
    pub mapped_bytes: u64,
    /// Number of distinct blocks that disks map, times 4096.
    pub unique_bytes: u64,
    /// Bytes on the store of live blocks and map nodes.
    pub live_bytes: u64,
    /// Bytes on the store that a requested reclaim would free. Less than what is dead: a segment with next to
    /// no garbage is not worth moving, one that is being written cannot be moved, and data that damage holds
    /// back must be kept.
    pub reclaimable_bytes: u64,
    /// Number of disks whose block maps are partly unreadable. Their figures cover only the readable part,
    /// and nothing older than the damage is freed.
    pub damaged_disks: u64,
}

/// Level of free room in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Room {
    /// The store has enough free room.
    #[default]
    Ok,
    /// Free room is low: an administrator should act.
    Low,
    /// The store has no room for data: writes are refused.
    Full,
}

/// Statistics of the whole pool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PoolStats {
    /// Guest operations of all disks, deleted ones included. Those of imports are not included.
    pub guest: GuestStats,
    /// Operations on the store.
    pub store: StoreStats,
    /// Figures of the read cache.
    pub read_cache: CacheStats,
    /// Blocks that were evicted from the read cache.
    pub read_cache_evictions: u64,
    /// What larger sizes of the read cache would save; empty before that is known.
    pub read_cache_advice: Vec<CacheAdvice>,
    /// Reads by the class of their first block.
    pub class_reads: Vec<ClassReads>,
    /// Figures of the map cache.
    pub map_cache: CacheStats,
    /// Bytes in write buffers that are not yet durable.
    pub dirty_bytes: u64,
    /// Bytes that all segments occupy on the store.
    pub stored_bytes: u64,
    /// Total capacity of the store.
    pub store_total_bytes: u64,
    /// Free room in the store.
    pub store_free_bytes: u64,
    /// The part of the free room that is kept for deletions, checkpoints and cleaning.
    pub store_reserve_bytes: u64,
    /// Number of volumes, snapshots and images.
    pub disks: u64,
    /// Number of segments in the store.
    pub segments: u64,
    /// Sequence number of the last durable batch.
    pub seq: u64,
    /// Commits since the pool was opened.
    pub commits: u64,
    /// Measurements and decisions of the commit scheduler.
    pub commit: CommitStats,
    /// Checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// Number of blocks whose checksum did not match.
    pub damaged_blocks: u64,
    /// Number of batches that were replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Duration of the recovery in milliseconds.
    pub recovery_ms: u64,
    /// Level of free room.
    pub room: Room,
    /// Figures of data reduction.
    pub reduction: ReductionStats,
    /// Figures of desktops.
    pub desktops: DesktopStats,
    /// Space usage; `None` before the first mark.
    pub space: Option<SpaceStats>,
    /// Bytes that the cleaner has written since the pool was opened.
    pub moved_bytes: u64,
    /// Bytes that were freed since the pool was opened.
    pub freed_bytes: u64,
}

/// Operations and space of one disk.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskStats {
    /// Guest operations since the pool was opened.
    pub guest: GuestStats,
    /// Space usage of the disk, as of the last mark.
    pub space: Option<DiskSpace>,
    /// For a desktop: bytes in its write cache.
    pub cached_bytes: u64,
    /// For a desktop: limit of its write cache in bytes; otherwise 0.
    pub write_cache: u64,
    /// For a desktop: its overflows since the pool was opened, and the bytes of RAM that they freed.
    pub overflow: Count,
    /// Number of requests that waited because of a limit, and the microseconds that they waited.
    pub limited: Count,
}

/// A disk and its counters since the pool was opened.
#[derive(Debug, Clone)]
pub struct DiskGuestStats {
    /// Export name of the disk.
    pub name: String,
    /// Role of the disk.
    pub role: forebay_format::Role,
    /// Clients that have it open: NBD connections and iSCSI sessions.
    pub clients: usize,
    /// Guest operations on the disk.
    pub guest: GuestStats,
    /// For a desktop: bytes in its write cache.
    pub cached_bytes: u64,
    /// Acknowledged writes were lost with the memory that held them.
    pub memory_lost: bool,
    /// A node of the disk's block map cannot be read.
    pub map_damaged: bool,
}

/// Space usage of one disk, as of the last mark.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskSpace {
    /// Blocks that the disk maps, times 4096.
    pub mapped_bytes: u64,
    /// Bytes on the store that no other disk references: deleting the disk would free them. In a large pool,
    /// the figure is as of an earlier mark.
    pub exclusive_bytes: u64,
    /// When `exclusive_bytes` was found, in Unix milliseconds.
    pub exclusive_as_of_ms: u64,
}

/// Progress of a reclaim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct GcProgress {
    /// The current phase of reclaiming.
    pub phase: GcPhase,
    /// Completed steps of this phase: map nodes read by the mark, or segments cleaned.
    pub done: u64,
    /// Total steps of this phase; 0 for the mark, which does not know them.
    pub total: u64,
    /// Bytes that the reclaim has freed so far.
    pub freed_bytes: u64,
    /// Bytes that the reclaim has moved so far.
    pub moved_bytes: u64,
}

/// A phase of reclaiming.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GcPhase {
    /// The mark finds live slots.
    #[default]
    Mark,
    /// The cleaner moves live slots out of sparse segments.
    Clean,
    /// The reclaim is complete.
    Done,
}

/// Converts a count of the store's meter.
pub(crate) fn count(c: forebay_store::OpCount) -> Count {
    Count { ops: c.ops, bytes: c.bytes }
}

impl std::ops::AddAssign for GuestStats {
    fn add_assign(&mut self, other: GuestStats) {
        let add = |a: &mut Count, b: Count| {
            a.ops += b.ops;
            a.bytes += b.bytes;
        };
        add(&mut self.read, other.read);
        add(&mut self.write, other.write);
        add(&mut self.discard, other.discard);
        self.flush += other.flush;
    }
}
