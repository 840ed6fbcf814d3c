//! The commit scheduler: when a commit begins.
//!
//! Without other triggers, dirty data waits for [`DIRTY_AGE`]; thus many small writes become one large
//! append. A flush, a write-through write or a buffer that becomes full makes a commit *urgent*. The next
//! commit serves all requests that become urgent while a commit runs, so groups are large on a slow store
//! without further measures.
//!
//! With [`Coalesce::Adaptive`] an urgent commit also waits a little to *gather* requests that are likely to
//! follow: as many requests as the last commit served, since their clients can now send the next requests.
//! The commit begins when these requests have arrived, and at the latest after a part of the fixed cost of a
//! commit, which never exceeds the configured bound. So on a slow store, clients that write at the same time
//! share a commit, as do the requests in flight of one client; without the wait, they would be divided
//! between two commits that alternate. A single guest that flushes is never delayed.
//!
//! Gathering pays only while it saves more time than it takes. On a fast store, two groups that alternate are
//! faster: clients and network are busy with one group while the other group is prepared and written. So a
//! commit does not gather if the clients of earlier commits took longer to *return* with their next requests
//! than the commit could wait. A commit stops gathering when the group is *large*, that is, when its bytes
//! take as long as the fixed cost of a commit.
//!
//! A request that arrives while a commit gathers wakes the commit task only if it is the last one expected,
//! or makes the group large. If the task and the request miss each other, the deadline ends the wait.

use std::time::Duration;

use forebay_store::Mean;
use tokio::sync::Notify;

use super::cost::Cost;
use crate::CommitStats;
use crate::config::Coalesce;
use crate::context::Context;
use crate::limits::DIRTY_AGE;
use crate::stats::Counter;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// An urgent commit waits at most for the cost of a commit divided by this number.
const SHARE_OF_COST: u32 = 2;
/// Requests that return later count as if they had returned after this time, so that a pause of clients is
/// soon forgotten.
const LONGEST_RETURN: Duration = Duration::from_millis(10);
/// Triggers of commits, and the statistics on which their delay depends.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Wakes the commit task because there may be work.
    pub wake: Notify,
    /// Whether a request waits for a commit.
    urgent: AtomicBool,
    /// Number of requests that wait for a commit or waited for one.
    arrived: AtomicU64,
    /// Number of these requests that the last commit and all commits before it served.
    frozen: AtomicU64,
    /// Number of requests that the last commit serves.
    served: AtomicU64,
    /// Number of requests, none or one, that are added to `arrived` when a commit on a client's thread
    /// begins.
    helped: AtomicU64,
    /// Value of `arrived` when as many requests as the last commit served have followed it.
    expected: AtomicU64,
    /// Value of `arrived` at which the commit that gathers requests begins; 0 if no commit gathers requests.
    gathering: AtomicU64,
    /// Minimum bytes of a group that counts as large.
    large: AtomicU64,
    /// Time at which the last commit ended, in microseconds, while the requests that it served are expected
    /// to return; otherwise 0.
    ended: AtomicU64,
    /// Mean seconds until as many requests as a commit served have followed it.
    mean_return: Mean,
    /// Mean number of requests that a commit served.
    mean_served: Mean,
    by_age: Counter,
    by_demand: Counter,
    delayed_us: AtomicU64,
}

impl Schedule {
    /// Makes the next commit urgent, so that it begins now.
    pub fn request(&self) {
        self.urgent.store(true, Relaxed);
        self.gathering.store(0, SeqCst);
        self.wake.notify_one();
    }

    /// Makes the next commit urgent, for a request that waits for it. Other requests may follow first, until
    /// `dirty` bytes make a large group.
    pub fn request_with_others(&self, dirty: u64, now: Duration) {
        self.urgent.store(true, Relaxed);
        let arrived = self.arrived.fetch_add(1, SeqCst) + 1;
        if arrived >= self.expected.load(Relaxed) {
            self.have_returned(now);
        }
        if arrived >= self.gathering.load(SeqCst) || dirty >= self.large.load(Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Works like [`Schedule::request_with_others`], on a thread that makes the commit itself as far as it
    /// can. The request counts only if that commit begins before [`Schedule::end_help`]; otherwise the
    /// request is repeated.
    pub fn request_and_help(&self, now: Duration) {
        self.urgent.store(true, Relaxed);
        self.helped.store(1, SeqCst);
        if self.arrived.load(SeqCst) + 1 >= self.expected.load(Relaxed) {
            self.have_returned(now);
        }
        self.wake.notify_one();
    }

    /// Records that the client's thread no longer makes a commit.
    pub fn end_help(&self) {
        self.helped.store(0, SeqCst);
    }

    /// Announces that there is data to commit.
    pub fn announce_data(&self) {
        if self.gathering.load(Relaxed) == 0 {
            self.wake.notify_one();
        }
    }

    /// Records that a commit begins: it serves all requests that have arrived.
    pub fn commit_begins(&self) {
        let helped = self.helped.swap(0, SeqCst);
        let arrived = self.arrived.fetch_add(helped, SeqCst) + helped;
        let served = arrived - self.frozen.swap(arrived, Relaxed);
        self.served.store(served, Relaxed);
        if served > 0 {
            self.mean_served.add(served as f64);
        }
    }

    /// Records that the commit has ended: the requests that it served are about to be answered.
    pub fn commit_ended(&self, now: Duration) {
        // Requests of the previous commit may not have returned yet.
        self.have_returned(now);
        let served = self.served.load(Relaxed);
        self.expected.store(self.arrived.load(Relaxed) + served, Relaxed);
        if served > 0 {
            self.ended.store((now.as_micros() as u64).max(1), Relaxed);
        }
    }

    /// Measures how long the requests of the last commit took to return, if they are still expected.
    fn have_returned(&self, now: Duration) {
        if self.ended.load(Relaxed) == 0 {
            return;
        }
        let ended = self.ended.swap(0, Relaxed);
        if ended > 0 {
            let took = now.saturating_sub(Duration::from_micros(ended)).min(LONGEST_RETURN);
            self.mean_return.add(took.as_secs_f64());
        }
    }

    /// Waits until the expected requests have arrived, the group is large, a commit is requested at once, or
    /// `delay` has passed.
    async fn gather(&self, cx: &Context, delay: Duration, dirty: impl Fn() -> u64) {
        let is_complete = || {
            let arrived = self.arrived.load(SeqCst) + self.helped.load(SeqCst);
            arrived >= self.gathering.load(SeqCst) || dirty() >= self.large.load(Relaxed)
        };
        self.gathering.store(self.expected.load(Relaxed), SeqCst);
        if !is_complete() {
            let began = cx.host.now();
            let mut deadline = cx.host.sleep(delay);
            while !is_complete() {
                tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = &mut deadline => break,
                }
            }
            let waited = cx.host.now().saturating_sub(began);
            self.delayed_us.fetch_add(waited.as_micros() as u64, Relaxed);
        }
        self.gathering.store(0, SeqCst);
        // The data of every request that has arrived is in the buffers.
        self.urgent.store(false, Relaxed);
    }
}

impl Schedule {
    /// Maximum time for which an urgent commit waits to gather requests. `cost` is the cost of a commit
    /// without regard to its size.
    fn delay(&self, coalesce: Coalesce, cost: Duration, most: Duration) -> Duration {
        let pays = (cost / SHARE_OF_COST).min(most);
        match coalesce {
            Coalesce::Off => Duration::ZERO,
            Coalesce::Always => most,
            Coalesce::Adaptive if self.mean_return.get() > Some(pays.as_secs_f64()) => Duration::ZERO,
            Coalesce::Adaptive => pays,
        }
    }

