//! The reclaims so far: whether a reclaim is under way, the gain of each, and how fast they freed room.
//!
//! **Gain** is the room that a reclaim freed, minus what checkpoints and the cleaner wrote. Successive
//! reclaims that gain too little are judged together. The reason: each reclaim may free only what the
//! previous reclaim wrote. Judged alone, every second reclaim would then seem to gain, and writers would wait
//! for ever. **Patience** is the number of further such reclaims for which writers wait; a sufficient gain
//! restores it, and new garbage raises it to one.

use std::time::Duration;

use super::policy::{Outcome, PATIENCE};
use crate::pacing::FreeingRate;
use crate::stats::Counter;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;

/// The reclaims so far; see the module documentation.
#[derive(Default)]
pub(crate) struct Reclaims {
    /// A reclaim is under way.
    cleaning: AtomicBool,
    last: Mutex<Last>,
    rate: Mutex<FreeingRate>,
    /// Bytes that reclaims freed.
    pub freed: Counter,
    /// Bytes that the cleaner wrote.
    pub moved: Counter,
}

/// The last reclaim, and the reclaims without sufficient gain before it.
struct Last {
    outcome: Outcome,
    patience: u32,
    /// Host time at the end of the last reclaim; before the first reclaim, the time of opening the pool.
    ended: Duration,
    took: Duration,
    /// The bytes that had been freed and written at the beginning of the first reclaim in the present series
    /// of reclaims without enough gain.
    since: Option<(u64, u64)>,
}

impl Default for Last {
    fn default() -> Last {
        // The amount of garbage is not known yet, so writers wait for the first reclaim.
        Last {
            outcome: Outcome::default(),
            patience: PATIENCE,
            ended: Duration::ZERO,
            took: Duration::ZERO,
            since: None,
        }
    }
}

/// The state when a reclaim began.
pub(super) struct Began {
    at: Duration,
    freed: u64,
    own: u64,
}

impl Reclaims {
    /// Records that a reclaim begins. `own` bytes were written by checkpoints and the cleaner so far.
    pub(super) fn begin(&self, own: u64, now: Duration) -> Began {
        let freed = self.freed.get().bytes;
        self.rate.lock().begin(now, freed, own);
        self.cleaning.store(true, Relaxed);
        self.last.lock().since.get_or_insert((freed, own));
        Began { at: now, freed, own }
    }

    /// Updates the rate of freeing after a reclaim has freed room.
    pub(super) fn sample(&self, own: u64, now: Duration) {
        self.rate.lock().sample(now, self.freed.get().bytes, own);
    }

    /// Records the result of a reclaim. `enough`: the minimum gain that restores the patience; `None` if the
    /// store is not short of room. `exhausted`: the reclaim cleaned everything worthwhile.
    pub(super) fn end(&self, began: &Began, own: u64, now: Duration, enough: Option<u64>, exhausted: bool) {
        let mut last = self.last.lock();
        // A series has not begun if garbage became known while this reclaim was in progress.
        let since = last.since.unwrap_or((began.freed, began.own));
        let freed = self.freed.get().bytes.saturating_sub(since.0);
        let gained = freed.saturating_sub(own.saturating_sub(since.1));
        last.outcome = Outcome { gained, exhausted };
        last.ended = now;
        last.took = now.saturating_sub(began.at);
        if enough.is_none_or(|enough| gained >= enough) {
            (last.patience, last.since) = (PATIENCE, None);
        } else {
            last.patience = last.patience.saturating_sub(1);
        }
    }

    /// Records that no reclaim is under way any more.
    pub(super) fn stopped(&self) {
        self.cleaning.store(false, Relaxed);
    }

    /// Lets writers wait for another reclaim, since there is new garbage.
    pub(super) fn allow_another(&self) {
        let mut last = self.last.lock();
        last.patience = last.patience.max(1);
        last.since = None;
    }

    /// Records that the pool was opened at `now`: the pause before the first reclaim begins.
    pub fn opened(&self, now: Duration) {
        self.last.lock().ended = now;
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.cleaning.load(Relaxed)
    }

    /// The outcome of the last reclaim, and the patience for the next reclaims.
    pub(super) fn outcome(&self) -> (Outcome, u32) {
        let last = self.last.lock();
        (last.outcome, last.patience)
    }

    /// How long the last reclaim took, and the time since its end.
    pub(super) fn took_and_rested(&self, now: Duration) -> (Duration, Duration) {
        let last = self.last.lock();
        (last.took, now.saturating_sub(last.ended))
    }

    /// Bytes that reclaims free in a second.
    pub(super) fn per_second(&self) -> u64 {
        self.rate.lock().per_second()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reclaim frees the segment with the last but one checkpoint, so every second reclaim seems to gain
    /// room.
    #[test]
    fn reclaims_that_free_only_what_checkpoints_wrote_use_up_the_patience() {
        let (reclaims, mut own) = (Reclaims::default(), 0);
        let mut reclaim = |freed| {
            let began = reclaims.begin(own, Duration::ZERO);
            assert!(reclaims.is_under_way());
            own += 2;
            reclaims.freed.add(freed);
            reclaims.end(&began, own, Duration::ZERO, Some(1), false);
            reclaims.stopped();
            reclaims.outcome().1
        };
        let patience: Vec<u32> = (0..4).map(|number| reclaim(number % 2 * 4)).collect();
        assert_eq!(patience, [2, 1, 0, 0]);
        // What was written before does not count against a reclaim that has something to free.
        reclaims.allow_another();
        assert_eq!(reclaim(4), PATIENCE);
    }
}
