//! Determines which of the scanned batches are history, and whether damage hides a part of history.
//!
//! **History** is everything that can be reached from the checkpoint: complete group after complete group, as
//! long as sequence numbers are consecutive, each batch links to its predecessor, and the epoch does not
//! fall. If several batches have the same number, the batch of the highest epoch counts.
//!
//! **End of history, or damage?** History may end early for two reasons. The next group was being written
//! when the machine stopped: no flush was acknowledged, and the group is dropped. Or one of the group's
//! batches was durable and is damaged or lost: then all groups after it are lost too, and the pool must not
//! open silently. The two cases are distinguished as follows:
//!
//! - Let `G` be the number after the last group that can be reached. A batch *proves* damage if it is intact
//!   and the group to which it belongs begins after `G`.
//! - Reason: its writer began that group, at `g`, when every batch below `g` was durable: either the writer
//!   had synced them itself, for each group is synced before the next one begins, or its recovery had found
//!   and synced them. So the batches from `G` to `g - 1` were once durable, and the group at `G` is missing.
//! - A stop at any moment leaves no such proof. Batches after the end of history then belong to the one group
//!   that was not synced. This group begins at `G`, whichever of its batches are intact and in whichever
//!   segments they are. The same holds for a group that was abandoned, because the next group of a higher
//!   epoch has the same numbers. Remains can also come from earlier openings of the pool. Each opening left
//!   at most one group that was not synced, which began where the history of this opening ended, and later
//!   openings continued from there. So the group of any such remains begins at `G` or before.
//! - A group that was abandoned because an object did not answer may become complete later ([`crate::log`]).
//!   If the second copy of the group is damaged, the abandoned group becomes part of history, and the next
//!   group begins at `G`, not after it. The next group proves damage by its link: it links to a batch of a
//!   later epoch, and not to the last batch of history.
//! - One exception: after a loss was accepted ([`crate::offline`]), complete groups of earlier epochs remain
//!   after the end of history. History continues from there with a higher epoch, so a batch proves nothing if
//!   its epoch is below that of the end of history. Until the first batch of that epoch is durable, the same
//!   damage is detected again.
//!
//! Damage to the last group cannot be detected: a damaged group is indistinguishable from a group that was
//! not synced. But if the medium cannot read a location that may hold the next batch, this counts as damage,
//! since the writer may have completed and synced this batch.
//!
//! **Damage without loss.** Batches of the map stream hold map nodes and pieces of checkpoints, which
//! recovery does not apply: recovery reads and verifies the nodes and pieces that it needs separately. So
//! history continues after a damaged batch if the batch was certainly of this stream. This is certain if
//! three conditions hold: its group was durable, by the proof above; a segment of the map stream has a gap
//! between two batches of one epoch (or between a batch and the footer); and all numbers between these two
//! batches except the missing number are found intact, in that epoch. The gap held at least one batch, and in
//! that epoch each number occurs once, so the missing batch was in the gap. The checksum to which the next
//! batch must link is then unknown, so the next batch is accepted by its number, its epoch and the start of
//! its group.

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::{GROUP_END, SegmentId, Stream};

use crate::log::{Gap, Head, Neighbour, Scanned, SegmentScan};

/// The result of [`history`].
pub(crate) struct History {
    /// The batches of complete groups, in order.
    pub applied: Vec<Scanned>,
    /// The last batch of the history.
    pub head: Head,
    /// The gaps of damaged batches of the map stream across which history continues.
    pub bridged: Vec<Gap>,
    /// The batches after the end of history, if they prove damage.
    pub lost: Option<LostHistory>,
    /// The highest epoch of all batches found.
    pub newest_epoch: u64,
}

