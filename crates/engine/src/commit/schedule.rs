//! The commit scheduler: when a commit begins.
//!
//! Without other triggers, dirty data waits for [`DIRTY_AGE`]; thus many small writes become one large
//! append. A flush, a write-through write or a buffer that fills up makes a commit *urgent*. All requests
//! that become urgent while one commit runs are served by the next, so a slow store gets large groups without
//! further measures.
//!
//! With [`Coalesce::Adaptive`] an urgent commit also waits a little to coalesce if that saves operations: if
//! several requests waited for each of the recent commits, further requests are likely to follow. It waits
//! for a fraction of the measured cost of a commit, and never longer than the configured bound: the delay is
//! negligible on a fast store, and a slow one gets fewer and larger groups. A single guest that flushes is
//! never delayed.

use std::time::Duration;

use tokio::sync::Notify;

use crate::CommitStats;
use crate::config::Coalesce;
use crate::context::Context;
use crate::limits::DIRTY_AGE;
use crate::stats::Counter;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// An urgent commit waits for the cost of a commit divided by this.
const SHARE_OF_COST: u32 = 4;
/// The mean number of waiters is kept in fixed point with this unit; each commit has a weight of one eighth.
const UNIT: u64 = 256;

/// Triggers of commits, and the statistics on which their delay depends.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Wakes the commit task: there may be work.
    pub wake: Notify,
    /// A request waits for a commit.
    urgent: AtomicBool,
    /// Number of requests that wait for a commit now.
    waiting: AtomicU64,
    /// Recent mean number of requests that waited for a commit, in [`UNIT`]s.
    mean_waiting: AtomicU64,
    by_age: Counter,
    by_demand: Counter,
    delayed_us: AtomicU64,
}

impl Schedule {
    /// Makes the next commit urgent.
    pub fn request(&self) {
        self.urgent.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Counts a request that waits for a commit, until the guard is dropped.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// Updates the mean with the current number of waiters, and returns it.
    fn update_mean_waiting(&self) -> u64 {
        let (now, mean) = (self.waiting.load(Relaxed) * UNIT, self.mean_waiting.load(Relaxed));
        let mean = mean - mean / 8 + now / 8;
        self.mean_waiting.store(mean, Relaxed);
        mean
    }
}

/// A request that waits for a commit.
pub(crate) struct Waiting<'a>(&'a Schedule);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// Time for which an urgent commit waits to coalesce, if a commit costs `cost` and on average `mean_waiting`
/// requests wait for one, in [`UNIT`]s.
fn delay(coalesce: Coalesce, cost: Duration, mean_waiting: u64, most: Duration) -> Duration {
    match coalesce {
        Coalesce::Off => Duration::ZERO,
        Coalesce::Always => most,
        Coalesce::Adaptive if mean_waiting > UNIT * 3 / 2 => (cost / SHARE_OF_COST).min(most),
        Coalesce::Adaptive => Duration::ZERO,
    }
}

impl Schedule {
    /// Waits until the dirty data is [`DIRTY_AGE`] old or a commit is requested, and in the latter case for
    /// the coalescing delay. `cost` returns the current duration of a commit.
    pub async fn wait_to_coalesce(&self, cx: &Context, cost: impl Fn() -> Duration) {
        if cx.config.coalesce == Coalesce::Off {
            return;
        }
        let mut age = cx.host.sleep(DIRTY_AGE);
        while !self.urgent.swap(false, Relaxed) {
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = &mut age => return self.by_age.add(0),
            }
        }
        self.by_demand.add(0);
        let delay = delay(cx.config.coalesce, cost(), self.update_mean_waiting(), cx.config.commit_delay);
        if !delay.is_zero() {
            self.delayed_us.fetch_add(delay.as_micros() as u64, Relaxed);
            cx.host.sleep(delay).await;
        }
    }

    /// Statistics of the decisions; `cost` is the current duration of a commit.
    pub fn stats(&self, cost: Duration) -> CommitStats {
        CommitStats {
            cost_us: cost.as_micros() as u64,
            by_age: self.by_age.get().ops,
            by_demand: self.by_demand.get().ops,
            delayed_us: self.delayed_us.load(Relaxed),
            waiting: self.mean_waiting.load(Relaxed) as f64 / UNIT as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_single_guest_is_never_delayed() {
        for cost in [MS / 10, 40 * MS] {
            assert_eq!(delay(Coalesce::Adaptive, cost, UNIT, 10 * MS), Duration::ZERO);
        }
    }

    #[test]
    fn several_guests_wait_for_a_bounded_share_of_the_commit_cost() {
        let wait = |cost| delay(Coalesce::Adaptive, cost, 4 * UNIT, 10 * MS);
        assert_eq!((wait(MS / 5), wait(20 * MS), wait(400 * MS)), (MS / 20, 5 * MS, 10 * MS));
        assert_eq!(delay(Coalesce::Always, MS, UNIT, 10 * MS), 10 * MS);
        assert_eq!(delay(Coalesce::Off, 400 * MS, 9 * UNIT, 10 * MS), Duration::ZERO);
    }

    #[test]
    fn the_mean_number_of_waiters_follows_the_load() {
        let schedule = Schedule::default();
        schedule.waiting.store(8, Relaxed);
        (0..40).for_each(|_| _ = schedule.update_mean_waiting());
        assert!(schedule.update_mean_waiting() > 7 * UNIT);
        schedule.waiting.store(1, Relaxed);
        (0..40).for_each(|_| _ = schedule.update_mean_waiting());
        assert!(schedule.update_mean_waiting() < UNIT * 3 / 2);
    }
}
