//! What the API says and takes: the JSON of DESIGN's words. It is a promise to scripts, so it is declared
//! here and not derived from what the engine happens to keep.

use forebay_engine::{
    CacheStats, CommitStats, Count, DiskInfo, GcPhase, GcProgress, GuestStats, PoolStats, Role, StoreStats,
    SyncMode,
};
use serde::{Deserialize, Serialize};

use super::desktops::DesktopsView;
use super::error::ErrorDetail;
use super::space::{DiskSpaceView, ReductionView, RoomView, SpaceView};

/// What a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Can be written.
    Volume,
    /// An immutable point of a volume.
    Snapshot,
    /// A golden image.
    Image,
}

/// When a write is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// A volatile write cache: flush and FUA are honoured, and dirty data is never older than a second.
    #[default]
    Flush,
    /// Write-through: every acknowledged write is durable.
    Always,
    /// Nothing is promised; a flush is answered at once.
    Never,
}

impl From<Sync> for SyncMode {
    fn from(sync: Sync) -> SyncMode {
        match sync {
            Sync::Flush => SyncMode::Flush,
            Sync::Always => SyncMode::Always,
            Sync::Never => SyncMode::Never,
        }
    }
}

impl From<SyncMode> for Sync {
    fn from(mode: SyncMode) -> Sync {
        match mode {
            SyncMode::Flush => Sync::Flush,
            SyncMode::Always => Sync::Always,
            SyncMode::Never => Sync::Never,
        }
    }
}

/// A volume, snapshot or image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskView {
    /// Name by which it is exported; of a snapshot, `volume@snapshot`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// When its writes are durable.
    pub sync: Sync,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// The snapshot or image it was cloned from, while that exists.
    pub origin: Option<String>,
    /// How many snapshots it has.
    pub snapshots: usize,
    /// How many clones it has.
    pub clones: usize,
    /// How many connections have it open.
    pub clients: usize,
    /// Identity that guests see.
    pub uuid: String,
    /// Only disks of the same domain share blocks that they wrote alike.
    pub dedup_domain: u32,
    /// A node of its block map cannot be read: what is below it reads as damaged, and the disk is not copied from.
    pub map_damaged: bool,
    /// Of a desktop: most bytes of its writes that are kept in RAM before some go to the store.
    pub write_cache_bytes: Option<u64>,
    /// Of a desktop: when it is reset by itself.
    pub reset: Option<Reset>,
}

impl DiskView {
    /// The view of a disk; `None` where nobody may see it.
    pub fn new(info: &DiskInfo) -> Option<DiskView> {
        let kind = match info.role {
            Role::Volume => Kind::Volume,
            Role::Snapshot => Kind::Snapshot,
            Role::Image => Kind::Image,
            Role::Import | Role::Note => return None,
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
            write_cache_bytes: (info.write_cache > 0).then_some(info.write_cache),
            reset: (info.write_cache > 0).then_some(match info.reset_at_disconnect {
                true => Reset::Disconnect,
                false => Reset::Never,
            }),
        })
    }
}

/// The usual hyphenated form (RFC 9562, section 4).
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Body of `POST /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Name of the new volume.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// When its writes are durable.
    #[serde(default)]
    pub sync: Sync,
    /// Only disks of the same domain share blocks that they wrote alike.
    #[serde(default)]
    pub dedup_domain: u32,
}

/// When a desktop is reset by itself, beside every start of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// Not.
    #[default]
    Never,
    /// When its guest ends its last connection in good order.
    Disconnect,
}

/// Body of `POST /images/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateImage {
    /// Volume, image, or `volume@snapshot`.
    pub source: String,
}

/// Body of `POST /clones`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneVolumes {
    /// Image, volume, or `volume@snapshot`.
    pub source: String,
    /// Name of the clone; with `count`, what the names `NAME-001` and so on begin with.
    pub name: String,
    /// How many; without it, one that is named `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// When their writes are durable.
    #[serde(default)]
    pub sync: Sync,
    /// Makes desktops, of whose writes so many bytes are kept in RAM before some go to the store. Nothing of
    /// them is durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache_bytes: Option<u64>,
    /// Of desktops: when they are reset by themselves.
    #[serde(default)]
    pub reset: Reset,
}

/// Body of `POST /volumes/{name}/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The new size.
    pub size_bytes: u64,
}

/// Body of `POST /volumes/{name}/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Name of the snapshot: its own part, without the volume's.
    pub name: String,
}

/// Body of `POST /volumes/{name}/rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Name of the snapshot: its own part, without the volume's.
    pub snapshot: String,
}

