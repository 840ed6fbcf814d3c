//! The bound on reads of guests at the store while other disks wait for flushes.
//!
//! I/O schedulers and disks serve reads before synced writes: next to a deep queue of large reads, a durable
//! write may take a hundred times as long as alone. So while a disk flushes, the reads of other disks are
//! bounded, so that few commits take more than [`SLOWED`] times as long as calm commits. A commit that takes
//! longer halves the bound; any other commit increases the bound by a thirty-second if a read waits. So about
//! one commit of 25 is slowed.
//!
//! The time of a calm commit is the minimum of recent measurements ([`super::cost`]). The bound begins at its
//! minimum, and returns to its minimum each time that old measurements are dropped. Otherwise, commits that
//! are always slowed would count as calm.

use std::time::Duration;

use super::cost::Calm;
use super::flush_bound::Flushing;
use crate::limits::READS_AT_ONCE;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// A commit is slowed if it takes this many times as long as a calm commit, ...
const SLOWED: f64 = 2.0;
/// ... but at least this long: the scheduling of threads delays faster commits as much as reads do.
const LEAST_SLOWED: Duration = Duration::from_micros(500);
/// Minimum of the bound on reads in flight, in bytes.
const LEAST_BYTES: u64 = 256 << 10;
/// The bound applies for this long after a commit that ended while a disk flushed.
const RECENT: Duration = Duration::from_secs(1);
/// Number of a disk that does not exist.
const NO_DISK: u64 = u64::MAX;

/// The bound on reads in flight; see the module documentation.
#[derive(Debug)]
pub(crate) struct ReadBound {
    bytes: AtomicU64,
    /// Time until which the bound applies, in microseconds of the host's clock.
    until: AtomicU64,
    /// The only disk that flushes, if there is only one: its reads are not bounded, since they delay only its
    /// own flushes.
    only: AtomicU64,
}

impl Default for ReadBound {
    fn default() -> ReadBound {
        ReadBound {
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
    /// Records that a commit, which took `took`, is durable at `now`; `calm` is the time of a calm commit.
    /// `waits`: a read waits for admission.
    pub fn record_commit(&self, flushing: Flushing, calm: Calm, took: Duration, now: Duration, waits: bool) {
        let only = if let Flushing::Only(id) = flushing { id } else { NO_DISK };
        self.only.store(only, Relaxed);
        self.until.store(micros(now.saturating_add(RECENT)), Relaxed);
        let is_slowed = match calm {
            Calm::Restarts => return self.bytes.store(LEAST_BYTES, Relaxed),
            Calm::Takes(None) => false,
            Calm::Takes(Some(calm)) => took > LEAST_SLOWED && took.as_secs_f64() > SLOWED * calm,
        };
        let present = self.bytes.load(Relaxed);
        let next = match is_slowed {
            true => present / 2,
            false if waits => present + present / 32,
            false => present,
        };
        self.bytes.store(next.clamp(LEAST_BYTES, READS_AT_ONCE), Relaxed);
    }

    /// Bytes of concurrent reads at the store that apply to disk `id`; `None` without a bound.
    pub fn bytes_for(&self, id: u64, now: Duration) -> Option<u64> {
        let applies = micros(now) < self.until.load(Relaxed) && self.only.load(Relaxed) != id;
        applies.then(|| self.bytes.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::cost::CommitCost;

    const MS: Duration = Duration::from_millis(1);

    /// The read bound, and the cost of commits.
    #[derive(Default)]
    struct Rig {
        bound: ReadBound,
        cost: CommitCost,
    }

    impl Rig {
        fn record(&mut self, bytes: u64, took: Duration, waits: bool) {
            let calm = self.cost.record_calm(bytes, took);
            self.bound.record_commit(Flushing::Several, calm, took, MS, waits);
        }

        /// A commit of `bytes` on a store that takes 1 ms, 1 ms for each MiB, and 4 ms for each MiB of reads.
        fn commit(&mut self, bytes: u64, reads: u64) -> Duration {
            let took = MS + (MS * (bytes / 4096 + reads / 1024) as u32) / 256;
            self.record(bytes, took, true);
            took
        }

        /// The bound of a disk that does not flush.
        fn bytes(&self) -> u64 {
            self.bound.bytes_for(1, MS).unwrap_or(LEAST_BYTES)
        }
    }

    #[test]
    fn reads_slow_commits_to_about_twice_the_least_time() {
        let mut rig = Rig::default();
        for i in 0..20_000 {
            let took = rig.commit(4096, rig.bytes());
            assert!(took < MS * 5, "commit {i} took {took:?}, next to the least reads 2 ms");
        }
        // The bound rises between slowed commits.
        let most = (0..500).map(|_| {
            rig.commit(4096, rig.bytes());
            rig.bytes()
        });
        assert!(most.max().unwrap() > 600 << 10);
    }

    #[test]
    fn reads_that_slow_nothing_are_not_bounded_for_long() {
        let mut rig = Rig::default();
        (0..200).for_each(|_| _ = rig.commit(4096, 0));
        assert_eq!(rig.bytes(), READS_AT_ONCE);
        rig.record(4096, 9 * MS, false);
        (0..200).for_each(|_| rig.record(4096, MS, false));
        assert_eq!(rig.bytes(), READS_AT_ONCE / 2, "no read waits");
        (0..200).for_each(|_| _ = rig.commit(4096, 0));
        (0..200).for_each(|_| _ = rig.commit(1 << 20, 0));
        assert_eq!(rig.bytes(), READS_AT_ONCE, "larger groups take longer");
    }

    #[test]
    fn commits_that_are_slowed_all_the_time_are_not_taken_for_calm_ones() {
        let mut rig = Rig::default();
        // Commits take ten times as long from 1 MiB on, even if the bound changes.
        let took = |bytes: u64| if bytes >= 1 << 20 { 10 * MS } else { MS };
        let slow = (0..20_000).filter(|_| {
            let took = took(rig.bytes());
            rig.record(4096, took, true);
            took > MS
        });
        assert!(slow.count() < 3000);
    }

    #[test]
    fn only_others_are_bounded_and_only_while_a_disk_flushes() {
        let bound = ReadBound::default();
        assert_eq!(bound.bytes_for(1, MS), None);
        bound.record_commit(Flushing::Only(1), Calm::Takes(None), MS, MS, true);
        assert_eq!(bound.bytes_for(1, MS), None);
        assert!(bound.bytes_for(2, MS).is_some());
        assert_eq!(bound.bytes_for(2, 2 * MS + RECENT), None);
    }
}
