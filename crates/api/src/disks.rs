//! Disks in the API: volumes, snapshots, images and desktops.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::LimitSet;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
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

/// A volume, snapshot or image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"name": "web-001", "kind": "volume", "size_bytes": 42949672960u64, "sync": "flush",
    "created_ms": 1767225600000u64, "origin": "debian", "snapshots": 0, "clones": 0, "clients": 1,
    "uuid": "6f1c0c7e-6d3e-4d0c-9d0a-0a2f3f5b7c11", "dedup_domain": 0, "map_damaged": false, "memory_lost": false,
    "write_cache_bytes": null, "reset": null, "used_bytes": 2147483648u64, "exclusive_bytes": 104857600u64,
    "exclusive_as_of_ms": 1767225600000u64, "tenant": null, "limits": {}}))]
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
    /// Number of clients that have it open: NBD connections and iSCSI sessions.
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
    /// Data that it does not share with the image or snapshot from which it was cloned, in bytes before data
    /// reduction; for a snapshot, from which its volume was cloned. Some seconds old, and without the writes
    /// of a desktop that are in RAM. `None` while it was not measured yet.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Store space that only this disk needs, and that its removal would free. `None` while it was not
    /// measured yet.
    #[serde(default)]
    pub exclusive_bytes: Option<u64>,
    /// When `exclusive_bytes` was measured, in Unix milliseconds.
    #[serde(default)]
    pub exclusive_as_of_ms: Option<u64>,
    /// The tenant to which it belongs.
    #[serde(default)]
    pub tenant: Option<String>,
    /// In a list of a cluster: the shard that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Limits and weight.
    #[serde(default)]
    pub limits: Box<LimitSet>,
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
    /// In a cluster: at any node, one after another, and not at the node that was asked. It has no effect on
    /// a single server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spread: bool,
}

/// When a desktop is reset automatically, in addition to every start of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
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
    /// The size that the volume must have, so that two requests at the same time do not undo each other; any
    /// size if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_size_bytes: Option<u64>,
}

/// Body of `POST /volumes/{name}/rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "pc-002"}))]
pub struct Rename {
    /// The new name.
    pub name: String,
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

/// Body of `POST /volumes/{name}/persist`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"sync": "flush"}))]
pub struct Persist {
    /// Durability of writes from then on.
    #[serde(default)]
    pub sync: SyncPolicy,
}

/// Body of `POST /resets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"volumes": ["web-001", "web-002"]}))]
pub struct Resets {
    /// Names of clones.
    pub volumes: Vec<String>,
    /// The image or `VOLUME@SNAPSHOT` to which they are reset, and which is their origin from then on; the
    /// present origin of each if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}
