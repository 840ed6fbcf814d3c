//! The JSON types of the API. They are a stable contract with scripts, so they are declared here and not
//! derived from the types of the engine.

use forebay_engine::{
    CommitStats, Count, DiskGuestStats, DiskInfo, GcPhase, GcProgress, GuestStats, PoolStats, Role,
    StoreStats, SyncMode,
};
use forebay_store::rados::Standby;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cache::{CacheView, ReadCacheView};
use super::desktops::DesktopsView;
use super::error::ErrorDetail;
use super::limits::LimitedView;
use super::served::{ClientsView, LatencyView};
use super::space::{DiskSpaceView, ReductionView, RoomView, SpaceView};
use crate::limits::LimitSet;

/// The kind of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A writable disk.
    Volume,
    /// An immutable copy of a volume at one moment.
    Snapshot,
    /// A golden image.
    Image,
}

/// Durability of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SyncPolicy {
    /// Volatile write cache: flush and FUA are honoured, and dirty data is never older than a second
    #[default]
    Flush,
    /// Write-through: every acknowledged write is durable
    Always,
    /// No durability guarantee: flushes are acknowledged at once
    Never,
}

impl From<SyncPolicy> for SyncMode {
    fn from(policy: SyncPolicy) -> SyncMode {
        match policy {
            SyncPolicy::Flush => SyncMode::Flush,
            SyncPolicy::Always => SyncMode::Always,
            SyncPolicy::Never => SyncMode::Never,
        }
    }
}

impl From<SyncMode> for SyncPolicy {
    fn from(mode: SyncMode) -> SyncPolicy {
        match mode {
            SyncMode::Flush => SyncPolicy::Flush,
            SyncMode::Always => SyncPolicy::Always,
            SyncMode::Never => SyncPolicy::Never,
        }
    }
}

/// A volume, snapshot or image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"name": "web-001", "kind": "volume", "size_bytes": 42949672960u64, "sync": "flush",
    "created_ms": 1767225600000u64, "origin": "debian", "snapshots": 0, "clones": 0, "clients": 1,
    "uuid": "6f1c0c7e-6d3e-4d0c-9d0a-0a2f3f5b7c11", "dedup_domain": 0, "map_damaged": false, "memory_lost": false,
    "write_cache_bytes": null, "reset": null, "tenant": null, "limits": {}}))]
pub struct DiskView {
    /// Name and NBD export name; for a snapshot, `volume@snapshot`.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Durability of writes.
    pub sync: SyncPolicy,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// The snapshot or image from which it was cloned, while that exists.
    pub origin: Option<String>,
    /// Number of snapshots.
    pub snapshots: usize,
    /// Number of clones.
    pub clones: usize,
    /// Number of connections that have it open.
    pub clients: usize,
    /// UUID that is reported to guests.
    pub uuid: String,
    /// Deduplication domain: identical blocks are deduplicated only among disks of the same domain.
    pub dedup_domain: u32,
    /// A node of the block map cannot be read: reads below it fail as damaged, and the disk is not copied.
    pub map_damaged: bool,
    /// Writes that were acknowledged are lost with the memory that held them: clients that may have had them
    /// acknowledged are refused until the volume is resumed, or a desktop reset.
    pub memory_lost: bool,
    /// For a desktop: most bytes of writes in RAM before some overflow to the store.
    pub write_cache_bytes: Option<u64>,
    /// For a desktop: when it is reset automatically.
    pub reset: Option<Reset>,
    /// The tenant to which it belongs.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Limits and weight.
    #[serde(default)]
    pub limits: Box<LimitSet>,
}

impl DiskView {
    /// Creates the view of a disk; `None` for an internal disk.
    pub fn new(info: &DiskInfo) -> Option<DiskView> {
        let kind = match info.role {
            Role::Volume => Kind::Volume,
            Role::Snapshot => Kind::Snapshot,
            Role::Image => Kind::Image,
            Role::Import | Role::Metadata => return None,
        };
        Some(DiskView {
            name: info.name.clone(),
            kind,
            size_bytes: info.size,
            sync: info.sync.into(),
            created_ms: info.created_ms,
            origin: info.origin.clone(),
            snapshots: info.snapshots,
            clones: info.clones,
            clients: info.clients,
            uuid: uuid_text(&info.uuid),
            dedup_domain: info.dedup_domain,
            map_damaged: info.map_damaged,
            memory_lost: info.memory_lost,
            write_cache_bytes: (info.write_cache > 0).then_some(info.write_cache),
            reset: (info.write_cache > 0).then_some(match info.reset_at_disconnect {
                true => Reset::Disconnect,
                false => Reset::Never,
            }),
            tenant: info.limits.tenant.clone(),
            limits: Box::new(info.limits.limits.into()),
        })
    }
}

