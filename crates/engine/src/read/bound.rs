//! The bound on reads of guests at the store while other disks wait for flushes.
//!
//! I/O schedulers and disks serve reads before synced writes: next to a deep queue of large reads, a durable
//! write may take a hundred times as long as alone. So while a disk flushes, the reads of others are bounded
//! so that few commits take more than [`SLOWED`] times as long as calm ones. One that does halves the bound,
//! any other increases it by a thirty-second if a read waits: so about one commit of 25 is slowed.
//!
//! What a calm commit takes is the least that was measured recently, for small groups and for each byte of
//! larger ones. The bound begins at its least value, and returns to it each time that old measurements are
//! dropped: otherwise commits that are always slowed would count as calm.

use std::time::Duration;

use crate::limits::READS_AT_ONCE;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// The disks that flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushing {
    None,
    Only(u64),
    Several,
}

/// A commit is slowed if it takes this many times as long as a calm one, ...
const SLOWED: f64 = 2.0;
/// ... but at least this long: scheduling of threads delays faster ones as much as reads do.
const LEAST_SLOWED: Duration = Duration::from_micros(500);
/// Least bound.
const LEAST_BYTES: u64 = 256 << 10;
/// The bound applies for this long after a commit while a disk flushes.
const RECENT: Duration = Duration::from_secs(1);
/// Groups of at most this size are small.
const SMALL_GROUP: u64 = 128 << 10;
/// Number of commits after which measurements are old.
const WINDOW: u32 = 1000;
/// Number of a disk that does not exist.
const NO_DISK: u64 = u64::MAX;

/// The least durations of commits in a window.
#[derive(Debug, Clone, Copy)]
struct Calm {
    /// Seconds of a small group.
    small: f64,
    /// Seconds for each byte of a larger one.
    per_byte: f64,
}

const UNKNOWN: Calm = Calm { small: f64::INFINITY, per_byte: f64::INFINITY };

impl Calm {
    fn record(&mut self, bytes: u64, seconds: f64, small: f64) {
        if bytes <= SMALL_GROUP {
            self.small = self.small.min(seconds);
        } else {
            let fixed = if small.is_finite() { small } else { 0.0 };
            self.per_byte = self.per_byte.min((seconds - fixed).max(0.0) / bytes as f64);
        }
    }

    fn least(self, other: Calm) -> Calm {
        Calm { small: self.small.min(other.small), per_byte: self.per_byte.min(other.per_byte) }
    }

    /// Seconds that a group takes; infinite if that is not known.
    fn expected(&self, bytes: u64) -> f64 {
        match bytes <= SMALL_GROUP {
            true => self.small,
            false if self.small.is_finite() => self.small + bytes as f64 * self.per_byte,
            false => bytes as f64 * self.per_byte,
        }
    }
}

#[derive(Debug)]
struct Commits {
    now: Calm,
    /// Of the window before.
    before: Calm,
    /// Number of commits in this window.
    count: u32,
}

/// Measures commits and bounds reads; see the module documentation.
#[derive(Debug)]
pub(crate) struct ReadBound {
    commits: Mutex<Commits>,
    bytes: AtomicU64,
    /// When it ends to apply, in microseconds of the host's clock.
    until: AtomicU64,
    /// The only disk that flushes: its reads delay only its own flushes.
    only: AtomicU64,
}

