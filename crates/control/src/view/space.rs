//! Free space, data reduction and use of space in the API. The ratios are computed here, so that all API
//! clients show the same values.

use forebay_api::{DiskSpaceView, IndexView, ReductionView, RoomView, SpaceView};
use forebay_engine::{DiskSpace, ReductionStats, Room, SpaceStats};

use super::{View, ratio};

/// Bytes in a block of a disk.
const BLOCK: u64 = 4096;

impl View for Room {
    type View = RoomView;

    fn view(self) -> RoomView {
        match self {
            Room::Ok => RoomView::Ok,
            Room::Low => RoomView::Low,
            Room::Full => RoomView::Full,
        }
    }
}

impl View for ReductionStats {
    type View = ReductionView;

    fn view(self) -> ReductionView {
        let view = ReductionView {
            zero_blocks: self.zero_blocks,
            unchanged_blocks: self.unchanged_blocks,
            duplicate_blocks: self.duplicate_blocks,
            new_blocks: self.new_blocks,
            new_bytes: self.new_bytes,
            compression_ratio: ratio(self.new_blocks * BLOCK, self.new_bytes),
            reduction_ratio: None,
            index: IndexView {
                entries: self.index_entries,
                bytes: self.index_bytes,
                budget_bytes: self.index_budget,
                one_of: 1u64.checked_shl(self.index_sampling.into()).unwrap_or(u64::MAX),
                segments_left: self.index_segments_left,
            },
        };
        let data = (self.duplicate_blocks + self.new_blocks) * BLOCK;
        ReductionView { reduction_ratio: ratio(data, self.new_bytes), ..view }
    }
}

impl View for SpaceStats {
    type View = SpaceView;

    fn view(self) -> SpaceView {
        SpaceView {
            as_of_ms: self.as_of_ms,
            logical_bytes: self.logical_bytes,
            mapped_bytes: self.mapped_bytes,
            unique_bytes: self.unique_bytes,
            live_bytes: self.live_bytes,
            reclaimable_bytes: self.reclaimable_bytes,
            damaged_disks: self.damaged_disks,
            dedup_ratio: ratio(self.mapped_bytes, self.unique_bytes),
            compression_ratio: ratio(self.unique_bytes, self.live_bytes),
            reduction_ratio: ratio(self.mapped_bytes, self.live_bytes),
        }
    }
}

/// Creates the view of a mark at `as_of_ms`.
pub(crate) fn disk_space_view(s: DiskSpace, as_of_ms: u64) -> DiskSpaceView {
    let DiskSpace { mapped_bytes, exclusive_bytes, exclusive_as_of_ms } = s;
    DiskSpaceView { as_of_ms, mapped_bytes, exclusive_bytes, exclusive_as_of_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is filled with zeroes is not reduced data.
    #[test]
    fn zeroes_and_unchanged_blocks_are_not_reduced_data() {
        let zeroes = ReductionStats {
            zero_blocks: 1 << 20,
            unchanged_blocks: 1 << 10,
            new_blocks: 2,
            new_bytes: 8192,
            ..ReductionStats::default()
        };
        assert_eq!(zeroes.view().reduction_ratio, Some(1.0));
    }

    #[test]
    fn ratios_are_none_without_data() {
        let empty = ReductionStats::default().view();
        assert_eq!((empty.compression_ratio, empty.reduction_ratio), (None, None));
        assert_eq!(SpaceStats::default().view().reduction_ratio, None);
        let some = ReductionStats {
            zero_blocks: 1,
            unchanged_blocks: 2,
            duplicate_blocks: 1,
            new_blocks: 4,
            new_bytes: 8192,
            index_sampling: 3,
            ..ReductionStats::default()
        }
        .view();
        assert_eq!((some.compression_ratio, some.reduction_ratio), (Some(2.0), Some(2.5)));
        assert_eq!((some.blocks(), some.index.one_of), (8, 8));
    }
}