/// What `gc` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Bytes that the store got back.
    pub freed_bytes: u64,
    /// Bytes that were written for it: what lay beside free space and is still needed.
    pub moved_bytes: u64,
}

/// What is told of a reclaiming. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum GcEvent {
    /// It goes on.
    Progress {
        /// What is done.
        phase: GcPhaseView,
        /// Steps done: disks marked, or segments cleaned.
        done: u64,
        /// Steps of this phase in all.
        total: u64,
        /// What came of it so far.
        #[serde(flatten)]
        so_far: Reclaimed,
    },
    /// It is over.
    Done(Reclaimed),
    /// It failed; what was freed until then stays free.
    Failed {
        /// Why.
        error: ErrorDetail,
    },
}

/// A phase of reclaiming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GcPhaseView {
    /// Finding what is still needed.
    Mark,
    /// Moving it out of segments that have little of it.
    Clean,
    /// Nothing any more.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerView {
    /// Release of the server.
    pub version: String,
    /// Where the pool is.
    pub data: String,
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
}

/// Operations and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// What guests asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// What the store was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CacheView {
    /// Look-ups that found it.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Share of look-ups that found it; none before the first.
    pub hit_rate: Option<f64>,
    /// Bytes held.
    pub bytes: u64,
    /// Its budget.
    pub budget_bytes: u64,
}

impl From<CacheStats> for CacheView {
    fn from(s: CacheStats) -> CacheView {
        CacheView {
            hits: s.hits,
            misses: s.misses,
            hit_rate: ratio(s.hits, s.hits + s.misses),
            bytes: s.bytes,
            budget_bytes: s.budget,
        }
    }
}

/// What the commit scheduler sees and decides.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CommitView {
    /// Microseconds that a commit costs on the store at present.
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StatsView {
    /// Guest operations of all disks.
    pub guest: GuestView,
    /// Store operations.
    pub store: StoreView,
    /// Share of guest reads and writes that cost no store read or write of their own; none before the first.
    pub offload: Option<f64>,
    /// The read cache.
    pub read_cache: CacheView,
    /// The map cache.
    pub map_cache: CacheView,
    /// Bytes that are not yet durable.
    pub dirty_bytes: u64,
    /// Resident memory of the server process.
    pub memory_bytes: u64,
    /// Bytes that all segments occupy.
    pub stored_bytes: u64,
    /// Room in the store in all.
    pub store_total_bytes: u64,
    /// Room in the store that is free.
    pub store_free_bytes: u64,
    /// Volumes, snapshots and images.
    pub disks: u64,
    /// Segments.
    pub segments: u64,
    /// Sequence number of the last durable batch.
    pub seq: u64,
    /// Commits.
    pub commits: u64,
    /// What the commit scheduler sees and decides.
    pub commit: CommitView,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Blocks whose checksum did not match.
    pub damaged_blocks: u64,
    /// Batches replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Milliseconds that recovery took.
    pub recovery_ms: u64,
    /// How much room there is.
    pub room: RoomView,
    /// What needed not be stored, and what finds it.
    pub reduction: ReductionView,
    /// Desktops.
    pub desktops: DesktopsView,
    /// Where the space goes, as the last mark found it; none before the first.
    pub space: Option<SpaceView>,
    /// Bytes that cleaning has written since the pool was opened.
    pub moved_bytes: u64,
    /// Bytes that were freed since the pool was opened.
    pub freed_bytes: u64,
}

/// `GET /stats/{name}`: what guests did to a disk, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct DiskStatsView {
    /// Guest operations since the pool was opened.
    #[serde(flatten)]
    pub guest: GuestView,
    /// What it holds, as the last mark found it; none before the first.
    pub space: Option<DiskSpaceView>,
    /// Of a desktop: bytes of its writes that are in RAM.
    pub cached_bytes: u64,
}

impl StatsView {
    /// The view of a pool's counters, in a process that holds `memory_bytes`.
    pub fn new(s: &PoolStats, memory_bytes: u64) -> StatsView {
        let guest_ops = s.guest.read.ops + s.guest.write.ops;
        let store_ops = s.store.read.ops + s.store.write.ops;
        StatsView {
            guest: s.guest.into(),
            store: s.store.into(),
            offload: ratio(store_ops, guest_ops).map(|cost| 1.0 - cost),
            read_cache: s.read_cache.into(),
            map_cache: s.map_cache.into(),
            dirty_bytes: s.dirty_bytes,
            memory_bytes,
            stored_bytes: s.stored_bytes,
            store_total_bytes: s.store_total_bytes,
            store_free_bytes: s.store_free_bytes,
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
        }
    }
}

/// `part / whole`, where there is a whole.
pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}
