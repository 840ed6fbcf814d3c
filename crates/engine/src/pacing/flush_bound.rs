//! The bound on the data in the write buffers while clients wait for flushes.
//!
//! A commit writes all dirty data (ADR 3), so a flush of one disk also waits for the data of all other disks.
//! While a disk flushes, the other disks may therefore buffer only a limited amount of data: the amount that
//! the store commits in a multiple of the time of a small commit ([`super::cost`]). A flush waits for the
//! rest of the present group and for its own group, and these two groups together contain this amount of
//! other disks' data once. The flushes of a disk do not bound the data of the same disk, so a single writer
//! that flushes can use the whole buffer.
//!
//! The bound costs throughput, because with smaller groups the fixed cost of each commit is a larger part. So
//! there are two bounds. The *tight* bound ([`TIGHT`]) applies while exactly one disk flushes, and flushes
//! *frequently*: the client of this disk waits for commits much of the time. Otherwise the *wide* bound
//! ([`WIDE`]) applies. If several disks flush, they wait for the same commits, so small groups would not help
//! them.

use std::time::Duration;

use forebay_store::next_mean;

use super::cost::{Cost, SMALL_GROUP};
use crate::limits::TURN_BYTES;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// A bound on buffered data, defined by the time in which its data is committed.
struct Multiple {
    /// The time, in costs of a small commit.
    costs: f64,
    /// Minimum of this time, for stores whose commits cost next to nothing.
    least_time: Duration,
    /// Minimum number of bytes. A commit begins at half of them. If all groups are small, they do not measure
    /// the time for each byte, so under the tight bound the former measurement may remain.
    least_bytes: u64,
    /// Bytes of the pieces in which long requests are admitted.
    piece: u64,
}

const WIDE: Multiple = Multiple {
    costs: 2.0,
    least_time: Duration::from_micros(500),
    least_bytes: 4 * SMALL_GROUP,
    piece: TURN_BYTES,
};
const TIGHT: Multiple = Multiple {
    costs: 1.0,
    least_time: Duration::from_micros(250),
    least_bytes: SMALL_GROUP,
    piece: TURN_BYTES / 4,
};
/// Maximum time between flushes that count as frequent, in costs of a small commit.
const FREQUENT: f64 = 16.0;
/// A disk counts as flushing for this long after its last flush.
const FLUSH_RECENT: Duration = Duration::from_secs(1);
/// Special value of `flushing`: no disk flushes. Other special values follow.
const NONE: u64 = u64::MAX;
const SEVERAL: u64 = u64::MAX - 1;

/// The disks that flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushing {
    None,
    Only(u64),
    Several,
}

/// The flushes of the recent past.
#[derive(Debug)]
struct Flushes {
    /// The two disks that flushed last, and when they did.
    disks: [Option<(u64, Duration)>; 2],
    /// Start of the last flush. Flushes that follow within the cost of a small commit count as a part of it.
    last: Duration,
    /// Mean seconds from one flush to the next: a moving mean, which begins with a value for rare flushes.
    gap: f64,
}

/// Bounds the write buffers; see the module documentation.
#[derive(Debug)]
pub(crate) struct FlushBound {
    flushes: Mutex<Flushes>,
    /// The only disk that flushes, [`NONE`] or [`SEVERAL`].
    flushing: AtomicU64,
    /// The tight bound applies, if a bound applies.
    is_tight: AtomicBool,
    /// Bytes that a disk may buffer while another disk flushes.
    wide: AtomicU64,
    tight: AtomicU64,
}

impl Default for FlushBound {
    fn default() -> FlushBound {
        FlushBound {
            flushes: Mutex::new(Flushes {
                disks: [None; 2],
                last: Duration::ZERO,
                gap: FLUSH_RECENT.as_secs_f64(),
            }),
            flushing: AtomicU64::new(NONE),
            is_tight: AtomicBool::new(false),
            wide: AtomicU64::new(u64::MAX),
            tight: AtomicU64::new(u64::MAX),
        }
    }
}

