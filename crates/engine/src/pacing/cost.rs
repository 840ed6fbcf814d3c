//! What a commit costs: the estimate on which the loops of this folder depend.
//!
//! **Formula.** A commit of `bytes` takes `fixed + bytes * per_byte` seconds ([`Cost`]). Groups of at most
//! [`SMALL_GROUP`] determine `fixed`, larger groups determine `per_byte`. Three costs are measured, for three
//! questions:
//!
//! - *recent*: how many bytes of the buffers does the store commit in a given time? The mean of commits, from
//!   the freeze until the maps are changed, each with a weight of one eighth; of bytes in the write buffers.
//! - *calm*: how long would a commit take if nothing slowed it? The minimum of the last 1,000 to 2,000
//!   commits that were made while disks flushed; of bytes in the log.
//! - *of the store*: what does a separate commit cost, compared with more bytes in another commit? The mean
//!   time of an append and a sync, minus the time of the bytes in the log at an assumed rate
//!   ([`STORE_PER_BYTE`]).
//!
//! One cost does not answer all three questions. Under load, the mean is above the calm cost. Data takes less
//! room in the log than in the buffers, and the store does not need the time for reducing the data. Commits
//! that gather requests all have about the same size, so they do not determine `per_byte`.

use std::time::Duration;

use forebay_store::next_mean;

/// Groups of at most this size measure the fixed part of a commit's cost, larger groups the time for each
/// byte.
pub(super) const SMALL_GROUP: u64 = 128 << 10;
/// Minimum share of the fixed part, and of the data, in the time of a commit. A single slow sync does not
/// measure the data, and the time of small groups next to a large writer is not all due to data.
const LEAST_PART: f64 = 0.25;
/// Number of commits after which calm measurements are outdated: some seconds of a guest that flushes all the
/// time, in which the load of the store changes.
const WINDOW: u32 = 1000;
/// Assumed seconds in which the store prepares and writes a byte: 1 GiB in a second, as local disks do.
const STORE_PER_BYTE: f64 = 1.0 / (1 << 30) as f64;

/// The cost of a commit, in seconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Cost {
    /// Seconds of a commit without its bytes; `None` if that is not known.
    pub fixed: Option<f64>,
    /// Seconds of each byte; `None` if that is not known.
    pub per_byte: Option<f64>,
}

impl Cost {
    /// Seconds of each byte of a large group, if the group took `took` seconds.
    fn per_byte_of(&self, bytes: u64, took: f64) -> f64 {
        (took - self.fixed.unwrap_or(0.0)).max(took * LEAST_PART) / bytes as f64
    }

    /// Seconds that a small group would have taken without its bytes.
    fn fixed_of(&self, bytes: u64, took: f64) -> f64 {
        (took - bytes as f64 * self.per_byte.unwrap_or(0.0)).max(took * LEAST_PART)
    }

    /// Seconds of a calm group of `bytes`; `None` if that is not known. The calm `fixed` is the whole time of
    /// a small group, including its bytes.
    fn of_group(&self, bytes: u64) -> Option<f64> {
        match bytes <= SMALL_GROUP {
            true => self.fixed,
            false => self.per_byte.map(|per_byte| self.fixed.unwrap_or(0.0) + bytes as f64 * per_byte),
        }
    }

    /// Bytes that a commit writes in `seconds`, in addition to the fixed part; `None` if that is not known.
    pub fn bytes_in(&self, seconds: f64) -> Option<u64> {
        self.per_byte.filter(|per_byte| *per_byte > 0.0).map(|per_byte| (seconds / per_byte) as u64)
    }

    fn least(self, other: Cost) -> Cost {
        Cost { fixed: least(self.fixed, other.fixed), per_byte: least(self.per_byte, other.per_byte) }
    }
}

fn least(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::min)
}

/// How long a commit takes if no other load slows it down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Calm {
    /// Seconds of a calm commit; `None` if that is not known.
    Takes(Option<f64>),
    /// The old measurements were dropped at this commit.
    Restarts,
}

/// The measurements of commits; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct CommitCost {
    recent: Cost,
    /// The calm cost in the present window of [`WINDOW`] commits, and in the previous window.
    windows: [Cost; 2],
    /// Number of commits in the present window.
    count: u32,
    /// Mean bytes of a commit in the log.
    logged: Option<f64>,
}

impl CommitCost {
    /// Records a group of `bytes` in the write buffers.
    pub fn record(&mut self, bytes: u64, took: Duration) {
        let (cost, took) = (&mut self.recent, took.as_secs_f64());
        if bytes <= SMALL_GROUP {
            cost.fixed = Some(next_mean(cost.fixed, cost.fixed_of(bytes, took)));
        } else {
            cost.per_byte = Some(next_mean(cost.per_byte, cost.per_byte_of(bytes, took)));
        }
    }

