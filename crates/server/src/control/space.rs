//! What the API says of room, reduction and space. Ratios are here, so that every reader has the same ones.

use forebay_engine::{DiskSpace, ReductionStats, Room, SpaceStats};
use serde::{Deserialize, Serialize};

use super::view::ratio;

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// How much room the store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoomView {
    /// Enough.
    #[default]
    Ok,
    /// So little that somebody should look.
    Low,
    /// None for data: writes are refused.
    Full,
}

impl From<Room> for RoomView {
    fn from(room: Room) -> RoomView {
        match room {
            Room::Ok => RoomView::Ok,
            Room::Low => RoomView::Low,
            Room::Full => RoomView::Full,
        }
    }
}

/// What became of the blocks that guests and imports wrote since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReductionView {
    /// Blocks that were all zero.
    pub zero_blocks: u64,
    /// Blocks that were as the disk had them already.
    pub unchanged_blocks: u64,
    /// Blocks that were stored already.
    pub duplicate_blocks: u64,
    /// Blocks that were stored.
    pub new_blocks: u64,
    /// Bytes that these took.
    pub new_bytes: u64,
    /// Bytes of stored blocks by the bytes that they took; none before the first.
    pub compression_ratio: Option<f64>,
    /// Bytes of all blocks by the bytes that were stored for them; none before the first.
    pub reduction_ratio: Option<f64>,
    /// What finds duplicates.
    pub index: IndexView,
}

/// The index of what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexView {
    /// Fingerprints in it.
    pub entries: u64,
    /// Memory that it takes, its cache of directories included.
    pub bytes: u64,
    /// Its budget.
    pub budget_bytes: u64,
    /// It keeps one of so many fingerprints, and finds the others beside them.
    pub one_of: u64,
    /// Segments that are still to be read since the pool was opened.
    pub segments_left: u64,
}

impl ReductionView {
    /// All blocks that were written.
    pub fn blocks(&self) -> u64 {
        self.zero_blocks + self.unchanged_blocks + self.duplicate_blocks + self.new_blocks
    }
}

impl From<ReductionStats> for ReductionView {
    fn from(s: ReductionStats) -> ReductionView {
        let view = ReductionView {
            zero_blocks: s.zero_blocks,
            unchanged_blocks: s.unchanged_blocks,
            duplicate_blocks: s.duplicate_blocks,
            new_blocks: s.new_blocks,
            new_bytes: s.new_bytes,
            compression_ratio: ratio(s.new_blocks * BLOCK, s.new_bytes),
            reduction_ratio: None,
            index: IndexView {
                entries: s.index_entries,
                bytes: s.index_bytes,
                budget_bytes: s.index_budget,
                one_of: 1u64.checked_shl(s.index_sampling.into()).unwrap_or(u64::MAX),
                segments_left: s.index_segments_left,
            },
        };
        ReductionView { reduction_ratio: ratio(view.blocks() * BLOCK, s.new_bytes), ..view }
    }
}

/// Where the space goes, as the last mark found it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SpaceView {
    /// When that was, in Unix milliseconds.
    pub as_of_ms: u64,
    /// Sizes of all disks.
    pub logical_bytes: u64,
    /// What disks hold, counted for each disk.
    pub mapped_bytes: u64,
    /// What disks hold, counted once however many hold it.
    pub unique_bytes: u64,
    /// Room that it takes in the store, with the maps of the disks.
    pub live_bytes: u64,
    /// Room in the store that nothing needs; `gc` frees most of it.
    pub reclaimable_bytes: u64,
    /// Disks of whose block maps something is damaged: nothing that is older than the damage is freed.
    pub damaged_disks: u64,
    /// `mapped_bytes / unique_bytes`: what sharing saves, of clones and of blocks that were written alike.
    pub dedup_ratio: Option<f64>,
    /// `unique_bytes / live_bytes`: what compression saves.
    pub compression_ratio: Option<f64>,
    /// `mapped_bytes / live_bytes`: both.
    pub reduction_ratio: Option<f64>,
}

impl From<SpaceStats> for SpaceView {
    fn from(s: SpaceStats) -> SpaceView {
        SpaceView {
            as_of_ms: s.as_of_ms,
            logical_bytes: s.logical_bytes,
            mapped_bytes: s.mapped_bytes,
            unique_bytes: s.unique_bytes,
            live_bytes: s.live_bytes,
            reclaimable_bytes: s.reclaimable_bytes,
            damaged_disks: s.damaged_disks,
            dedup_ratio: ratio(s.mapped_bytes, s.unique_bytes),
            compression_ratio: ratio(s.unique_bytes, s.live_bytes),
            reduction_ratio: ratio(s.mapped_bytes, s.live_bytes),
        }
    }
}

/// What one disk holds, as the last mark found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskSpaceView {
    /// When that was, in Unix milliseconds.
    pub as_of_ms: u64,
    /// What it holds, before any reduction.
    pub mapped_bytes: u64,
    /// Room in the store that only it needs: what deleting it would free.
    pub exclusive_bytes: u64,
}

impl DiskSpaceView {
    /// What a mark at `as_of_ms` found of a disk.
    pub fn new(s: DiskSpace, as_of_ms: u64) -> DiskSpaceView {
        let DiskSpace { mapped_bytes, exclusive_bytes } = s;
        DiskSpaceView { as_of_ms, mapped_bytes, exclusive_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_need_something_to_divide_by() {
        let nothing = ReductionView::from(ReductionStats::default());
        assert_eq!((nothing.compression_ratio, nothing.reduction_ratio), (None, None));
        assert_eq!(SpaceView::from(SpaceStats::default()).reduction_ratio, None);
        let some = ReductionView::from(ReductionStats {
            zero_blocks: 1,
            unchanged_blocks: 2,
            duplicate_blocks: 1,
            new_blocks: 4,
            new_bytes: 8192,
            index_sampling: 3,
            ..ReductionStats::default()
        });
        assert_eq!((some.compression_ratio, some.reduction_ratio), (Some(2.0), Some(4.0)));
        assert_eq!((some.blocks(), some.index.one_of), (8, 8));
    }
}