impl Multiple {
    /// Bytes of the bound, if commits have this cost; `None` if that is not known.
    fn bytes(&self, cost: Cost) -> Option<u64> {
        let time = (cost.fixed.unwrap_or(0.0) * self.costs).max(self.least_time.as_secs_f64());
        cost.bytes_in(time).map(|bytes| bytes.max(self.least_bytes))
    }
}

impl FlushBound {
    /// Records that a client of disk `id` waits for its data to become durable. Commits cost `cost`.
    pub fn record_flush(&self, id: u64, cost: Cost, now: Duration) {
        let mut flushes = self.flushes.lock();
        match &mut flushes.disks {
            [Some((first, at)), _] if *first == id => *at = now,
            [first, second] => {
                *second = *first;
                *first = Some((id, now));
            }
        }
        let gap = now.saturating_sub(flushes.last).min(FLUSH_RECENT).as_secs_f64();
        if gap >= cost.fixed.unwrap_or(0.0) {
            flushes.last = now;
            flushes.gap = next_mean(Some(flushes.gap), gap);
        }
        self.update(&mut flushes, cost, now);
    }

    /// Forgets disks that have not flushed recently, and decides which bound applies.
    fn update(&self, flushes: &mut Flushes, cost: Cost, now: Duration) {
        let flushing = match flushes.disks.each_mut().map(|entry| {
            *entry = entry.filter(|(_, at)| now.saturating_sub(*at) < FLUSH_RECENT);
            entry.map(|(id, _)| id)
        }) {
            [Some(_), Some(_)] => SEVERAL,
            [Some(id), None] | [None, Some(id)] => id,
            [None, None] => NONE,
        };
        self.flushing.store(flushing, Relaxed);
        let gap = flushes.gap.max(now.saturating_sub(flushes.last).as_secs_f64());
        let is_frequent = cost.fixed.is_some_and(|small| gap < FREQUENT * small);
        self.is_tight.store(is_frequent && flushing != SEVERAL, Relaxed);
    }

    /// Records the cost of commits after a group.
    pub fn record_cost(&self, cost: Cost, now: Duration) {
        self.update(&mut self.flushes.lock(), cost, now);
        if let (Some(wide), Some(tight)) = (WIDE.bytes(cost), TIGHT.bytes(cost)) {
            self.wide.store(wide, Relaxed);
            self.tight.store(tight, Relaxed);
        }
    }

    /// The disks that flushed recently, as of the last group or flush.
    pub fn flushing(&self) -> Flushing {
        match self.flushing.load(Relaxed) {
            NONE => Flushing::None,
            SEVERAL => Flushing::Several,
            only => Flushing::Only(only),
        }
    }

    /// Bytes that may be in the buffers after a request of disk `id`.
    pub fn bytes_for(&self, id: u64) -> u64 {
        match self.flushing() {
            Flushing::None => u64::MAX,
            Flushing::Only(only) if only == id => u64::MAX,
            Flushing::Only(_) | Flushing::Several => {
                let bytes = if self.is_tight.load(Relaxed) { &self.tight } else { &self.wide };
                bytes.load(Relaxed)
            }
        }
    }

