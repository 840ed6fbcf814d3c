//! What a load did over time: counters and latencies of each interval, and of the measured time as a whole.
//!
//! Each thread has a series for each load; they are added at the end of a phase. The number of intervals is
//! bounded by the choice of their length ([`interval`]).

use std::time::Duration;

use hdrhistogram::Histogram;

use super::record::{Latency, Point};
use crate::load::{Counts, histogram};

/// Approximate maximum of the number of intervals of a phase.
const INTERVALS: u32 = 400;
/// Lengths of intervals.
const LENGTHS_MS: [u64; 9] = [250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000];

/// The length of intervals for a phase that takes this long.
pub(super) fn interval(phase: Duration) -> Duration {
    let fits = |ms: &u64| phase.as_millis() <= u128::from(*ms) * u128::from(INTERVALS) / 2;
    let chosen = LENGTHS_MS.iter().copied().find(fits);
    Duration::from_millis(chosen.unwrap_or(LENGTHS_MS[LENGTHS_MS.len() - 1]))
}

#[derive(Clone, Default)]
struct Interval {
    ops: u64,
    bytes: u64,
    nanos: Option<Histogram<u32>>,
}

/// The figures of a load; see the module documentation.
pub(super) struct Series {
    interval: Duration,
    intervals: Vec<Interval>,
    /// Reads, writes and flushes of the measured time; the other counters are of the whole phase.
    pub counts: Counts,
    pub unsent: u64,
    pub unanswered: u64,
    pub reconnects: u64,
    pub first_wrong: Option<String>,
    pub lost_unflushed: u64,
    /// Disks that reached their ends, and did not.
    pub ended: (u32, u32),
    /// Latencies in the measured time.
    nanos: Histogram<u64>,
}

impl Series {
    pub fn new(interval: Duration) -> Series {
        Series {
            interval,
            intervals: Vec::new(),
            counts: Counts::default(),
            unsent: 0,
            unanswered: 0,
            reconnects: 0,
            first_wrong: None,
            lost_unflushed: 0,
            ended: (0, 0),
            nanos: histogram(1, 3),
        }
    }

    /// Counts a request that was answered at `at`, since the start of the phase.
    pub fn answered(&mut self, at: Duration, measured: bool, write: bool, bytes: u32, nanos: u64) {
        let index = (at.as_nanos() / self.interval.as_nanos().max(1)) as usize;
        if self.intervals.len() <= index {
            self.intervals.resize(index + 1, Interval::default());
        }
        let interval = &mut self.intervals[index];
        interval.ops += 1;
        interval.bytes += u64::from(bytes);
        interval.nanos.get_or_insert_with(|| histogram(1000, 2)).saturating_record(nanos);
        if measured {
            self.counts.answered(write, bytes);
            self.nanos.saturating_record(nanos);
        }
    }

    /// Counts a request that was due and not sent by the end: it waited for at least this time.
    pub fn not_sent(&mut self, nanos: u64) {
        self.unsent += 1;
        self.nanos.saturating_record(nanos);
    }

    /// Counts a disk that is over, and may have reached its end.
    pub fn end(&mut self, reached: bool) {
        *(if reached { &mut self.ended.0 } else { &mut self.ended.1 }) += 1;
    }

    /// Adds the series of another thread.
    pub fn add(&mut self, other: Series) {
        if self.intervals.len() < other.intervals.len() {
            self.intervals.resize(other.intervals.len(), Interval::default());
        }
        for (mine, theirs) in self.intervals.iter_mut().zip(other.intervals) {
            mine.ops += theirs.ops;
            mine.bytes += theirs.bytes;
            match (&mut mine.nanos, theirs.nanos) {
                // Both histograms have the same bounds, so that every value fits.
                (Some(mine), Some(theirs)) => *mine += theirs,
                (mine @ None, theirs) => *mine = theirs,
                (Some(_), None) => {}
            }
        }
        self.counts.add(&other.counts);
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.reconnects += other.reconnects;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.lost_unflushed += other.lost_unflushed;
        self.ended = (self.ended.0 + other.ended.0, self.ended.1 + other.ended.1);
        self.nanos += other.nanos;
    }

    /// A percentile of the measured time, in milliseconds.
    pub fn percentile_ms(&self, percentile: f64) -> f64 {
        self.nanos.value_at_percentile(percentile) as f64 / 1e6
    }

    pub fn latency(&self) -> Latency {
        Latency {
            mean: self.nanos.mean() / 1e6,
            p50: self.percentile_ms(50.0),
            p95: self.percentile_ms(95.0),
            p99: self.percentile_ms(99.0),
            p999: self.percentile_ms(99.9),
            max: self.nanos.max() as f64 / 1e6,
        }
    }

    /// The points of a phase whose measured time starts at `start` and ends at `end`.
    pub fn points(&self, start: Duration, end: Duration) -> Vec<Point> {
        let each = self.interval.as_secs_f64();
        let count = (end.as_secs_f64() / each).round().max(1.0) as usize;
        let point = |i: usize| {
            let empty = Interval::default();
            let interval = self.intervals.get(i).unwrap_or(&empty);
            let ms = |q: f64| interval.nanos.as_ref().map_or(0.0, |h| h.value_at_percentile(q) as f64 / 1e6);
            Point {
                t: i as f64 * each - start.as_secs_f64(),
                ops: interval.ops,
                bytes: interval.bytes,
                p50: ms(50.0),
                p95: ms(95.0),
                p99: ms(99.0),
                max: ms(100.0),
            }
        };
        (0..count).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_few_and_not_shorter_than_needed() {
        let of = |s: f64| interval(Duration::from_secs_f64(s)).as_millis();
        assert_eq!([of(2.0), of(60.0), of(3600.0), of(50_000.0)], [250, 500, 30_000, 120_000]);
    }

    #[test]
    fn series_of_threads_are_added() {
        let second = Duration::from_secs(1);
        let mut a = Series::new(second);
        let mut b = Series::new(second);
        a.answered(Duration::from_millis(500), false, true, 4096, 1_000_000);
        b.answered(Duration::from_millis(1500), true, false, 4096, 3_000_000);
        b.answered(Duration::from_millis(1600), true, false, 4096, 5_000_000);
        a.add(b);
        assert_eq!(
            (a.counts.reads, a.counts.writes, a.counts.bytes()),
            (2, 0, 8192),
            "the warm-up is not counted"
        );
        let points = a.points(second, 3 * second);
        assert_eq!(points.iter().map(|p| p.ops).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!((points[0].t, points[2].t), (-1.0, 1.0));
        assert!((points[1].max - 5.0).abs() < 0.1 && (a.percentile_ms(50.0) - 3.0).abs() < 0.1);
        a.not_sent(60_000_000_000);
        assert!(a.latency().max > 50_000.0, "a request that was never sent has a latency");
    }
}