    /// Records a group of `bytes` in the log while disks flush, and returns how long such a group takes if it
    /// is calm. The least time of a small group is used as it is, since `per_byte` may still be too high.
    pub fn record_calm(&mut self, bytes: u64, took: Duration) -> Calm {
        let (calm, took) = (self.windows[0].least(self.windows[1]), took.as_secs_f64());
        let now = &mut self.windows[0];
        if bytes <= SMALL_GROUP {
            now.fixed = least(now.fixed, Some(took));
        } else {
            now.per_byte = least(now.per_byte, Some(calm.per_byte_of(bytes, took)));
        }
        self.count += 1;
        if self.count < WINDOW {
            return Calm::Takes(calm.of_group(bytes));
        }
        (self.windows, self.count) = ([Cost::default(), *now], 0);
        Calm::Restarts
    }

    /// Records the bytes that any commit has added to the log.
    pub fn record_logged(&mut self, bytes: u64) {
        self.logged = Some(next_mean(self.logged, bytes as f64));
    }

    /// The recent cost of commits.
    pub fn recent(&self) -> Cost {
        self.recent
    }

    /// The cost of the store, if a commit of the mean size takes `took`. The whole time may be due to the
    /// bytes.
    pub fn of_store(&self, took: Duration) -> Cost {
        let data = self.logged.unwrap_or(0.0) * STORE_PER_BYTE;
        Cost { fixed: Some((took.as_secs_f64() - data).max(0.0)), per_byte: Some(STORE_PER_BYTE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The time of a commit on a store that takes 4 ms, and 4 ms for each MiB.
    fn takes(bytes: u64) -> Duration {
        4 * MS + MS * (bytes >> 10) as u32 / 256
    }

    fn is_about(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value / expected - 1.0).abs() < 0.1)
    }

    #[test]
    fn groups_of_two_sizes_show_both_costs() {
        let mut cost = CommitCost::default();
        for _ in 0..100 {
            for bytes in [64 << 10, 8 << 20] {
                cost.record(bytes, takes(bytes));
                cost.record_calm(bytes, takes(bytes));
            }
        }
        let recent = cost.recent();
        assert!(is_about(recent.fixed, 0.004) && is_about(recent.per_byte, 0.004 / (1 << 20) as f64));
        assert!(recent.bytes_in(0.008).unwrap().abs_diff(2 << 20) < 128 << 10, "{recent:?}");
        let Calm::Takes(calm) = cost.record_calm(1 << 20, takes(1 << 20)) else { panic!("it restarts") };
        assert!(is_about(calm, 0.008), "{calm:?}");
    }

    #[test]
    fn slow_commits_raise_the_mean_and_not_the_least() {
        let mut cost = CommitCost::default();
        cost.record_calm(4096, MS);
        for _ in 0..50 {
            cost.record(4096, 10 * MS);
            assert_eq!(cost.record_calm(4096, 10 * MS), Calm::Takes(Some(0.001)));
        }
        assert!(is_about(cost.recent().fixed, 0.01));
    }

    #[test]
    fn calm_measurements_are_dropped_after_two_windows() {
        let mut cost = CommitCost::default();
        assert_eq!(cost.record_calm(4096, MS), Calm::Takes(None));
        let restarts: Vec<u32> =
            (2..=2 * WINDOW).filter(|_| cost.record_calm(4096, 10 * MS) == Calm::Restarts).collect();
        assert_eq!(restarts, [WINDOW, 2 * WINDOW]);
        assert_eq!(cost.record_calm(4096, 10 * MS), Calm::Takes(Some(0.01)));
    }

    /// Without the minimum share, a group that is slightly larger than a small group, and as fast, would make
    /// the data of all larger groups cost nothing.
    #[test]
    fn the_data_of_a_large_group_takes_a_part_of_its_time() {
        let mut cost = CommitCost::default();
        cost.record_calm(4096, MS);
        cost.record_calm(132 << 10, MS);
        let Calm::Takes(Some(calm)) = cost.record_calm(1 << 20, 2 * MS) else { panic!("it is not known") };
        assert!(calm > 0.0025, "{calm}");
    }

    #[test]
    fn the_bytes_of_a_commit_are_not_fixed_costs_of_the_store() {
        let mut cost = CommitCost::default();
        assert_eq!(cost.of_store(MS).fixed, Some(0.001), "nothing is known of the bytes");
        (0..100).for_each(|_| cost.record_logged(1 << 20));
        assert_eq!(cost.of_store(MS / 2).fixed, Some(0.0));
        let data = 0.005 - cost.of_store(5 * MS).fixed.unwrap();
        assert!((0.0009..0.0011).contains(&data), "{data} s for 1 MiB");
    }
}