/// Formats a UUID with hyphens (RFC 9562, section 4).
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Body of `POST /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "db", "size_bytes": 10737418240u64}))]
pub struct CreateVolume {
    /// Name of the new volume.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Durability of writes.
    #[serde(default)]
    pub sync: SyncPolicy,
    /// Deduplication domain: identical blocks are deduplicated only among disks of the same domain.
    #[serde(default)]
    pub dedup_domain: u32,
}

/// When a desktop is reset automatically, in addition to every start of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// Only when the server starts
    #[default]
    Never,
    /// Also when the last client disconnects cleanly
    Disconnect,
}

/// Body of `POST /images/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "debian@clean"}))]
pub struct CreateImage {
    /// Volume, image, or `volume@snapshot`.
    pub source: String,
}

/// Body of `POST /clones`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "debian", "name": "web", "count": 10}))]
pub struct CloneVolumes {
    /// Image, volume, or `volume@snapshot`.
    pub source: String,
    /// Name of the clone; with `count`, the prefix of the names `NAME-001` and so on.
    pub name: String,
    /// Number of clones; if absent, one clone with the name `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Number the clones after the highest existing number of the prefix, instead of from 1; needs `count`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Durability of writes.
    #[serde(default)]
    pub sync: SyncPolicy,
    /// If present, the clones are desktops: at most this many bytes of each one's writes are in RAM before
    /// some overflow to the store. None of their writes are durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache_bytes: Option<u64>,
    /// For desktops: when they are reset automatically.
    #[serde(default)]
    pub reset: Reset,
}

/// Body of `POST /volumes/{name}/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"size_bytes": 21474836480u64}))]
pub struct Resize {
    /// The new size.
    pub size_bytes: u64,
}

/// Body of `POST /volumes/{name}/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "monday"}))]
pub struct CreateSnapshot {
    /// Name of the snapshot, without that of the volume.
    pub name: String,
}

/// Body of `POST /volumes/{name}/rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"snapshot": "monday"}))]
pub struct Rollback {
    /// Name of the snapshot, without that of the volume.
    pub snapshot: String,
}

/// The result of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// Bytes freed in the store.
    pub freed_bytes: u64,
    /// Bytes of live data that were rewritten to free the segments that contained them.
    pub moved_bytes: u64,
}

/// An event of a reclaim. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum GcEvent {
    /// Progress.
    Progress {
        /// The current phase.
        phase: GcPhaseView,
        /// Steps done: map nodes read by the mark, or segments cleaned.
        done: u64,
        /// Total steps of this phase; 0 for the mark, which does not know them.
        total: u64,
        /// The result so far.
        #[serde(flatten)]
        so_far: Reclaimed,
    },
    /// The reclaim has finished.
    Done(Reclaimed),
    /// The reclaim failed; space that was freed before stays free.
    Failed {
        /// The error.
        error: ErrorDetail,
    },
}

/// A phase of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GcPhaseView {
    /// Finding live blocks.
    Mark,
    /// Moving live blocks out of segments that contain few of them.
    Clean,
    /// Finished.
    Done,
}

impl From<GcProgress> for GcEvent {
    fn from(p: GcProgress) -> GcEvent {
        let phase = match p.phase {
            GcPhase::Mark => GcPhaseView::Mark,
            GcPhase::Clean => GcPhaseView::Clean,
            GcPhase::Done => GcPhaseView::Done,
        };
        let so_far = Reclaimed { freed_bytes: p.freed_bytes, moved_bytes: p.moved_bytes };
        GcEvent::Progress { phase, done: p.done, total: p.total, so_far }
    }
}

/// The server and its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerView {
    /// Release of the server.
    pub version: String,
    /// The data directory.
    pub data: String,
    /// Where the pool is: the data directory, or an address in Ceph.
    pub pool: String,
    /// Process id of the server.
    pub pid: u32,
    /// Seconds since the server became ready.
    pub uptime_s: u64,
    /// Addresses on which NBD clients are served.
    pub nbd: Vec<String>,
    /// Addresses on which iSCSI initiators are served.
    pub iscsi: Vec<String>,
    /// Address of the API over TCP.
    pub http: Option<String>,
    /// The ownership of a pool in Ceph.
    #[serde(default)]
    pub owner: Option<OwnerView>,
}

