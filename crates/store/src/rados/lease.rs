//! The lease of an owner: the time until which no other server can have taken the pool over.
//!
//! The time since the last heartbeat is measured by two clocks, and the lease ends as soon as one of the
//! clocks shows that [`LEASE`] has passed. The clock of the kernel also counts the time for which the machine
//! was suspended. But in a virtual machine this clock can stand still while the hypervisor has paused the
//! machine (QEMU's `stop` with a guest on kvm-clock), and another server can take the pool over during this
//! pause. In many of these pauses the *counter* of the processor continues to count. Its rate is measured
//! with the heartbeats.
//!
//! **Limit of the method.** If neither clock shows a pause, for example because the hypervisor sets the
//! counter back, the lease continues after the pause for the rest of its time: at most [`LEASE`] by the clock
//! of this server. In this time, reads can be stale. Writes do not depend on the lease
//! ([`super::ownership`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;

use super::cluster::Cluster;

/// Duration of the lease: for this long after a server sent a heartbeat that was acknowledged, no other
/// server has taken the pool over. It is shorter than the time after which an owner is regarded as dead.
const LEASE: Duration = Duration::from_secs(3);
/// Number of measured rates that are kept. The median of the rates counts, so that one pause or one
/// suspension, in which the counter may stop, does not falsify it.
const MAX_RATES: usize = 5;
const MIN_RATES: usize = 3;
/// Share by which the lease is extended if the counter measures it, as one part in this number: the counter's
/// rate is not exact.
const MARGIN: u64 = 10;
/// Minimum time between two heartbeats that determine the rate.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum pause that is reported.
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// A moment on the system clock and on the processor's counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// Value of [`Cluster::now`].
    pub now: Duration,
    /// Value of [`Cluster::ticks`].
    pub ticks: Option<u64>,
}

impl Moment {
    pub fn of(cluster: &dyn Cluster) -> Moment {
        Moment { now: cluster.now(), ticks: cluster.ticks() }
    }
}

/// The time for which the ownership is certain; see the module documentation.
#[derive(Debug)]
pub(super) struct Lease {
    /// End of the lease in microseconds of the system clock.
    until: AtomicU64,
    /// End of the lease on the counter; the largest number while the rate is not known.
    ticks_until: AtomicU64,
    rate: Mutex<Rate>,
    /// The pool is being given back: the lease has ended, and no heartbeat extends it.
    has_ended: AtomicBool,
}

/// The rate of the processor's counter.
#[derive(Debug, Default)]
struct Rate {
    /// The last heartbeat.
    last: Option<Moment>,
    /// Ticks in a millisecond, between heartbeats; the oldest one first.
    rates: Vec<u64>,
}

impl Default for Lease {
    fn default() -> Lease {
        let (until, ticks_until) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Lease { until, ticks_until, rate: Mutex::default(), has_ended: AtomicBool::new(false) }
    }
}

impl Lease {
    /// Returns the rest of the lease: the time in which no other server can take the pool over.
    pub fn left(&self, at: Moment) -> Duration {
        if self.has_ended.load(Acquire) {
            return Duration::ZERO;
        }
        if at.ticks.is_some_and(|ticks| ticks >= self.ticks_until.load(Relaxed)) {
            return Duration::ZERO;
        }
        Duration::from_micros(self.until.load(Relaxed)).saturating_sub(at.now)
    }

    /// Ends the lease for good, before the pool is given back: from then on another server may have it.
    pub fn end(&self) {
        self.has_ended.store(true, Release);
    }

    /// Extends the lease, because a heartbeat that was sent at `sent` was acknowledged. Returns the time
    /// since the previous heartbeat that the clock has not counted, if it is long.
    pub fn extend(&self, sent: Moment) -> Option<Duration> {
        let mut rate = self.rate.lock();
        let known = rate.median();
        let missed = rate.add(sent, known);
        let lasts = rate.median().map(|ticks| ticks * millis(LEASE) / MARGIN * (MARGIN + 1));
        let end = sent.ticks.zip(lasts).map_or(u64::MAX, |(ticks, lasts)| ticks.saturating_add(lasts));
        self.ticks_until.store(end, Relaxed);
        self.until.fetch_max((sent.now + LEASE).as_micros() as u64, Relaxed);
        missed
    }
}