/// Batches of history that recovery cannot reach.
pub(crate) struct LostHistory {
    /// Sequence number of the first missing batch.
    pub first: u64,
    /// Number of the last batch of the last complete group that can be reached.
    pub end: u64,
    /// The intact batches after `end`, by ascending number.
    pub behind: Vec<Scanned>,
    /// Gaps that may have held the first missing batch, or a batch of a group whose numbers an abandoned
    /// group has as well.
    pub gaps: Vec<Gap>,
    /// Segments whose header is damaged.
    pub headers: Vec<SegmentId>,
}

/// Selects history from the scanned batches, from `head` on.
pub(crate) fn history(scans: Vec<SegmentScan>, head: Head) -> History {
    let headers = scans.iter().filter(|s| s.header_damaged && !s.batches.is_empty()).map(|s| s.segment);
    let headers = headers.collect();
    let (mut found, mut gaps) = (IntactBatches::default(), Vec::new());
    for scan in scans {
        gaps.extend(scan.gaps);
        scan.batches.into_iter().for_each(|batch| found.add(batch));
    }
    let newest_epoch = found.last_begun.last_key_value().map_or(0, |(epoch, _)| *epoch);
    let (mut applied, mut group, mut bridged) = (Vec::new(), Vec::new(), Vec::new());
    let (mut end, mut end_epoch) = (head, 0);
    let (mut at, mut epoch) = (head, 0);
    while let Some(next) = at.seq.checked_add(1) {
        let ends = if let Some(batch) = found.take(next, at.chain, epoch) {
            at = Head { seq: batch.header.seq, chain: batch.check };
            epoch = batch.header.epoch;
            let ends = batch.header.flags & GROUP_END != 0;
            group.push(batch);
            ends
        } else if let Some((gap, behind)) = found.bridge(next, epoch, &gaps) {
            at = Head { seq: at.seq + 1, chain: behind.chain };
            epoch = behind.epoch;
            bridged.push(gap);
            behind.begins_group
        } else {
            break;
        };
        if ends {
            applied.append(&mut group);
            (end, end_epoch) = (at, epoch);
        }
    }
    let first = at.seq.saturating_add(1);
    let (next, another) = (end.seq.saturating_add(1), found.follows_another(end, end_epoch));
    // The damaged group may have the same numbers as an abandoned group that took effect late, or as an
    // abandoned group of which only the first batches are found.
    let from = applied.last().filter(|_| another).map_or(next, |batch| batch.header.group);
    let unreadable = gaps.iter().any(|gap| gap.unreadable && gap.may_hold(from, first));
    let proven = unreadable || another || found.proves_damage(next, end_epoch);
    let lost = proven.then(|| LostHistory {
        first,
        end: end.seq,
        gaps: gaps.into_iter().filter(|gap| gap.may_hold(from, first)).collect(),
        headers,
        behind: found.behind(group, end.seq, end_epoch),
    });
    History { applied, head: end, bridged, lost, newest_epoch }
}

impl Gap {
    /// Whether one of the batches `from` to `to` may have been in the gap, according to the numbers of the
    /// batches next to the gap.
    fn may_hold(&self, from: u64, to: u64) -> bool {
        let fits = self.after.is_none_or(|n| n.seq < to) && self.before.is_none_or(|n| n.seq > from);
        // Only zeroes follow the last batch.
        fits && !(self.blank && self.before.is_none())
    }
}

/// The batch that follows a gap that was bridged.
struct BatchAfterGap {
    chain: u64,
    epoch: u64,
    /// The missing batch was the last of its group.
    begins_group: bool,
}

/// All intact batches.
#[derive(Default)]
struct IntactBatches {
    by_seq: BTreeMap<u64, Vec<Scanned>>,
    /// Number and epoch of each batch, including batches that were already taken.
    all: BTreeSet<(u64, u64)>,
    /// For each epoch, the highest number at which a group begins.
    last_begun: BTreeMap<u64, u64>,
}

impl IntactBatches {
    fn add(&mut self, batch: Scanned) {
        let header = &batch.header;
        self.all.insert((header.seq, header.epoch));
        let begun = self.last_begun.entry(header.epoch).or_default();
        *begun = header.group.max(*begun);
        self.by_seq.entry(header.seq).or_default().push(batch);
    }