    /// Bytes of the pieces in which a long request of a bounded disk is admitted.
    pub fn piece(&self) -> u64 {
        if self.is_tight.load(Relaxed) { TIGHT.piece } else { WIDE.piece }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The cost of a store that takes 4 ms, and 1 ms for each further 256 KiB.
    const COST: Cost = Cost { fixed: Some(0.004), per_byte: Some(0.001 / (256 << 10) as f64) };

    fn measured() -> FlushBound {
        let bound = FlushBound::default();
        bound.record_cost(COST, 37 * MS);
        bound
    }

    fn is_about(bytes: u64, expected: u64) -> bool {
        bytes.abs_diff(expected) < 64 << 10
    }

    #[test]
    fn the_bound_is_what_the_store_commits_in_the_time_of_two_small_commits() {
        let bound = measured();
        bound.record_flush(1, COST, MS);
        assert!(is_about(bound.bytes_for(2), 2 << 20), "{}", bound.bytes_for(2));
    }

    /// Records flushes of disk 1 from `begin` on, at intervals of `gap`. Returns the time of the last flush.
    fn flush_often(bound: &FlushBound, begin: Duration, gap: Duration) -> Duration {
        (0..50).for_each(|n| bound.record_flush(1, COST, begin + n * gap));
        begin + 49 * gap
    }

    #[test]
    fn next_to_one_disk_that_flushes_frequently_it_is_half_of_that() {
        let bound = measured();
        let now = flush_often(&bound, MS, 5 * MS);
        assert!(is_about(bound.bytes_for(2), 1 << 20), "{}", bound.bytes_for(2));
        assert_eq!((bound.piece(), bound.bytes_for(1)), (TIGHT.piece, u64::MAX));
        // Another disk flushes once.
        bound.record_flush(3, COST, now);
        assert!([1, 2, 3].iter().all(|id| is_about(bound.bytes_for(*id), 2 << 20)));
        assert_eq!(bound.piece(), WIDE.piece);
        let now = flush_often(&bound, now, FLUSH_RECENT / 40);
        assert!(is_about(bound.bytes_for(3), 1 << 20), "that is long ago");
        bound.record_cost(COST, now + 95 * MS);
        assert!(is_about(bound.bytes_for(3), 2 << 20), "none flushed for twenty commits");
    }

    #[test]
    fn neither_rare_flushes_nor_rare_bursts_are_frequent() {
        let bound = measured();
        let now = flush_often(&bound, MS, 200 * MS);
        assert!(is_about(bound.bytes_for(2), 2 << 20));
        for burst in 0..20 {
            flush_often(&bound, now + burst * 900 * MS, MS / 20);
            assert!(is_about(bound.bytes_for(2), 2 << 20), "burst {burst}");
        }
    }

    #[test]
    fn only_other_disks_are_bounded_and_only_for_a_while() {
        let bound = measured();
        assert_eq!(bound.bytes_for(1), u64::MAX);
        bound.record_flush(1, COST, 10 * MS);
        assert_eq!(bound.bytes_for(1), u64::MAX, "its own flushes");
        assert!(bound.bytes_for(2) < u64::MAX);
        bound.record_flush(2, COST, 20 * MS);
        bound.record_flush(2, COST, 30 * MS);
        assert!(
            bound.bytes_for(1) < u64::MAX && bound.bytes_for(2) < u64::MAX && bound.bytes_for(3) < u64::MAX
        );
        bound.record_cost(COST, 10 * MS + FLUSH_RECENT);
        assert_eq!(bound.bytes_for(2), u64::MAX, "the flushes of the other are long ago");
        assert!(bound.bytes_for(1) < u64::MAX);
        bound.record_cost(COST, 30 * MS + FLUSH_RECENT);
        assert_eq!(bound.bytes_for(3), u64::MAX);
    }

    #[test]
    fn nothing_is_bounded_before_the_store_was_measured() {
        let bound = FlushBound::default();
        bound.record_flush(1, COST, MS);
        assert_eq!(bound.bytes_for(2), u64::MAX);
    }

    #[test]
    fn a_store_of_any_speed_leaves_a_useful_bound() {
        let bound = FlushBound::default();
        bound.record_cost(Cost { fixed: None, per_byte: Some(5e-6) }, MS);
        bound.record_flush(1, COST, MS);
        assert_eq!(bound.bytes_for(2), WIDE.least_bytes);
        bound.record_cost(Cost { fixed: Some(0.001), per_byte: Some(5e-6) }, 2 * MS);
        flush_often(&bound, 2 * MS, 2 * MS);
        assert_eq!(bound.bytes_for(2), TIGHT.least_bytes);
        let fast = FlushBound::default();
        fast.record_cost(Cost { per_byte: Some(0.0), ..COST }, MS);
        fast.record_flush(1, COST, MS);
        assert_eq!(fast.bytes_for(2), u64::MAX, "it takes no time");
    }
}
