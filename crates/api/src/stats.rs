//! Counters of guests, the store and the server in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CacheView, DiskSpaceView, LimitedView, ReadCacheView, ReductionView, RoomView, SpaceView};

/// A number of operations and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CountView {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

/// I/O of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct GuestView {
    /// Reads.
    pub read: CountView,
    /// Writes.
    pub write: CountView,
    /// Discards and write-zeroes.
    pub discard: CountView,
    /// Flushes.
    pub flush_ops: u64,
}

/// I/O of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// Reads.
    pub read: CountView,
    /// Appends and superblock writes.
    pub write: CountView,
    /// Syncs.
    pub sync_ops: u64,
    /// Deleted objects.
    pub delete_ops: u64,
}

/// Measurements and decisions of the commit scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CommitView {
    /// Current cost of a commit on the store, in microseconds.
    pub cost_us: u64,
    /// Commits started because dirty data reached its maximum age.
    pub by_age: u64,
    /// Commits started because a guest waited, or a buffer was full.
    pub by_demand: u64,
    /// Total microseconds for which commits on demand were delayed so that more guests share them.
    pub delayed_us: u64,
    /// Recent mean number of guests that waited for each commit on demand.
    pub waiting: f64,
}

/// `GET /stats`: the counters since the pool was opened.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// Guest operations of all disks. Those of imports do not count.
    pub guest: GuestView,
    /// Store operations.
    pub store: StoreView,
    /// Share of guest reads and writes that caused no separate store read or write; `None` before the first.
    /// 0 while the store did more operations than guests requested, because those of imports, reclaims and
    /// checkpoints count too.
    pub offload: Option<f64>,
    /// The read cache.
    pub read_cache: ReadCacheView,
    /// The map cache.
    pub map_cache: CacheView,
    /// Bytes that are not yet durable.
    pub dirty_bytes: u64,
    /// Resident memory of the server process.
    pub memory_bytes: u64,
    /// Bytes of all segments.
    pub stored_bytes: u64,
    /// Capacity of the store.
    pub store_total_bytes: u64,
    /// Free space of the store.
    pub store_free_bytes: u64,
    /// The part of the free space that is kept for deletions, checkpoints and reclaims.
    #[serde(default)]
    pub store_reserve_bytes: Option<u64>,
    /// The part of the store that is in use, of what writers can use: all but the reserve. 1 while writes
    /// fail; `None` if it is not known.
    #[serde(default)]
    pub store_in_use: Option<f64>,
    /// Volumes, snapshots and images.
    pub disks: u64,
    /// Segments.
    pub segments: u64,
    /// Sequence number of the last durable batch.
    pub seq: u64,
    /// Commits.
    pub commits: u64,
    /// The commit scheduler.
    pub commit: CommitView,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Blocks read with a checksum mismatch.
    pub damaged_blocks: u64,
    /// Batches replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Milliseconds that recovery took.
    pub recovery_ms: u64,
    /// State of the free space.
    pub room: RoomView,
    /// Data reduction.
    pub reduction: ReductionView,
    /// Desktops.
    pub desktops: DesktopsView,
    /// Use of space, as determined by the last mark; `None` before the first.
    pub space: Option<SpaceView>,
    /// Bytes that cleaning has rewritten since the pool was opened.
    pub moved_bytes: u64,
    /// Bytes freed since the pool was opened.
    pub freed_bytes: u64,
    /// Budget of the bytes that are not yet durable, above which writers wait.
    #[serde(default)]
    pub write_buffer_bytes: u64,
    /// Connections of guests.
    #[serde(default)]
    pub clients: ClientsView,
    /// Times of the requests of guests.
    #[serde(default)]
    pub latency: LatencyView,
}

/// `GET /stats/{name}`: guest I/O and space of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskStatsView {
    /// Guest operations since the pool was opened.
    #[serde(flatten)]
    pub guest: GuestView,
    /// Use of space, as determined by the last mark; `None` before the first.
    pub space: Option<DiskSpaceView>,
    /// For a desktop: bytes of its writes in RAM.
    pub cached_bytes: u64,
    /// For a desktop: most bytes of writes in RAM before some overflow to the store.
    #[serde(default)]
    pub write_cache_bytes: Option<u64>,
    /// For a desktop: overflows to the store since the pool was opened, and the RAM that their data occupied.
    #[serde(default)]
    pub overflow: Option<CountView>,
    /// Requests that waited for a limit of the disk or of its tenant.
    #[serde(default)]
    pub limited: LimitedView,
}

/// An element of `GET /activity`: a disk and its counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityView {
    /// Name; for a snapshot, `volume@snapshot`.
    pub name: String,
    /// Number of clients that have it open: NBD connections and iSCSI sessions.
    pub clients: usize,
    /// Guest operations since the pool was opened.
    #[serde(flatten)]
    pub guest: GuestView,
    /// For a desktop: bytes of its writes in RAM.
    pub cached_bytes: u64,
}

/// Desktops and their write caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DesktopsView {
    /// Number of desktops.
    pub count: u64,
    /// Bytes in all write caches.
    pub cached_bytes: u64,
    /// Budget of all write caches together.
    pub budget_bytes: u64,
    /// Overflows to the store, and the RAM that their data occupied.
    pub overflow: CountView,
}

/// Times from the receipt of a request until its reply was ready, since the server was started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    /// Upper bounds of the buckets in microseconds. One further bucket has no bound.
    pub bounds_us: Vec<u64>,
    /// The requests of each front end and path.
    pub paths: Vec<PathLatencyView>,
}

/// The times of the requests of a front end that took a path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PathLatencyView {
    /// `nbd` or `iscsi`.
    pub front_end: String,
    /// How they were served: `ram` and `store` are reads, `buffered` and `durable` are changes.
    pub path: String,
    /// Number of requests in each bucket.
    pub buckets: Vec<u64>,
    /// Sum of their times in microseconds.
    pub sum_us: u64,
}

/// Connections of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ClientsView {
    /// Connections, including those that are negotiating.
    pub connections: u64,
    /// iSCSI sessions at targets.
    pub iscsi_sessions: u64,
    /// NVMe controllers of hosts at targets.
    #[serde(default)]
    pub nvme_controllers: u64,
    /// Memory that the server holds for them.
    pub memory_bytes: u64,
    /// Memory that the server may hold for them.
    pub memory_budget_bytes: u64,
}