/// The ownership of a pool in Ceph by this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerView {
    /// This server, as the pool names it.
    pub server: String,
    /// Number of the ownership.
    pub term: u64,
    /// Milliseconds for which it is certain that no other server has the pool.
    pub lease_ms: u64,
    /// Servers that wait for the pool, as of some seconds ago; absent in the first seconds.
    #[serde(default)]
    pub standbys: Option<Vec<StandbyView>>,
}

/// A server that waits for a pool in Ceph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StandbyView {
    /// The server, as the pool names it.
    pub server: String,
    /// Whether it renews its announcement.
    pub alive: bool,
}

impl From<Standby> for StandbyView {
    fn from(standby: Standby) -> StandbyView {
        StandbyView { server: standby.server, alive: standby.alive }
    }
}

/// A number of operations and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CountView {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<Count> for CountView {
    fn from(c: Count) -> CountView {
        CountView { ops: c.ops, bytes: c.bytes }
    }
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

impl From<GuestStats> for GuestView {
    fn from(s: GuestStats) -> GuestView {
        GuestView {
            read: s.read.into(),
            write: s.write.into(),
            discard: s.discard.into(),
            flush_ops: s.flush,
        }
    }
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

impl From<StoreStats> for StoreView {
    fn from(s: StoreStats) -> StoreView {
        StoreView { read: s.read.into(), write: s.write.into(), sync_ops: s.sync, delete_ops: s.delete }
    }
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

impl From<CommitStats> for CommitView {
    fn from(s: CommitStats) -> CommitView {
        CommitView {
            cost_us: s.cost_us,
            by_age: s.by_age,
            by_demand: s.by_demand,
            delayed_us: s.delayed_us,
            waiting: s.waiting,
        }
    }
}

/// `GET /stats`: the counters since the pool was opened.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// Guest operations of all disks.
    pub guest: GuestView,
    /// Store operations.
    pub store: StoreView,
    /// Share of guest reads and writes that caused no separate store read or write; `None` before the first.
    /// Negative while the store did more operations than guests requested, because those of imports, reclaims
    /// and checkpoints count too.
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
    /// Number of connections that have it open.
    pub clients: usize,
    /// Guest operations since the pool was opened.
    #[serde(flatten)]
    pub guest: GuestView,
    /// For a desktop: bytes of its writes in RAM.
    pub cached_bytes: u64,
}

impl From<DiskGuestStats> for ActivityView {
    fn from(d: DiskGuestStats) -> ActivityView {
        let guest = d.guest.into();
        ActivityView { name: d.name, clients: d.clients, guest, cached_bytes: d.cached_bytes }
    }
}

impl StatsView {
    /// Creates the view of a pool's counters; `memory_bytes` is the resident memory of the process. What
    /// front ends count is not included.
    pub(super) fn new(s: &PoolStats, memory_bytes: u64) -> StatsView {
        let guest_ops = s.guest.read.ops + s.guest.write.ops;
        let store_ops = s.store.read.ops + s.store.write.ops;
        StatsView {
            guest: s.guest.into(),
            store: s.store.into(),
            offload: ratio(store_ops, guest_ops).map(|cost| 1.0 - cost),
            read_cache: ReadCacheView::new(s),
            map_cache: s.map_cache.into(),
            dirty_bytes: s.dirty_bytes,
            memory_bytes,
            stored_bytes: s.stored_bytes,
            store_total_bytes: s.store_total_bytes,
            store_free_bytes: s.store_free_bytes,
            store_reserve_bytes: Some(s.store_reserve_bytes),
            disks: s.disks,
            segments: s.segments,
            seq: s.seq,
            commits: s.commits,
            commit: s.commit.into(),
            checkpoints: s.checkpoints,
            damaged_blocks: s.damaged_blocks,
            recovered_batches: s.recovered_batches,
            recovery_ms: s.recovery_ms,
            room: s.room.into(),
            reduction: s.reduction.into(),
            desktops: s.desktops.into(),
            space: s.space.map(SpaceView::from),
            moved_bytes: s.moved_bytes,
            freed_bytes: s.freed_bytes,
            ..StatsView::default()
        }
    }
}

/// Returns `part / whole`; `None` if `whole` is 0.
pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}
