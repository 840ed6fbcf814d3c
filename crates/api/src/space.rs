//! Free space, data reduction and use of space in the API. The server computes the ratios, so that all
//! clients show the same values.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of the store's free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RoomView {
    /// Enough free space.
    #[default]
    Ok,
    /// Low: an administrator should free or add space.
    Low,
    /// No space for data: writes fail.
    Full,
}

/// The place of the pool, and the room of its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"pool": "/var/lib/forebay", "total_bytes": 1099511627776u64, "free_bytes": 549755813888u64, "room": "ok"}))]
pub struct CapacityView {
    /// Where the pool is: the data directory, or an address in Ceph.
    pub pool: String,
    /// Size of the store in bytes.
    pub total_bytes: u64,
    /// Free space of the store in bytes.
    pub free_bytes: u64,
    /// The state of the free space.
    pub room: RoomView,
}

/// Data reduction of the blocks that guests and imports wrote since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReductionView {
    /// Blocks of zeroes.
    pub zero_blocks: u64,
    /// Blocks that the disk already had with the same contents.
    pub unchanged_blocks: u64,
    /// Blocks that were already stored elsewhere.
    pub duplicate_blocks: u64,
    /// Blocks that were stored.
    pub new_blocks: u64,
    /// Bytes stored for the new blocks.
    pub new_bytes: u64,
    /// Size of the new blocks divided by the bytes stored for them; `None` before the first.
    pub compression_ratio: Option<f64>,
    /// Size of the duplicate and new blocks divided by the bytes stored for them; `None` before the first.
    /// Blocks of zeroes and unchanged blocks are no data that was reduced, so they do not count.
    pub reduction_ratio: Option<f64>,
    /// The deduplication index.
    pub index: IndexView,
}

/// The deduplication index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct IndexView {
    /// Number of fingerprints.
    pub entries: u64,
    /// Memory in use, including the cache of segment directories.
    pub bytes: u64,
    /// Memory budget.
    pub budget_bytes: u64,
    /// Sampling: the index has one of this many fingerprints, and finds the others next to it in the segment.
    pub one_of: u64,
    /// Segments that remain to be loaded since the pool was opened.
    pub segments_left: u64,
}

/// Use of space, as determined by the last mark.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct SpaceView {
    /// Time of the mark in Unix milliseconds.
    pub as_of_ms: u64,
    /// Sum of the sizes of all disks.
    pub logical_bytes: u64,
    /// Mapped data, counted for each disk.
    pub mapped_bytes: u64,
    /// Mapped data, counted once however many disks share it.
    pub unique_bytes: u64,
    /// Store space of that data and of the disks' block maps.
    pub live_bytes: u64,
    /// Store space that `gc` would free. There can be more garbage, in segments in which there is too little
    /// of it to move their data, or which are being written.
    pub reclaimable_bytes: u64,
    /// Disks with damaged block maps: no data older than the damage is freed.
    pub damaged_disks: u64,
    /// `mapped_bytes / unique_bytes`: sharing by clones and by deduplication.
    pub dedup_ratio: Option<f64>,
    /// `unique_bytes / live_bytes`: compression.
    pub compression_ratio: Option<f64>,
    /// `mapped_bytes / live_bytes`: both.
    pub reduction_ratio: Option<f64>,
}

/// Use of space by one disk, as determined by the last mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskSpaceView {
    /// Time of the mark in Unix milliseconds.
    pub as_of_ms: u64,
    /// Mapped data, before data reduction.
    pub mapped_bytes: u64,
    /// Store space that only this disk needs, and that its removal would free.
    pub exclusive_bytes: u64,
    /// When `exclusive_bytes` was measured, in Unix milliseconds: in a large pool earlier than the last mark.
    #[serde(default)]
    pub exclusive_as_of_ms: u64,
}

impl ReductionView {
    /// Number of all blocks written.
    pub fn blocks(&self) -> u64 {
        self.zero_blocks + self.unchanged_blocks + self.duplicate_blocks + self.new_blocks
    }
}