impl Default for ReadBound {
    fn default() -> ReadBound {
        ReadBound {
            commits: Mutex::new(Commits { now: UNKNOWN, before: UNKNOWN, count: 0 }),
            bytes: AtomicU64::new(LEAST_BYTES),
            until: AtomicU64::new(0),
            only: AtomicU64::new(NO_DISK),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl ReadBound {
    /// Records that a group of `bytes`, whose commit took `took`, is durable at `now`. `waits`: a read waits
    /// for admission.
    pub fn record_group(&self, flushing: Flushing, bytes: u64, took: Duration, now: Duration, waits: bool) {
        let only = match flushing {
            Flushing::None => return,
            Flushing::Only(id) => id,
            Flushing::Several => NO_DISK,
        };
        self.only.store(only, Relaxed);
        self.until.store(micros(now.saturating_add(RECENT)), Relaxed);
        let mut commits = self.commits.lock();
        let calm = commits.now.least(commits.before);
        commits.now.record(bytes, took.as_secs_f64(), calm.small);
        commits.count += 1;
        if commits.count == WINDOW {
            *commits = Commits { now: UNKNOWN, before: commits.now, count: 0 };
            self.bytes.store(LEAST_BYTES, Relaxed);
            return;
        }
        let (present, most) = (self.bytes.load(Relaxed), READS_AT_ONCE);
        let is_slowed = took > LEAST_SLOWED && took.as_secs_f64() > SLOWED * calm.expected(bytes);
        let next = match is_slowed {
            true => present / 2,
            false if waits => present + present / 32,
            false => present,
        };
        self.bytes.store(next.clamp(LEAST_BYTES, most), Relaxed);
    }

    /// Bytes that may be read at a time, in the view of disk `id`; `None` without a bound.
    pub fn bytes_for(&self, id: u64, now: Duration) -> Option<u64> {
        let applies = micros(now) < self.until.load(Relaxed) && self.only.load(Relaxed) != id;
        applies.then(|| self.bytes.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Commits of `bytes` on a store that takes 1 ms, 1 ms for each MiB, and 4 ms for each MiB of reads.
    fn commit(bound: &ReadBound, bytes: u64, reads: u64) -> Duration {
        let took = MS + (MS * (bytes / 4096 + reads / 1024) as u32) / 256;
        bound.record_group(Flushing::Several, bytes, took, MS, true);
        took
    }

    #[test]
    fn reads_slow_commits_to_about_twice_the_least_time() {
        let bound = ReadBound::default();
        for i in 0..20_000 {
            let took = commit(&bound, 4096, bound.bytes_for(1, MS).unwrap_or(LEAST_BYTES));
            assert!(took < MS * 5, "commit {i} took {took:?}, next to the least reads 2 ms");
        }
        // The bound rises between the commits that are slowed.
        let most = (0..500).map(|_| {
            commit(&bound, 4096, bound.bytes_for(1, MS).unwrap_or(LEAST_BYTES));
            bound.bytes_for(1, MS).unwrap()
        });
        assert!(most.max().unwrap() > 600 << 10);
    }

    #[test]
    fn reads_that_slow_nothing_are_not_bounded_for_long() {
        let bound = ReadBound::default();
        (0..200).for_each(|_| _ = commit(&bound, 4096, 0));
        assert_eq!(bound.bytes_for(1, MS), Some(READS_AT_ONCE));
        bound.record_group(Flushing::Several, 4096, 9 * MS, MS, false);
        (0..200).for_each(|_| bound.record_group(Flushing::Several, 4096, MS, MS, false));
        assert_eq!(bound.bytes_for(1, MS), Some(READS_AT_ONCE / 2), "no read waits");
        (0..200).for_each(|_| _ = commit(&bound, 4096, 0));
        (0..200).for_each(|_| _ = commit(&bound, 1 << 20, 0));
        assert_eq!(bound.bytes_for(1, MS), Some(READS_AT_ONCE), "larger groups take longer");
    }

    #[test]
    fn commits_that_are_slowed_all_the_time_are_not_taken_for_calm_ones() {
        let bound = ReadBound::default();
        // Whatever the bound is, commits take ten times as long from 1 MiB on.
        let took = |bytes: u64| if bytes >= 1 << 20 { 10 * MS } else { MS };
        let slow = (0..20_000).filter(|_| {
            let took = took(bound.bytes_for(1, MS).unwrap_or(LEAST_BYTES));
            bound.record_group(Flushing::Several, 4096, took, MS, true);
            took > MS
        });
        assert!(slow.count() < 3000);
    }

    #[test]
    fn only_others_are_bounded_and_only_while_a_disk_flushes() {
        let bound = ReadBound::default();
        bound.record_group(Flushing::None, 4096, MS, MS, true);
        assert_eq!(bound.bytes_for(1, MS), None);
        bound.record_group(Flushing::Only(1), 4096, MS, MS, true);
        assert_eq!(bound.bytes_for(1, MS), None);
        assert!(bound.bytes_for(2, MS).is_some());
        assert_eq!(bound.bytes_for(2, 2 * MS + RECENT), None);
    }
}