    /// Waits until the dirty data is [`DIRTY_AGE`] old or a commit is requested, and in the latter case also
    /// for the coalescing delay. `cost` returns the cost of a commit on the store, `dirty` the bytes of the
    /// group.
    pub(super) async fn wait_to_coalesce(
        &self,
        cx: &Context,
        cost: impl Fn() -> Cost,
        dirty: impl Fn() -> u64,
    ) {
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
        let cost = cost();
        let fixed = cost.fixed.unwrap_or(0.0);
        let delay = self.delay(cx.config.coalesce, Duration::from_secs_f64(fixed), cx.config.commit_delay);
        if cx.config.coalesce == Coalesce::Always {
            self.delayed_us.fetch_add(delay.as_micros() as u64, Relaxed);
            cx.host.sleep(delay).await;
        } else if !delay.is_zero() {
            self.large.store(cost.bytes_in(fixed).unwrap_or(u64::MAX), Relaxed);
            self.gather(cx, delay, dirty).await;
        }
    }

    /// Statistics of the decisions; `cost` is the current duration of a commit.
    pub fn stats(&self, cost: Duration) -> CommitStats {
        CommitStats {
            cost_us: cost.as_micros() as u64,
            by_age: self.by_age.get().ops,
            by_demand: self.by_demand.get().ops,
            delayed_us: self.delayed_us.load(Relaxed),
            waiting: self.mean_served.get().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_wait_for_a_bounded_share_of_the_commit_cost() {
        let schedule = Schedule::default();
        let wait = |cost| schedule.delay(Coalesce::Adaptive, cost, 10 * MS);
        assert_eq!((wait(MS / 5), wait(10 * MS), wait(400 * MS)), (MS / 10, 5 * MS, 10 * MS));
        assert_eq!(schedule.delay(Coalesce::Always, MS, 10 * MS), 10 * MS);
        assert_eq!(schedule.delay(Coalesce::Off, 400 * MS, 10 * MS), Duration::ZERO);
    }

    /// Makes commits that serve two requests each; the requests return after `pause`.
    fn commit_often(schedule: &Schedule, pause: Duration) {
        for n in 1..100 {
            schedule.commit_begins();
            schedule.commit_ended(n * 20 * MS);
            (0..2).for_each(|_| schedule.request_with_others(4096, n * 20 * MS + pause));
        }
    }

    #[test]
    fn a_commit_gathers_only_what_returns_sooner_than_it_could_wait() {
        let schedule = Schedule::default();
        let wait = || schedule.delay(Coalesce::Adaptive, 2 * MS, 10 * MS);
        for (pause, expected) in
            [(MS / 2, MS), (2 * MS, Duration::ZERO), (MS / 2, MS), (15 * MS, Duration::ZERO)]
        {
            commit_often(&schedule, pause);
            assert_eq!(wait(), expected, "{pause:?}");
        }
    }

    #[test]
    fn the_requests_of_the_last_commit_are_expected_again() {
        let schedule = Schedule::default();
        let arrive = |n| (0..n).for_each(|_| schedule.request_with_others(0, MS));
        let lacking = || schedule.expected.load(Relaxed).saturating_sub(schedule.arrived.load(Relaxed));
        let commit_ends = || schedule.commit_ended(MS);
        arrive(1);
        assert_eq!(lacking(), 0, "nothing is known of the first request");
        schedule.commit_begins();
        arrive(3);
        commit_ends();
        assert_eq!(lacking(), 1, "the one that was served, in addition to the three that wait");
        arrive(1);
        assert_eq!(lacking(), 0);
        schedule.commit_begins();
        commit_ends();
        assert_eq!(lacking(), 4);
        arrive(1);
        schedule.commit_begins();
        commit_ends();
        assert_eq!(lacking(), 1, "three clients sent no more");
    }
}
