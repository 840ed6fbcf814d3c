//! The bound on the data in the write buffers while clients wait for flushes.
//!
//! A commit takes everything that is dirty (ADR 3), so a flush of one disk also waits for the data of all
//! others. While a disk flushes, the others may therefore buffer only as much as the store commits in about
//! [`GROUP_COSTS`] times the cost of a small commit, which this module measures: a flush then waits for the
//! rest of one group and for its own, and together these hold that much data of others once. A disk's own
//! flushes do not bound its own data, so a single writer that flushes keeps the whole buffer. The price is
//! throughput: with [`GROUP_COSTS`] of 2, at least a third of the time of busy commits is their fixed
//! cost.

use std::time::Duration;

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// Time to commit the data that others may buffer, in costs of a small commit.
const GROUP_COSTS: f64 = 2.0;
/// Least such time, for stores whose commits cost next to nothing.
const LEAST_GROUP_TIME: Duration = Duration::from_micros(500);
/// A disk counts as one that flushes for this long after its last flush.
const FLUSH_RECENT: Duration = Duration::from_secs(1);
/// Groups of at most this size show the cost of a small commit, larger ones the time for each byte.
const SMALL_GROUP: u64 = 128 << 10;
/// Least bound: a commit begins at half of it, and smaller groups would not show the time for each byte any
/// more.
const LEAST_BOUND: u64 = 4 * SMALL_GROUP;
/// Values of `flushing` other than the only disk that flushes.
const NONE: u64 = u64::MAX;
const SEVERAL: u64 = u64::MAX - 1;

/// What is known about commits: moving means with a weight of one eighth.
#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    /// Seconds of a small group.
    small: Option<f64>,
    /// Seconds for each byte of a larger one.
    per_byte: Option<f64>,
}

/// The disks that flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushing {
    None,
    Only(u64),
    Several,
}

/// Measures commits and bounds the write buffers; see the module documentation.
#[derive(Debug)]
pub(crate) struct FlushBound {
    /// The two disks that flushed last, and when.
    last: Mutex<[Option<(u64, Duration)>; 2]>,
    /// The disk that flushes, [`NONE`] or [`SEVERAL`].
    flushing: AtomicU64,
    cost: Mutex<Cost>,
    /// Bytes that disks may buffer while another one flushes.
    bytes: AtomicU64,
}

impl Default for FlushBound {
    fn default() -> FlushBound {
        FlushBound {
            last: Mutex::default(),
            flushing: AtomicU64::new(NONE),
            cost: Mutex::default(),
            bytes: AtomicU64::new(u64::MAX),
        }
    }
}

fn mean(before: Option<f64>, value: f64) -> Option<f64> {
    Some(before.map_or(value, |mean| mean + (value - mean) / 8.0))
}

impl FlushBound {
    /// Records that a client of disk `id` waits for its data to become durable.
    pub fn record_flush(&self, id: u64, now: Duration) {
        let mut last = self.last.lock();
        match &mut *last {
            [Some((first, at)), _] if *first == id => *at = now,
            [first, second] => {
                *second = *first;
                *first = Some((id, now));
            }
        }
        self.update(&mut last, now);
    }

    /// Forgets disks that have not flushed recently.
    fn update(&self, last: &mut [Option<(u64, Duration)>; 2], now: Duration) {
        let flushing = match last.each_mut().map(|entry| {
            *entry = entry.filter(|(_, at)| now.saturating_sub(*at) < FLUSH_RECENT);
            entry.map(|(id, _)| id)
        }) {
            [Some(_), Some(_)] => SEVERAL,
            [Some(id), None] | [None, Some(id)] => id,
            [None, None] => NONE,
        };
        self.flushing.store(flushing, Relaxed);
    }

    /// Records that a group of `bytes` in the buffers, whose commit began at `began`, is durable at `now`.
    pub fn record_group(&self, bytes: u64, began: Duration, now: Duration) {
        self.update(&mut self.last.lock(), now);
        let mut cost = self.cost.lock();
        let took = now.saturating_sub(began).as_secs_f64();
        if bytes <= SMALL_GROUP {
            cost.small = mean(cost.small, took);
        } else {
            // At least a quarter of the time is that of the data: a single slow sync is no measure of it.
            let data = (took - cost.small.unwrap_or(0.0)).max(took / 4.0);
            cost.per_byte = mean(cost.per_byte, data / bytes as f64);
        }
        let Some(per_byte) = cost.per_byte.filter(|s| *s > 0.0) else { return };
        let time = (cost.small.unwrap_or(0.0) * GROUP_COSTS).max(LEAST_GROUP_TIME.as_secs_f64());
        self.bytes.store(((time / per_byte) as u64).max(LEAST_BOUND), Relaxed);
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
            Flushing::Only(_) | Flushing::Several => self.bytes.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A store that takes 4 ms and 1 ms for each further 256 KiB.
    fn measured() -> FlushBound {
        let bound = FlushBound::default();
        for _ in 0..40 {
            bound.record_group(4096, MS, 5 * MS);
            bound.record_group(8 << 20, MS, 37 * MS);
        }
        bound
    }

    #[test]
    fn the_bound_is_what_the_store_commits_in_the_time_of_two_small_commits() {
        let bound = measured();
        bound.record_flush(1, MS);
        let bytes = bound.bytes_for(2);
        assert!((bytes as i64 - (2 << 20)).abs() < 64 << 10, "{bytes}");
    }

    #[test]
    fn only_other_disks_are_bounded_and_only_for_a_while() {
        let bound = measured();
        assert_eq!(bound.bytes_for(1), u64::MAX);
        bound.record_flush(1, 10 * MS);
        assert_eq!(bound.bytes_for(1), u64::MAX, "its own flushes");
        assert!(bound.bytes_for(2) < u64::MAX);
        bound.record_flush(2, 20 * MS);
        bound.record_flush(2, 30 * MS);
        assert!(
            bound.bytes_for(1) < u64::MAX && bound.bytes_for(2) < u64::MAX && bound.bytes_for(3) < u64::MAX
        );
        bound.record_group(4096, 6 * MS + FLUSH_RECENT, 10 * MS + FLUSH_RECENT);
        assert_eq!(bound.bytes_for(2), u64::MAX, "the flushes of the other are long ago");
        assert!(bound.bytes_for(1) < u64::MAX);
        bound.record_group(4096, 26 * MS + FLUSH_RECENT, 30 * MS + FLUSH_RECENT);
        assert_eq!(bound.bytes_for(3), u64::MAX);
    }

    #[test]
    fn nothing_is_bounded_before_the_store_was_measured() {
        let bound = FlushBound::default();
        bound.record_flush(1, MS);
        assert_eq!(bound.bytes_for(2), u64::MAX);
    }

    #[test]
    fn a_store_of_any_speed_leaves_a_useful_bound() {
        let bound = FlushBound::default();
        for _ in 0..9 {
            bound.record_group(1 << 20, MS, Duration::from_secs(5));
        }
        bound.record_flush(1, Duration::from_secs(5));
        assert_eq!(bound.bytes_for(2), LEAST_BOUND);
        let fast = FlushBound::default();
        fast.record_group(1 << 30, MS, MS);
        fast.record_flush(1, MS);
        assert_eq!(fast.bytes_for(2), u64::MAX, "it takes no time");
    }
}
