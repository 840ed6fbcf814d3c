//! Which segments must have a footer: those of which it is known that they were ended in order, and durably.
//!
//! That a segment is sealed does not say so: one that was open at a crash is sealed too, without a footer or with a torn
//! one, and so is one that was left in the middle of a group for want of room. These are known to have one:
//!
//! - segments of which the checkpoint says so. It does from the time at which a footer was written and synced, in
//!   whichever life of the pool that was. Older builds did not note it; of their last life, what the checkpoint in
//!   force calls sealed and is of that life's epoch was ended before the checkpoint was made, in a group that was synced.
//! - segments that were ended since the last checkpoint of a life that ended with a crash. The *epoch* goes up with
//!   every opening, and before anything is written after a want of room, so within one epoch a segment is left by its
//!   footer alone. One after which its stream began another one of the same epoch was ended no later than in the group
//!   of that one's first batch. A later group of that epoch was begun when that one was synced, footer and all. Batches
//!   say where their group begins; of those that do not, one of another stream that came later was in a later group.
//!
//! Left out is what was ended in the last group before a crash: its footer may be torn. Where a footer is damaged all
//! that it says is found in the batches ([`crate::directory`]), so no data is lost.

use std::collections::BTreeMap;

use forebay_format::{Checkpoint, SegmentId, SegmentRecord, SegmentState, Stream, Superblock};

/// What the batches of all segments tell.
#[derive(Default)]
pub(crate) struct Epochs {
    /// In which epoch each segment was begun, as far as that could be read.
    pub of_segments: BTreeMap<SegmentId, u64>,
    /// Of each epoch, where the last group begins that is known of.
    pub last_group: BTreeMap<u64, u64>,
}

/// The records of those segments, in order. `records` are all, in order.
pub(crate) fn ended_in_order<'a>(
    records: &'a [SegmentRecord],
    epochs: &Epochs,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
) -> Vec<&'a SegmentRecord> {
    // Of each epoch and stream, the last batch.
    let mut last: BTreeMap<(u64, Stream), u64> = BTreeMap::new();
    for record in records {
        if let Some(epoch) = epochs.of_segments.get(&record.segment) {
            let last = last.entry((*epoch, record.stream)).or_default();
            *last = record.last_seq.max(*last);
        }
    }
    let sealed = |segment: SegmentId| {
        let found = checkpoint.segments.binary_search_by_key(&segment, |r| r.segment);
        found.is_ok_and(|i| checkpoint.segments[i].state == SegmentState::Sealed)
    };
    // Of each epoch and stream, the first batch of the segment that was looked at last.
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

    /// Those of `records` that were ended in order. Each comes with its epoch; the superblock is of epoch 9.
    fn ended(records: &[(u64, SegmentRecord)], sealed: &[u32]) -> Vec<u32> {
        ended_before(records, sealed, &[])
    }

    /// `groups` are epochs, and where the last group of each begins.
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
        };
        let segments = records.iter().filter(|r| sealed.contains(&r.segment.0)).copied().collect();
        let checkpoint = Checkpoint { segments, ..Checkpoint::default() };
        ended_in_order(&records, &epochs, &superblock, &checkpoint).iter().map(|r| r.segment.0).collect()
    }

    #[test]
    fn a_successor_that_was_synced_proves_it() {
        let (first, second) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Data, (5, 6)));
        let map = |last| record(3, Stream::Map, (2, last));
        assert_eq!(ended(&[(1, first), (1, second), (1, map(7))], &[]), [1]);
        // The group in which the second one was begun may be the last before a crash.
        assert_eq!(ended(&[(1, first), (1, second), (1, map(3))], &[]), [0; 0]);
        assert_eq!(ended(&[(1, first), (1, second), (1, record(3, Stream::Data, (7, 8)))], &[]), [0; 0]);
        // Of another life, or after a want of room.
        assert_eq!(ended(&[(1, first), (2, second), (2, map(7))], &[]), [0; 0]);
        assert_eq!(ended(&[(1, first), (1, second), (2, map(7))], &[]), [0; 0]);
    }

    #[test]
    fn a_later_group_of_any_stream_proves_it() {
        let (first, second) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Data, (5, 8)));
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(1, 6)]), [1]);
        // The batches up to the end are of the group that was being written.
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(1, 5)]), [0; 0]);
        assert_eq!(ended_before(&[(1, first), (1, second)], &[], &[(2, 9)]), [0; 0]);
    }

    #[test]
    fn what_a_checkpoint_has_noted_holds_in_later_lives() {
        let noted = SegmentRecord { footer: true, ..record(1, Stream::Data, (1, 4)) };
        assert_eq!(ended(&[(3, noted), (3, record(2, Stream::Map, (5, 6)))], &[]), [1]);
    }

    #[test]
    fn the_checkpoint_in_force_proves_it_for_its_own_epoch() {
        let (old, new) = (record(1, Stream::Data, (1, 4)), record(2, Stream::Map, (5, 6)));
        assert_eq!(ended(&[(8, old), (9, new)], &[1, 2]), [2]);
        assert_eq!(ended(&[(8, old), (9, new)], &[]), [0; 0]);
    }
}
