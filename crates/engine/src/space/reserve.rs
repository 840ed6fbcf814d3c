//! The room that is kept free, as functions of the size of the store.

use super::policy::min_reclaim_bytes;

/// A store is low on room if the free room above the reserve is less than its total size divided by this
/// number.
const LOW_PART: u64 = 10;
/// A store that is low on room is no longer low when it has further free room: the share of [`LOW_PART`],
/// divided by this number.
const SLACK_PART: u64 = 4;

/// The sizes on which the reserve depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    /// Size at which segments are sealed.
    pub segment_bytes: u64,
    /// Limit on the bytes in the write buffers.
    pub write_buffer: u64,
}

impl Reserve {
    /// Bytes that are kept free for deletions, checkpoints, cleaning and the data that is already in the
    /// buffers.
    pub fn bytes(&self, total: u64) -> u64 {
        (2 * self.segment_bytes + 2 * self.write_buffer).min(total / 4)
    }

    /// Threshold of free bytes below which a store of `total` bytes is low on room.
    pub fn low_threshold(&self, total: u64) -> u64 {
        self.bytes(total) + total / LOW_PART
    }

    /// Hysteresis of the threshold, so that a store near the threshold does not log a warning at every
    /// commit.
    pub fn low_slack(total: u64) -> u64 {
        total / (LOW_PART * SLACK_PART)
    }

    /// The part of the reserve that the store is to own, so that it is available regardless of what the store
    /// reports as free. The other part is at least a segment: a store that reports the true free space is
    /// full by the numbers before a segment finds no room.
    pub fn owned(&self, total: u64) -> u64 {
        self.bytes(total) / 2
    }

    /// Maximum bytes of the write buffers in a store of this size. When the store refuses room, the buffers
    /// are written into two thirds of the room that it owns. The last third is for deletions and their
    /// checkpoints.
    pub fn bufferable(&self, total: u64) -> u64 {
        self.write_buffer.min((self.owned(total) / 3 * 2).max(min_reclaim_bytes(self.segment_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_stores_reserve_a_quarter_and_buffer_less() {
        let reserve = Reserve { segment_bytes: 4, write_buffer: 8 };
        let sizes = |total| (reserve.bytes(total), reserve.owned(total), reserve.bufferable(total));
        assert_eq!(sizes(1000), (24, 12, 8));
        assert_eq!(sizes(40), (10, 5, 2));
        assert_eq!(reserve.low_threshold(1000), 124);
    }
}
