//! Figures of commits and checkpoints, for statistics.

use std::time::Duration;

use super::committer::Committer;
use crate::stats::{CommitStats, Count, GuestStats, ReductionStats};

impl Committer {
    /// Current duration of a commit on the store: an append and a sync.
    pub fn commit_cost(&self) -> Duration {
        Duration::from_micros(self.reader.source.store.commit_us())
    }

    /// Number of commits since the pool was opened.
    pub fn commits(&self) -> u64 {
        self.commits.get().ops
    }

    /// Number of checkpoints since the pool was opened, and their bytes.
    pub fn checkpoints(&self) -> Count {
        self.checkpoints.get()
    }

    pub fn commit_stats(&self) -> CommitStats {
        self.intake.pacing.schedule.stats(self.commit_cost())
    }

    pub fn reduction(&self) -> ReductionStats {
        self.reducer.stats()
    }

    /// Operations of guests on disks that have since been deleted.
    pub fn retired(&self) -> GuestStats {
        *self.applier.retired.lock()
    }
}
