//! The commit scheduler: when a commit begins.
//!
//! Left alone, what is dirty waits for [`DIRTY_AGE`]; so many small writes become one large append. A flush, a
//! write-through write or a buffer that fills up makes a commit *urgent*. All that becomes urgent while one commit
//! runs is served by the next, so a slow store gets large groups by itself.
//!
//! With [`Coalesce::Adaptive`] an urgent commit also waits a little where that saves operations: where commits
//! lately had several guests waiting for them, others are about to come. It waits for a part of what a commit
//! costs, as measured, and never longer than the configured bound: a fast store is hardly waited for, a slow one
//! gets rarer and larger groups. A guest that flushes alone never waits for others.

use std::time::Duration;

use tokio::sync::Notify;

use crate::CommitStats;
use crate::limits::DIRTY_AGE;
use crate::pool::Pool;
use crate::stats::Counter;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// Whether small writes are gathered into large ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// As the store and the guests make it worth it.
    #[default]
    Adaptive,
    /// Every commit waits as long as is allowed.
    Always,
    /// Not at all: a write is answered when it is durable.
    Off,
}

/// An urgent commit waits for this part of what one costs.
const SHARE_OF_COST: u32 = 4;
/// The mean of those who wait is kept in units of one of so many; each commit has a weight of one eighth.
const UNIT: u64 = 256;

/// Why and when commits begin.
#[derive(Default)]
pub(crate) struct Schedule {
    /// There may be something to do.
    pub wake: Notify,
    /// Somebody waits.
    urgent: AtomicBool,
    /// Those who wait for a commit now.
    waiting: AtomicU64,
    /// How many lately waited for a commit.
    crowd: AtomicU64,
    by_age: Counter,
    by_demand: Counter,
    delayed_us: AtomicU64,
}

impl Schedule {
    /// Has the next commit begin soon.
    pub fn hurry(&self) {
        self.urgent.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Counts one who waits for a commit, as long as the guard lives.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// Takes those who wait now into the mean, which is returned.
    fn take_crowd(&self) -> u64 {
        let (now, mean) = (self.waiting.load(Relaxed) * UNIT, self.crowd.load(Relaxed));
        let mean = mean - mean / 8 + now / 8;
        self.crowd.store(mean, Relaxed);
        mean
    }
}

/// One who waits for a commit.
pub(crate) struct Waiting<'a>(&'a Schedule);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// How long an urgent commit waits for others, where one costs `cost` and `crowd` wait for each, in [`UNIT`]s.
fn delay(how: Coalesce, cost: Duration, crowd: u64, most: Duration) -> Duration {
    match how {
        Coalesce::Off => Duration::ZERO,
        Coalesce::Always => most,
        Coalesce::Adaptive if crowd > UNIT * 3 / 2 => (cost / SHARE_OF_COST).min(most),
        Coalesce::Adaptive => Duration::ZERO,
    }
}

impl Pool {
    /// Lets a commit gather more, until its data is of age or somebody is in a hurry.
    pub(crate) async fn linger(&self) {
        let schedule = &self.commit.schedule;
        if self.config.coalesce == Coalesce::Off {
            return;
        }
        let mut age = self.host.sleep(DIRTY_AGE);
        while !schedule.urgent.swap(false, Relaxed) {
            tokio::select! {
                biased;
                () = schedule.wake.notified() => {}
                () = &mut age => return schedule.by_age.add(0),
            }
        }
        schedule.by_demand.add(0);
        let cost = Duration::from_micros(self.store.commit_us());
        let delay = delay(self.config.coalesce, cost, schedule.take_crowd(), self.config.commit_delay);
        if !delay.is_zero() {
            schedule.delayed_us.fetch_add(delay.as_micros() as u64, Relaxed);
            self.host.sleep(delay).await;
        }
    }

    /// What the scheduler decided.
    pub(crate) fn commit_stats(&self) -> CommitStats {
        let schedule = &self.commit.schedule;
        CommitStats {
            cost_us: self.store.commit_us(),
            by_age: schedule.by_age.get().ops,
            by_demand: schedule.by_demand.get().ops,
            delayed_us: schedule.delayed_us.load(Relaxed),
            waiting: schedule.crowd.load(Relaxed) as f64 / UNIT as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_guest_alone_never_waits_for_others() {
        for cost in [MS / 10, 40 * MS] {
            assert_eq!(delay(Coalesce::Adaptive, cost, UNIT, 10 * MS), Duration::ZERO);
        }
    }

    #[test]
    fn a_crowd_waits_a_part_of_what_a_commit_costs_within_bounds() {
        let wait = |cost| delay(Coalesce::Adaptive, cost, 4 * UNIT, 10 * MS);
        assert_eq!((wait(MS / 5), wait(20 * MS), wait(400 * MS)), (MS / 20, 5 * MS, 10 * MS));
        assert_eq!(delay(Coalesce::Always, MS, UNIT, 10 * MS), 10 * MS);
        assert_eq!(delay(Coalesce::Off, 400 * MS, 9 * UNIT, 10 * MS), Duration::ZERO);
    }

    #[test]
    fn the_mean_of_a_crowd_comes_and_goes() {
        let schedule = Schedule::default();
        schedule.waiting.store(8, Relaxed);
        (0..40).for_each(|_| _ = schedule.take_crowd());
        assert!(schedule.take_crowd() > 7 * UNIT);
        schedule.waiting.store(1, Relaxed);
        (0..40).for_each(|_| _ = schedule.take_crowd());
        assert!(schedule.take_crowd() < UNIT * 3 / 2);
    }
}
