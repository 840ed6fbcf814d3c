//! The policy of a store that is running out of room: when a reclaim begins, how fast guests may write, and
//! when their writes are refused. All functions are pure: [`Situation`] holds all inputs of a decision, and
//! the tests are tables.
//!
//! **Four levels**, by the free room above the reserve. At *plenty* a reclaim begins when garbage is likely
//! to be a considerable share of the stored data. At *tight*, marks are made more often, so that dead
//! segments are dropped early. At *short*, the cleaner's share of the time grows as the room shrinks, and
//! writers are slowed down gradually: their rate follows the rate at which room is freed, so that both rates
//! become equal before the reserve is reached. At *full*, writers wait.
//!
//! **ENOSPC** is returned to a writer if a wait would not help: no reclaim is under way, the last reclaim
//! moved all data worth moving and gained almost nothing, and nothing was overwritten, discarded or deleted
//! since its mark began. The wait is bounded if nothing can be freed: after [`PATIENCE`] successive reclaims
//! that gained too little, writers are refused until a reclaim gains enough. A deletion justifies waiting for
//! one more reclaim.

use std::time::Duration;

use crate::limits::{RECLAIM_SHARE, ROOM_SHARE, TIGHT_SHARE};

/// Number of successive reclaims without sufficient gain after which writers do not wait for another reclaim.
pub(crate) const PATIENCE: u32 = 3;
/// Interval at which the free room is queried while the store is short of room.
pub(crate) const SPACE_CHECK: Duration = Duration::from_secs(1);

/// How much free room the store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Plenty,
    Tight,
    Short,
    Full,
}

/// Result of the last reclaim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Bytes freed, minus the bytes that checkpoints and the cleaner wrote. Earlier reclaims that did not
    /// gain enough are included.
    pub gained: u64,
    /// The reclaim cleaned everything worthwhile; the remaining data is live, or not known to be dead.
    pub exhausted: bool,
}

/// The inputs of a decision. Sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub free: u64,
    pub total: u64,
    /// Bytes that are kept for deletions, checkpoints, cleaning, and data that is in the buffers already.
    pub reserve: u64,
    /// The store is full: according to its capacity, or because it refused data.
    pub full: bool,
    pub segment: u64,
    /// Bytes in the store, as of the last mark.
    pub stored: u64,
    /// Bytes appended to the log since the last mark began, without the bytes that the cleaner moved.
    pub appended: u64,
    /// Bytes written by guests since the last mark began: the data that they overwrote became garbage.
    pub written: u64,
    /// Bytes discarded by guests since the last mark began.
    pub discarded: u64,
    /// Since the last mark began, a disk was deleted or an image became due for packing.
    pub due: bool,
    /// A reclaim is under way.
    pub cleaning: bool,
    pub last: Outcome,
    /// Number of further reclaims without sufficient gain for which writers wait.
    pub patience: u32,
}

/// Minimum gain that makes a reclaim worthwhile while the store is full.
pub(crate) fn min_reclaim_bytes(segment: u64) -> u64 {
    segment / 4
}

impl Situation {
    /// The level of free room.
    pub fn level(&self) -> Level {
        let above = self.free.saturating_sub(self.reserve);
        if self.full {
            Level::Full
        } else if self.free < self.reserve || above < self.margin() {
            Level::Short
        } else if above < self.total / TIGHT_SHARE {
            Level::Tight
        } else {
            Level::Plenty
        }
    }

    /// The room above the reserve that the cleaner keeps free.
    fn margin(&self) -> u64 {
        (self.total / ROOM_SHARE).max(1)
    }

    /// The part of the margin that remains, in percent.
    fn margin_left(&self) -> u64 {
        self.free.saturating_sub(self.reserve).min(self.margin()) * 100 / self.margin()
    }

    fn last_reclaim_freed_enough(&self) -> bool {
        self.last.gained >= min_reclaim_bytes(self.segment)
    }

    /// Whether another reclaim may free more than the last reclaim.
    fn may_free_more(&self) -> bool {
        self.patience > 0 && (self.last_reclaim_freed_enough() || !self.last.exhausted)
    }

    /// Whether a reclaim should begin.
    pub fn wants_reclaim(&self) -> bool {
        let few = 4 * self.segment;
        let much = (self.stored / RECLAIM_SHARE).max(few);
        let changed = self.written + self.discarded;
        let by_level = match self.level() {
            Level::Plenty => false,
            Level::Tight => changed >= self.margin().max(few),
            Level::Short => changed >= few || self.may_free_more(),
            // Writers are held back, so a smaller change of the garbage suffices.
            Level::Full => changed >= min_reclaim_bytes(self.segment) || self.may_free_more(),
        };
        self.due || self.appended >= much || self.discarded >= much || by_level
    }

    /// Whether a writer should wait for room instead of being refused.
    pub fn reclaim_may_help(&self) -> bool {
        self.patience > 0 && (self.cleaning || self.wants_reclaim())
    }

    /// The pause between the last reclaim, which took `took`, and the next; `configured` is the pause of a
    /// store with room.
    pub fn pause(&self, configured: Duration, took: Duration) -> Duration {
        let brief = configured.min(SPACE_CHECK);
        match self.level() {
            Level::Plenty => configured.max(took * 4),
            Level::Tight => brief.max(took * 2),
            Level::Short => brief.max(took) * self.margin_left() as u32 / 100,
            Level::Full if self.reclaim_may_help() => Duration::ZERO,
            Level::Full => brief.max(took),
        }
    }

    /// The cleaner's share of the time, in percent; `calm` is the share on a store with room. It reaches 100
    /// when half of the margin is used up.
    pub fn clean_duty(&self, calm: u64) -> u64 {
        let used = (100 - self.margin_left()) * 2;
        calm + (100 - calm) * used.min(100) / 100
    }

    /// Limit on the bytes per second that guests may write, while room is freed at `freed` bytes per second;
    /// `None` means unlimited. It equals `freed` when a third of the margin is left, is higher above and
    /// lower below.
    pub fn write_rate(&self, freed: u64) -> Option<u64> {
        let left = self.margin_left();
        if left >= 100 {
            return None;
        }
        // Rate while the rate of freeing is unknown: the remaining room lasts for some seconds at this rate.
        let base = u128::from(freed.max(self.margin() / 8));
        let rate = base * 2 * u128::from(left) / u128::from(100 - left);
        Some(u64::try_from(rate).unwrap_or(u64::MAX).max(min_reclaim_bytes(self.segment).max(1)))
    }

    /// Bytes that the write buffers may hold, at most `budget`. Admitted data has to be stored, so it is also
    /// limited by the room above the reserve, except for a minimum that is always allowed.
    pub fn buffer_budget(&self, budget: u64) -> u64 {
        let above = self.free.saturating_sub(self.reserve);
        above.max(min_reclaim_bytes(self.segment)).min(budget)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