    /// Removes and returns the batch with this number that links to `chain`.
    fn take(&mut self, seq: u64, chain: u64, epoch: u64) -> Option<Scanned> {
        let candidates = self.by_seq.get_mut(&seq)?;
        let follows = |b: &Scanned| b.stream.is_some() && b.header.chain == chain && b.header.epoch >= epoch;
        let best =
            candidates.iter().enumerate().filter(|(_, b)| follows(b)).max_by_key(|(_, b)| b.header.epoch);
        let best = best.map(|(i, _)| i)?;
        Some(candidates.swap_remove(best))
    }

    /// Whether a batch of this epoch or a later epoch belongs to a group that begins after `seq`.
    fn proves_damage(&self, seq: u64, epoch: u64) -> bool {
        self.last_begun.range(epoch..).any(|(_, begun)| *begun > seq)
    }

    /// Whether a group of a later epoch begins after `end` and links to another batch with this number. That
    /// batch was durable, and was written in place of an abandoned group, which took effect late.
    fn follows_another(&self, end: Head, epoch: u64) -> bool {
        let Some(next) = end.seq.checked_add(1) else { return false };
        let begins = |b: &Scanned| b.header.group == next && b.header.epoch > epoch;
        self.by_seq.get(&next).into_iter().flatten().any(|b| begins(b) && b.header.chain != end.chain)
    }

    /// The gap in the map stream that held batch `seq`, and the batch after it.
    fn bridge(&self, seq: u64, epoch: u64, gaps: &[Gap]) -> Option<(Gap, BatchAfterGap)> {
        if !self.proves_damage(seq, epoch) {
            return None;
        }
        let next = self.by_seq.get(&seq.checked_add(1)?)?.iter().max_by_key(|b| b.header.epoch)?;
        let header = &next.header;
        if header.epoch < epoch {
            return None;
        }
        let held_it = |gap: &&Gap| {
            let (Some(after), Some(before)) = (gap.after, gap.before) else { return false };
            let of_epoch = |n: Neighbour| n.epoch == Some(header.epoch);
            gap.stream == Some(Stream::Map)
                && (after.seq < seq && seq < before.seq)
                && (of_epoch(before) || (before.epoch.is_none() && of_epoch(after)))
                && before.seq - after.seq <= 1 + self.all.len() as u64
                && (after.seq + 1..before.seq).all(|n| n == seq || self.all.contains(&(n, header.epoch)))
        };
        let gap = *gaps.iter().find(held_it)?;
        let begins_group = header.group == seq + 1;
        Some((gap, BatchAfterGap { chain: header.chain, epoch: header.epoch, begins_group }))
    }

