//! Determines which segments must have a footer: those that are known to have been ended in order, and
//! durably.
//!
//! The sealed state does not imply that: a segment that was open at a crash is sealed too, without a footer
//! or with a torn one, and so is one that was left in the middle of a group that was abandoned. The
//! following segments are known to have a footer:
//!
//! - segments for which the checkpoint records it. It does so from the time at which a footer was written and
//!   synced, in whichever life of the pool that was. Older builds did not record it; of their last life, a
//!   segment that the checkpoint in force lists as sealed and that is of that life's epoch was ended before
//!   the checkpoint was made, in a group that was synced.
//! - segments that were ended since the last checkpoint of a life that ended with a crash. The *epoch* is
//!   raised by every opening, and before anything is written after a group was abandoned, so within one epoch
//!   writing the footer is the only way to leave a segment. One after which its stream began another one of
//!   the same epoch was ended no later than in the group of that one's first batch. When a later group of
//!   that epoch began, that group had been synced, including the footer. Batches record where their group
//!   begins; for those that do not, a later batch of another stream was in a later group.
//!
//! Segments that were ended in the last group before a crash are excluded: their footer may be torn. All
//! information in a damaged footer is also found in the batches
//! ([`crate::read::StoreReader::read_directory`]), so no data is lost.

use std::collections::BTreeMap;

use forebay_format::{SegmentId, SegmentRecord, SegmentState, Stream, Superblock};

use crate::log::SegmentTable;

/// Epochs found in the batches of all segments.
#[derive(Default)]
pub(crate) struct Epochs {
    /// The epoch in which each segment was begun, if it could be read.
    pub of_segments: BTreeMap<SegmentId, u64>,
    /// For each epoch, the start of the last known group.
    pub last_group: BTreeMap<u64, u64>,
}

/// The records of the segments that must have a footer, in order. `records` are all records, in order.
pub(crate) fn ended_in_order<'a>(
    records: &'a [SegmentRecord],
    epochs: &Epochs,
    superblock: &Superblock,
    checkpoint: &SegmentTable,
) -> Vec<&'a SegmentRecord> {
    // For each epoch and stream, the last batch.
    let mut last: BTreeMap<(u64, Stream), u64> = BTreeMap::new();
    for record in records {
        if let Some(epoch) = epochs.of_segments.get(&record.segment) {
            let last = last.entry((*epoch, record.stream)).or_default();
            *last = record.last_seq.max(*last);
        }
    }
    let sealed =
        |segment: SegmentId| checkpoint.get(segment).is_some_and(|r| r.state == SegmentState::Sealed);
    // For each epoch and stream, the first batch of the segment visited last.
    let mut next: BTreeMap<(u64, Stream), u64> = BTreeMap::new();
    let ended = |record: &&SegmentRecord| {
        let Some(&epoch) = epochs.of_segments.get(&record.segment) else { return record.footer };
        let next = next.insert((epoch, record.stream), record.first_seq);
        let later = |seq: u64| {
            let mut others = Stream::ALL.into_iter().filter(|s| *s != record.stream);
            epochs.last_group.get(&epoch).is_some_and(|group| *group > seq)
                || others.any(|s| last.get(&(epoch, s)).is_some_and(|last| *last > seq))
        };
        record.footer || next.is_some_and(later) || (epoch == superblock.epoch && sealed(record.segment))
    };
    let mut found: Vec<_> = records.iter().rev().filter(ended).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use forebay_format::PoolId;

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

    /// Those of `records` that were ended in order. Each is paired with its epoch; the superblock is of epoch
    /// 9.
    fn ended(records: &[(u64, SegmentRecord)], sealed: &[u32]) -> Vec<u32> {
        ended_before(records, sealed, &[])
    }

    /// `groups` are epochs, and the start of the last group of each.
    fn ended_before(records: &[(u64, SegmentRecord)], sealed: &[u32], groups: &[(u64, u64)]) -> Vec<u32> {
        let of_segments = records.iter().map(|(epoch, r)| (r.segment, *epoch)).collect();
        let epochs = Epochs { of_segments, last_group: groups.iter().copied().collect() };
        let records: Vec<SegmentRecord> = records.iter().map(|(_, r)| *r).collect();
        let superblock = Superblock {
            pool: PoolId([1; 16]),
            generation: 1,
            epoch: 9,
            fingerprint_key: [0; 32],
            created_ms: 0,
            segment_bytes: 1 << 20,
            seq: 0,
            chain: 0,
            blobs: Vec::new(),
            memory: 0,
            boot: 0,
        };
        let checkpoint = records.iter().filter(|r| sealed.contains(&r.segment.0)).copied().collect();
        ended_in_order(&records, &epochs, &superblock, &checkpoint).iter().map(|r| r.segment.0).collect()
    }

    #[test]
    fn a_synced_successor_proves_a_footer() {
        let (first, second) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Data, (5, 6)));
        let map = |last| record(3, Stream::Map, (2, last));
        assert_eq!(ended(&[(1, first), (1, second), (1, map(7))], &[]), [1]);
        // The group in which the second segment was begun may be the last before a crash.
        assert_eq!(ended(&[(1, first), (1, second), (1, map(3))], &[]), [0; 0]);
        assert_eq!(ended(&[(1, first), (1, second), (1, record(3, Stream::Data, (7, 8)))], &[]), [0; 0]);
        // Of another life, or after the store was full.
        assert_eq!(ended(&[(1, first), (2, second), (2, map(7))], &[]), [0; 0]);
        assert_eq!(ended(&[(1, first), (1, second), (2, map(7))], &[]), [0; 0]);
    }

    #[test]
    fn a_later_group_of_any_stream_proves_a_footer() {
        let (first, second) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Data, (5, 8)));
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(1, 6)]), [1]);
        // The batches up to the end belong to the group that was being written.
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(1, 5)]), [0; 0]);
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(2, 9)]), [0; 0]);
    }

    #[test]
    fn a_footer_recorded_by_a_checkpoint_is_expected_in_later_lives() {
        let recorded = SegmentRecord { footer: true, ..record(1, Stream::Data, (1, 4)) };
        assert_eq!(ended(&[(3, recorded), (3, record(2, Stream::Map, (5, 6)))], &[]), [1]);
    }

    #[test]
    fn the_checkpoint_in_force_proves_a_footer_in_its_own_epoch() {
        let (old, new) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Map, (5, 6)));
        assert_eq!(ended(&[(8, old), (9, new)], &[1, 2]), [2]);
        assert_eq!(ended(&[(8, old), (9, new)], &[]), [0; 0]);
    }
}