impl Rate {
    /// Median of the measured rates, in ticks per millisecond.
    fn median(&self) -> Option<u64> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable();
        (sorted.len() >= MIN_RATES).then(|| sorted[sorted.len() / 2])
    }

    /// Adds the rate since the last heartbeat, and returns what [`Lease::extend`] returns; `known` is the
    /// rate before.
    fn add(&mut self, at: Moment, known: Option<u64>) -> Option<Duration> {
        if self.last.is_some_and(|last| at.now.saturating_sub(last.now) < MIN_INTERVAL) {
            return None;
        }
        let last = self.last.replace(at)?;
        let Some(ticks) = at.ticks.zip(last.ticks).and_then(|(at, last)| at.checked_sub(last)) else {
            // The counter has begun again.
            self.rates.clear();
            return None;
        };
        let interval = at.now.saturating_sub(last.now);
        if self.rates.len() == MAX_RATES {
            self.rates.remove(0);
        }
        self.rates.push(ticks / millis(interval));
        let counted = Duration::from_millis(ticks.checked_div(known?)?);
        Some(counted.saturating_sub(interval)).filter(|missed| *missed >= MIN_PAUSE)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    /// Ticks in a second.
    const HZ: u64 = 2_800_000_000;

    fn moment(seconds: f64, ticks: u64) -> Moment {
        Moment { now: Duration::from_secs_f64(seconds), ticks: Some(ticks) }
    }

    /// A lease after this number of heartbeats; one heartbeat was sent in each second.
    fn after_heartbeats(count: u64) -> Lease {
        let lease = Lease::default();
        for n in 1..=count {
            assert_eq!(lease.extend(moment(n as f64, n * HZ)), None);
        }
        lease
    }

    #[test]
    fn a_lease_ends_on_the_clock() {
        for ticks in [None, Some(7)] {
            let lease = Lease::default();
            assert_eq!(lease.left(Moment { now: Duration::ZERO, ticks }), Duration::ZERO);
            lease.extend(Moment { now: 5 * S, ticks });
            assert_eq!(lease.left(Moment { now: 6 * S, ticks }), 2 * S);
            assert_eq!(lease.left(Moment { now: 8 * S, ticks }), Duration::ZERO);
        }
    }

    #[test]
    fn a_pause_that_only_the_counter_shows_ends_the_lease() {
        let lease = after_heartbeats(6);
        assert!(lease.left(moment(7.5, 7 * HZ + HZ / 2)) > S);
        // The hypervisor paused the machine for a minute.
        assert_eq!(lease.left(moment(7.6, 67 * HZ)), Duration::ZERO);
        let missed = lease.extend(moment(7.7, 68 * HZ)).expect("it is reported");
        assert!(missed > 59 * S && missed < 61 * S, "{missed:?}");
        assert!(lease.left(moment(8.2, 68 * HZ + HZ / 2)) > 2 * S, "the next heartbeat opens the gate again");
        assert_eq!(lease.left(moment(8.3, 90 * HZ)), Duration::ZERO, "one pause does not hide the next one");
    }

    #[test]
    fn a_counter_that_stops_or_begins_again_does_not_end_the_lease() {
        let lease = after_heartbeats(6);
        // The machine was suspended for a minute: the clock shows the minute, and the counter stood still.
        assert_eq!(lease.extend(moment(66.0, 7 * HZ)), None);
        assert!(lease.left(moment(67.5, 8 * HZ + HZ / 2)) > S);
        // The machine was migrated to a host whose counter is behind.
        assert_eq!(lease.extend(moment(68.0, HZ)), None);
        assert!(lease.left(moment(70.0, 3 * HZ)) >= S);
    }

    #[test]
    fn a_counter_that_is_not_exact_does_not_end_the_lease() {
        let lease = after_heartbeats(6);
        assert!(lease.left(moment(8.9, 9 * HZ)) > Duration::ZERO);
    }
}