    /// Returns the batches after `end` whose writer had this epoch or a later epoch: one batch for each
    /// number.
    fn behind(self, group: Vec<Scanned>, end: u64, epoch: u64) -> Vec<Scanned> {
        let mut behind: BTreeMap<u64, Scanned> = BTreeMap::new();
        for batch in group.into_iter().chain(self.by_seq.into_values().flatten()) {
            let header = &batch.header;
            let newer = behind.get(&header.seq).is_none_or(|b| b.header.epoch < header.epoch);
            if header.seq > end && header.epoch >= epoch && newer {
                behind.insert(header.seq, batch);
            }
        }
        behind.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Stream = Stream::Data;
    const MAP: Stream = Stream::Map;

    /// A batch: number, epoch, where its group begins, whether it ends the group.
    type B = (u64, u64, u64, bool);

    /// The checksum of a batch, to which batches with the next number link.
    fn check((seq, epoch, ..): B) -> u64 {
        seq * 1000 + epoch
    }

    /// Segments with these batches in sequence; `None` if one is damaged. Each batch links to the newest
    /// batch with the previous number that is not newer than itself.
    fn scans(segments: &[(Stream, &[Option<B>])], missing: &[B]) -> Vec<SegmentScan> {
        let all: Vec<B> =
            segments.iter().flat_map(|(_, b)| b.iter().flatten()).chain(missing).copied().collect();
        let chain = |b: B| {
            let before = all.iter().filter(|o| o.0 + 1 == b.0 && o.1 <= b.1);
            before.max_by_key(|o| o.1).map_or(0, |o| check(*o))
        };
        let scan = |(n, (stream, batches)): (usize, &(Stream, &[Option<B>]))| {
            let segment = SegmentId(n as u32 + 1);
            let near = |b: Option<&B>| b.map(|b| Neighbour { seq: b.0, epoch: Some(b.1) });
            let gap = |(i, b): (usize, &Option<B>)| {
                b.is_none().then(|| Gap {
                    segment,
                    stream: Some(*stream),
                    offset: i as u64 * 4096,
                    blank: false,
                    unreadable: false,
                    after: near(batches[..i].iter().flatten().next_back()),
                    before: near(batches[i..].iter().flatten().next()),
                })
            };
            SegmentScan {
                segment,
                header_damaged: false,
                batches: batches
                    .iter()
                    .flatten()
                    .map(|b| Scanned::for_test(segment, *stream, *b, chain(*b), check(*b)))
                    .collect(),
                gaps: batches.iter().enumerate().filter_map(gap).collect(),
            }
        };
        segments.iter().enumerate().map(scan).collect()
    }

    /// The last batch of history, from the beginning of the log, and the first lost batch, if any.
    fn found(segments: &[(Stream, &[Option<B>])], missing: &[B]) -> (u64, Option<u64>) {
        let history = history(scans(segments, missing), Head { seq: 0, chain: 0 });
        (history.head.seq, history.lost.map(|lost| lost.first))
    }

    #[test]
    fn a_later_group_proves_damage() {
        let (one, two, three) = ((1, 5, 1, true), (2, 5, 2, true), (3, 5, 3, true));
        assert_eq!(found(&[(DATA, &[Some(one), Some(two), Some(three)])], &[]), (3, None));
        assert_eq!(found(&[(DATA, &[Some(one), None, Some(three)])], &[two]), (1, Some(2)));
        // The last group cannot be distinguished from a group that was not synced.
        assert_eq!(found(&[(DATA, &[Some(one), Some(two), None])], &[three]), (2, None));
        // A batch of a group that was not synced itself proves damage as well; a batch of an older group does
        // not.
        assert_eq!(found(&[(DATA, &[Some(one), None, Some((3, 5, 3, false))])], &[two]), (1, Some(2)));
    }

    #[test]
    fn a_group_that_follows_a_damaged_twin_proves_damage() {
        let (late, durable, next) = ((1, 5, 1, true), (1, 6, 1, true), (2, 6, 2, true));
        let found =
            |again: &[Option<B>], missing: &[B]| found(&[(DATA, &[Some(late)]), (DATA, again)], missing);
        assert_eq!(found(&[Some(durable), Some(next)], &[]), (2, None));
        assert_eq!(found(&[None, Some(next)], &[durable]), (1, Some(2)));
        // The report names the damaged segment, although the segment has intact batches.
        for abandoned in [late, (1, 5, 1, false)] {
            let segments: [(Stream, &[Option<B>]); 2] =
                [(DATA, &[Some(abandoned)]), (DATA, &[None, Some(next)])];
            let damaged = history(scans(&segments, &[durable]), Head { seq: 0, chain: 0 }).lost.unwrap();
            assert_eq!(damaged.gaps.iter().map(|gap| gap.segment.0).collect::<Vec<_>>(), [2]);
        }
        // No batch after the abandoned group was durable.
        assert_eq!(found(&[None], &[durable]), (1, None));
    }

    #[test]
    fn remains_of_the_last_group_prove_nothing() {
        let group = [(2, 5, 2, false), (3, 5, 2, false), (4, 5, 2, true)];
        for mask in 0..7 {
            let part: Vec<Option<B>> = (0..3).map(|i| (mask >> i & 1 == 1).then_some(group[i])).collect();
            let first = [Some((1, 5, 1, true))];
            let (one, other) = part.split_at(1);
            assert_eq!(found(&[(DATA, &first), (DATA, one), (MAP, other)], &group), (1, None), "{mask}");
        }
    }

    #[test]
    fn remains_of_earlier_lives_prove_nothing() {
        let old = [Some((1, 5, 1, true)), None, Some((3, 5, 2, false)), Some((4, 5, 2, true))];
        // The server assigned the numbers again after a restart, and crashed while its last group was
        // written.
        let new = [Some((2, 6, 2, true)), None, Some((4, 6, 3, true))];
        assert_eq!(found(&[(DATA, &old), (DATA, &new)], &[(2, 5, 2, false), (3, 6, 3, false)]), (2, None));
        // The group was abandoned because the store was full; the epoch was raised after it.
        let abandoned = [Some((1, 5, 1, true)), Some((2, 5, 2, false)), Some((3, 5, 2, true))];
        let again = [Some((2, 6, 2, true)), Some((3, 6, 3, true))];
        assert_eq!(found(&[(DATA, &abandoned), (DATA, &again)], &[]), (3, None));
    }

    #[test]
    fn groups_of_an_abandoned_epoch_prove_nothing() {
        let old = [Some((1, 5, 1, true)), None, Some((3, 5, 3, true)), Some((4, 5, 4, true))];
        let lost = (2, 5, 2, true);
        assert_eq!(found(&[(DATA, &old)], &[lost]), (1, Some(2)));
        let since = [Some((2, 6, 2, true))];
        assert_eq!(found(&[(DATA, &old), (DATA, &since)], &[lost]), (2, None));
        // Damage after that is detected.
        let since = [Some((2, 6, 2, true)), None, Some((4, 6, 4, true))];
        assert_eq!(found(&[(DATA, &old), (DATA, &since)], &[lost, (3, 6, 3, true)]), (2, Some(3)));
    }

    #[test]
    fn a_missing_batch_of_the_map_stream_is_bridged_if_its_gap_is_certain() {
        let data = [Some((1, 5, 1, true)), Some((5, 5, 5, true))];
        let lost = (3, 5, 3, true);
        let map = [Some((2, 5, 2, true)), None, Some((4, 5, 4, true))];
        assert_eq!(found(&[(DATA, &data), (MAP, &map)], &[lost]), (5, None));
        // The gap is in the middle of its group.
        let map = [Some((2, 5, 2, false)), None, Some((4, 5, 2, true))];
        assert_eq!(found(&[(DATA, &data), (MAP, &map)], &[(3, 5, 2, false)]), (5, None));
        // Without a later batch, the group may have been written but not synced.
        assert_eq!(found(&[(DATA, &data[..1]), (MAP, &map)], &[(3, 5, 2, false)]), (1, None));
        // The missing batch may have been in the data stream, or in one of two streams.
        let data = [Some((1, 5, 1, true)), None, Some((5, 5, 5, true))];
        assert_eq!(
            found(&[(DATA, &data), (MAP, &[Some((2, 5, 2, true)), Some((4, 5, 4, true))])], &[lost]).1,
            Some(3)
        );
        let map = [Some((2, 5, 2, true)), None, Some((5, 5, 5, true))];
        let two = [(3, 5, 3, true), (4, 5, 4, true)];
        assert_eq!(found(&[(DATA, &[Some((1, 5, 1, true)), None]), (MAP, &map)], &two), (2, Some(3)));
        // The gap is from before a restart.
        let old = [Some((1, 5, 1, true)), None, Some((3, 5, 2, true))];
        let new = [None, Some((3, 6, 3, true)), Some((4, 6, 4, true))];
        assert_eq!(found(&[(MAP, &old), (DATA, &new)], &[(2, 5, 2, false), (2, 6, 2, true)]), (1, Some(2)));
    }
}
