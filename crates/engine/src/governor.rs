//! The policy of a store that runs short of room: when a reclaim begins, how fast guests may write, and when they are
//! refused. It is pure: [`Situation`] holds all that a decision depends on, and the tests are tables.
//!
//! **Four levels**, by the free room above the reserve. With *plenty* a reclaim begins when garbage is likely to be a
//! good part of what is stored. When room is *tight* marks come more often, so dead segments are dropped early. When it
//! is *short* the cleaner works harder the less is left, and writers are slowed down by degrees: their rate follows the
//! rate at which room is freed, so both meet before the reserve is reached. When the store is *full* writers wait.
//!
//! **ENOSPC** is for a writer whom waiting does not help: no reclaim is under way, the last one moved all that was worth
//! it and gained next to nothing, and nothing was overwritten, discarded or deleted since its mark began. The wait has
//! an end where nothing can be freed: after [`PATIENCE`] fruitless reclaims in a row writers are refused until one is
//! fruitful. A deletion is worth the wait for one more reclaim.

use std::time::Duration;

use crate::limits::{RECLAIM_SHARE, ROOM_SHARE, TIGHT_SHARE};

/// Fruitless reclaims in a row after which writers do not wait for another.
pub(crate) const PATIENCE: u32 = 3;
/// While the store is short of room, it is asked this often.
pub(crate) const SPACE_CHECK: Duration = Duration::from_secs(1);
/// A write is delayed at most so long at a time.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(1);

/// How much room there is, in four levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Plenty,
    Tight,
    Short,
    Full,
}

/// What came of the last reclaim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Bytes freed beyond those that it wrote itself.
    pub gained: u64,
    /// It cleaned all that was worth it; what is left is live, or not known to be dead.
    pub exhausted: bool,
}

/// What a decision depends on. Sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub free: u64,
    pub total: u64,
    /// Kept for deletions, checkpoints, cleaning and what is in the buffers already.
    pub reserve: u64,
    /// The store is full: by its own account, or because it refused data.
    pub full: bool,
    pub segment: u64,
    /// What lies in the store, as of the last mark.
    pub stored: u64,
    /// Appended to the log since the last mark began, apart from what the cleaner moved.
    pub appended: u64,
    /// Written by guests since the last mark began: what they overwrote became garbage.
    pub written: u64,
    /// Discarded by guests since then.
    pub discarded: u64,
    /// Something was deleted since then, or an image is to be packed.
    pub due: bool,
    /// A reclaim is under way.
    pub cleaning: bool,
    pub last: Outcome,
    /// How many more fruitless reclaims writers wait for.
    pub patience: u32,
}

/// What is worth a reclaim where the store is full.
pub(crate) fn min_reclaim_bytes(segment: u64) -> u64 {
    segment / 4
}

impl Situation {
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

    /// How much of the margin is left, in percent.
    fn margin_left(&self) -> u64 {
        self.free.saturating_sub(self.reserve).min(self.margin()) * 100 / self.margin()
    }

    fn was_fruitful(&self) -> bool {
        self.last.gained >= min_reclaim_bytes(self.segment)
    }

    /// Whether another reclaim may free more than the last one did.
    fn is_promising(&self) -> bool {
        self.patience > 0 && (self.was_fruitful() || !self.last.exhausted)
    }

    /// Whether a reclaim should begin.
    pub fn wants_reclaim(&self) -> bool {
        let few = 4 * self.segment;
        let much = (self.stored / RECLAIM_SHARE).max(few);
        let changed = self.written + self.discarded;
        let by_level = match self.level() {
            Level::Plenty => false,
            Level::Tight => changed >= self.margin().max(few),
            Level::Short => changed >= few || self.is_promising(),
            // Writers are held back, so a smaller change is reason enough.
            Level::Full => changed >= min_reclaim_bytes(self.segment) || self.is_promising(),
        };
        self.due || self.appended >= much || self.discarded >= much || by_level
    }

    /// Whether a writer should wait for room rather than be refused.
    pub fn reclaim_may_help(&self) -> bool {
        self.patience > 0 && (self.cleaning || self.wants_reclaim())
    }

    /// The pause between the last reclaim, which took `took`, and the next; `configured` is that of a store with room.
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

    /// The cleaner's share of the time, in percent, where `calm` is that of a store with room: all of it when half of
    /// the margin is used up.
    pub fn clean_duty(&self, calm: u64) -> u64 {
        let used = (100 - self.margin_left()) * 2;
        calm + (100 - calm) * used.min(100) / 100
    }

    /// Bytes per second that guests may write, where room is freed at `freed` bytes per second; `None` is no bound.
    /// As much as is freed where a third of the margin is left, more above, less below.
    pub fn write_rate(&self, freed: u64) -> Option<u64> {
        let left = self.margin_left();
        if left >= 100 {
            return None;
        }
        // Before anything is known to be freed, what is left lasts for some seconds.
        let base = u128::from(freed.max(self.margin() / 8));
        let rate = base * 2 * u128::from(left) / u128::from(100 - left);
        Some(u64::try_from(rate).unwrap_or(u64::MAX).max(min_reclaim_bytes(self.segment).max(1)))
    }

    /// Bytes that the buffers may hold, of `budget` at most: once admitted they are going to be stored, so no more than
    /// is left above the reserve, and always something.
    pub fn buffer_budget(&self, budget: u64) -> u64 {
        let above = self.free.saturating_sub(self.reserve);
        above.max(min_reclaim_bytes(self.segment)).min(budget)
    }
}

/// The rate at which the cleaner makes room, over some seconds of its work.
#[derive(Debug, Default)]
pub(crate) struct FreeingRate {
    since: Duration,
    freed: u64,
    own: u64,
    per_second: u64,
}

impl FreeingRate {
    const WINDOW: Duration = Duration::from_secs(3);

    /// Work begins: what was done before does not count, nor does the pause.
    pub fn begin(&mut self, now: Duration, freed: u64, own: u64) {
        (self.since, self.freed, self.own) = (now, freed, own);
    }

    /// Takes in the work since the last call, by the counters of bytes freed and of bytes that the cleaner wrote.
    pub fn sample(&mut self, now: Duration, freed: u64, own: u64) {
        let took = now.saturating_sub(self.since);
        if took.is_zero() {
            return;
        }
        let gained = freed.saturating_sub(self.freed).saturating_sub(own.saturating_sub(self.own));
        let (took_us, window) = (took.as_micros().max(1), Self::WINDOW.as_micros());
        let rate = u128::from(gained) * 1_000_000 / took_us;
        let mixed = (u128::from(self.per_second) * window + rate * took_us) / (window + took_us);
        self.per_second = u64::try_from(mixed).unwrap_or(u64::MAX);
        self.begin(now, freed, own);
    }

    pub fn per_second(&self) -> u64 {
        self.per_second
    }
}

#[cfg(test)]
#[path = "governor/tests.rs"]
mod tests;
