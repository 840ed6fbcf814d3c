//! While room is short, writers are slowed down to the rate at which room is freed (ADR 12).
//!
//! [`FreeingRate`] measures how fast reclaims free room, [`crate::space`] derives the rate of all guests from
//! it, and [`WritePace`] delays writes so that they keep this rate. A write is delayed before it is admitted.
//! Delays are at most [`MAX_DELAY`], so that a rate which was too low is soon forgotten.

use std::time::Duration;

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// Maximum delay of a single write.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The rate at which all guests together may write.
#[derive(Debug)]
pub(crate) struct WritePace {
    /// Bytes per second; `u64::MAX` for no limit.
    rate: AtomicU64,
    /// Host time before which no paced write begins.
    next: Mutex<Duration>,
}

impl Default for WritePace {
    fn default() -> WritePace {
        WritePace { rate: AtomicU64::new(u64::MAX), next: Mutex::default() }
    }
}

impl WritePace {
    /// Sets the rate, in bytes per second; `None` for no limit.
    pub fn set(&self, rate: Option<u64>) {
        self.rate.store(rate.unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether the rate of writes is limited.
    pub fn is_limited(&self) -> bool {
        self.rate.load(Relaxed) != u64::MAX
    }

    /// Delay of a write of `len` bytes that keeps all writes together within the rate.
    pub fn delay(&self, len: u64, now: Duration) -> Duration {
        let rate = self.rate.load(Relaxed).max(1);
        if len == 0 || rate == u64::MAX {
            return Duration::ZERO;
        }
        let takes = Duration::from_secs_f64(len as f64 / rate as f64);
        let mut next = self.next.lock();
        let begin = (*next).clamp(now, now + MAX_DELAY);
        *next = begin + takes.min(MAX_DELAY);
        begin - now
    }
}

/// The rate at which the cleaner frees room, measured over some seconds of its work.
#[derive(Debug, Default)]
pub(crate) struct FreeingRate {
    since: Duration,
    freed: u64,
    own: u64,
    per_second: u64,
}

impl FreeingRate {
    const WINDOW: Duration = Duration::from_secs(3);

    /// Begins a measurement: work and pauses before this call do not count.
    pub fn begin(&mut self, now: Duration, freed: u64, own: u64) {
        (self.since, self.freed, self.own) = (now, freed, own);
    }

    /// Adds the work since the last call to the measurement. `freed` and `own` are the counters of bytes
    /// freed, and of bytes that checkpoints and the cleaner wrote.
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn writes_are_delayed_to_the_rate_and_at_most_by_a_second() {
        let (pace, second) = (WritePace::default(), Duration::from_secs(1));
        assert_eq!(pace.delay(GIB, second), Duration::ZERO, "without a limit");
        pace.set(Some(4 * MIB));
        let delays = [MIB, 0, MIB, 64 * MIB, MIB, MIB].map(|len| pace.delay(len, second).as_millis());
        assert_eq!(delays, [0, 0, 250, 500, 1000, 1000]);
        assert_eq!(pace.delay(MIB, 10 * second), Duration::ZERO, "after a pause");
        pace.set(None);
        assert!(!pace.is_limited());
    }

    #[test]
    fn the_rate_of_freeing_is_net_gain_per_time_of_cleaning() {
        let mut rate = FreeingRate::default();
        let mut now = Duration::from_secs(100);
        rate.begin(now, GIB, GIB);
        for n in 1..=20 {
            now += Duration::from_secs(1);
            rate.sample(now, GIB + n * 30 * MIB, GIB + n * 10 * MIB);
        }
        assert!((19 * MIB..=20 * MIB).contains(&rate.per_second()), "{}", rate.per_second());
        // A pause of the cleaner does not count.
        now += Duration::from_secs(3600);
        rate.begin(now, 3 * GIB, 2 * GIB);
        assert!(rate.per_second() >= 19 * MIB);
    }
}
