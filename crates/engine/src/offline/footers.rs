//! Determines which segments must have a footer: segments that are known to have been ended in order, and
//! whose end is durable.
//!
//! A segment in the state *sealed* need not have a footer. A segment that was open at a crash is sealed
//! without a footer, or with a torn footer. So is a segment that was left in the middle of a group that was
//! abandoned. The following segments are known to have a footer:
//!
//! - segments for which the checkpoint records a footer. A checkpoint records the footer after it was written
//!   and synced, in any opening of the pool.
//! - segments that were ended after the last checkpoint before a crash, under the following conditions. Every
//!   opening raises the *epoch*, and so does the first write after a group was abandoned. So within one
//!   epoch, a stream can leave a segment only by writing its footer. Suppose that the stream began another
//!   segment of the same epoch after this segment. Then this segment was ended at the latest in the group of
//!   the first batch of the other segment. If a later group of the same epoch began, that group had been
//!   synced, including the footer.
//!
//! Segments that were ended in the last group before a crash are excluded, because their footers may be torn.
//! All information in a damaged footer is also found in the batches
//! ([`crate::read::StoreReader::read_directory`]), so no data is lost.

use std::collections::BTreeMap;

use forebay_format::{SegmentId, SegmentRecord, Stream};

/// Epochs that were found in the batches of all segments.
#[derive(Default)]
pub(crate) struct Epochs {
    /// The epoch in which each segment was begun, if it could be read.
    pub of_segments: BTreeMap<SegmentId, u64>,
    /// For each epoch, the first batch of its last group.
    pub last_group: BTreeMap<u64, u64>,
}

/// The records of the segments that must have a footer, in order. `records` are the records of all segments,
/// in order.
pub(crate) fn ended_in_order<'a>(records: &'a [SegmentRecord], epochs: &Epochs) -> Vec<&'a SegmentRecord> {
    // For each epoch and stream, the first batch of the segment visited last.
    let mut next: BTreeMap<(u64, Stream), u64> = BTreeMap::new();
    let ended = |record: &&SegmentRecord| {
        let Some(&epoch) = epochs.of_segments.get(&record.segment) else { return record.footer };
        let next = next.insert((epoch, record.stream), record.first_seq);
        let is_synced = |seq: u64| epochs.last_group.get(&epoch).is_some_and(|group| *group > seq);
        record.footer || next.is_some_and(is_synced)
    };
    let mut found: Vec<_> = records.iter().rev().filter(ended).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use forebay_format::SegmentState;

    use super::*;

    fn record(segment: u32, stream: Stream, seqs: (u64, u64)) -> SegmentRecord {
        SegmentRecord {
            segment: SegmentId(segment),
            stream,
            state: SegmentState::Sealed,
            footer: false,
            container: segment,
            written: 8192,
            first_seq: seqs.0,
            last_seq: seqs.1,
            map: None,
        }
    }

    /// The segments that were ended in order. Each record is paired with the epoch of its segment. `groups`
    /// has, for each epoch, the start of its last group.
    fn ended(records: &[(u64, SegmentRecord)], groups: &[(u64, u64)]) -> Vec<u32> {
        let of_segments = records.iter().map(|(epoch, r)| (r.segment, *epoch)).collect();
        let epochs = Epochs { of_segments, last_group: groups.iter().copied().collect() };
        let records: Vec<SegmentRecord> = records.iter().map(|(_, r)| *r).collect();
        ended_in_order(&records, &epochs).iter().map(|r| r.segment.0).collect()
    }

    #[test]
    fn a_later_group_proves_a_footer() {
        let (first, second) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Data, (5, 8)));
        assert_eq!(ended(&[(1, first), (1, second)], &[(1, 6)]), [1]);
        // The batches up to the end belong to the group that was being written.
        assert_eq!(ended(&[(1, first), (1, second)], &[(1, 5)]), [0; 0]);
        // The second segment belongs to another stream.
        assert_eq!(ended(&[(1, first), (1, record(2, Stream::Map, (5, 8)))], &[(1, 6)]), [0; 0]);
        // The second segment belongs to another epoch, or the store was full before it.
        assert_eq!(ended(&[(1, first), (2, second)], &[(1, 6), (2, 9)]), [0; 0]);
        assert_eq!(ended(&[(1, first), (1, second)], &[(2, 9)]), [0; 0]);
    }

    #[test]
    fn a_footer_recorded_by_a_checkpoint_is_expected_in_later_lives() {
        let recorded = SegmentRecord { footer: true, ..record(1, Stream::Data, (1, 4)) };
        assert_eq!(ended(&[(3, recorded), (3, record(2, Stream::Map, (5, 6)))], &[]), [1]);
    }
}
