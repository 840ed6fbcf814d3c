//! A token bucket.
//!
//! The bucket holds at most `burst` tokens, and gains `rate` tokens a second. A request is admitted when the
//! bucket holds its cost, or is full if the cost exceeds the burst; then the bucket may become negative, and
//! later requests wait until it has recovered. So over any time `t`, the requests admitted cost at most
//! `burst + rate * t`, plus the part of one request that exceeds the burst; and as long as requests wait,
//! they cost at least `rate * t` less one request.

use std::time::Duration;

use super::rates::Rate;

/// Tokens are counted in billionths, so that rounding loses nothing however often the level is computed.
const UNIT: i128 = 1_000_000_000;
/// The default burst is the rate divided by this number: a tenth of a second.
const DEFAULT_BURST: u64 = 10;

/// A token bucket; see the module documentation.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: i128,
    /// Capacity of the bucket in billionths of a token, like `level`.
    capacity: i128,
    level: i128,
    /// Time at which the level was `level`.
    at: Duration,
}

impl Bucket {
    /// Returns a full bucket.
    pub fn new(rate: Rate, now: Duration) -> Bucket {
        let burst = rate.burst.unwrap_or(rate.per_second / DEFAULT_BURST).max(1);
        let capacity = i128::from(burst) * UNIT;
        Bucket { per_second: rate.per_second.max(1).into(), capacity, level: capacity, at: now }
    }

    /// A bucket for another rate. It holds as many tokens as this bucket, as far as it has room for them.
    pub fn with_rate(&self, rate: Rate, now: Duration) -> Bucket {
        let mut old = Bucket { ..*self };
        old.refill(now);
        let mut new = Bucket::new(rate, now);
        new.level = old.level.min(new.capacity);
        new
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_nanos() as i128;
        self.level = (self.level + passed * self.per_second).min(self.capacity);
        self.at = self.at.max(now);
    }

    /// Time until a request of `cost` tokens is admitted; zero if it is admitted now.
    pub fn delay(&mut self, cost: u64, now: Duration) -> Duration {
        self.refill(now);
        let missing = (i128::from(cost) * UNIT).min(self.capacity) - self.level;
        if missing <= 0 {
            return Duration::ZERO;
        }
        let nanos = (missing + self.per_second - 1) / self.per_second;
        Duration::from_nanos(nanos.min(i128::from(u64::MAX)) as u64)
    }

    /// Takes tokens for a request that is admitted.
    pub fn take(&mut self, cost: u64) {
        self.level -= i128::from(cost) * UNIT;
    }

    /// Returns the tokens of a request that was not made.
    pub fn give_back(&mut self, cost: u64) {
        self.level = (self.level + i128::from(cost) * UNIT).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_second: u64, burst: Option<u64>) -> Rate {
        Rate { per_second, burst }
    }

    #[test]
    fn a_request_beyond_the_burst_is_paid_afterwards() {
        let mut bucket = Bucket::new(rate(100, Some(10)), Duration::ZERO);
        assert_eq!(bucket.delay(50, Duration::ZERO), Duration::ZERO, "the bucket is full");
        bucket.take(50);
        assert_eq!(bucket.delay(1, Duration::ZERO), Duration::from_millis(410));
        assert_eq!(bucket.delay(50, Duration::from_millis(400)), Duration::from_millis(100));
    }

    #[test]
    fn a_slow_rate_admits_one_operation_at_a_time() {
        let mut bucket = Bucket::new(rate(1, None), Duration::ZERO);
        assert_eq!(bucket.delay(1, Duration::ZERO), Duration::ZERO);
        bucket.take(1);
        assert_eq!(bucket.delay(1, Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn a_new_rate_neither_forgives_nor_grants_tokens() {
        let mut bucket = Bucket::new(rate(100, Some(10)), Duration::ZERO);
        bucket.take(60);
        let mut faster = bucket.with_rate(rate(1000, Some(500)), Duration::ZERO);
        assert_eq!(faster.delay(1, Duration::ZERO), Duration::from_millis(51));
        let mut smaller = faster.with_rate(rate(10, Some(1)), Duration::from_secs(10));
        smaller.take(1);
        assert_eq!(smaller.delay(1, Duration::from_secs(10)), Duration::from_millis(100));
    }

    proptest! {
        /// Over any time, at most the rate and the burst are admitted, and at least the rate while requests
        /// wait.
        #[test]
        fn the_rate_is_kept_over_any_time(
            per_second in 1u64..1_000_000_000,
            burst in 1u64..1_000_000_000,
            costs in prop::collection::vec((1u64..1_000_000_000, 0u64..50_000_000), 2..60),
        ) {
            let mut bucket = Bucket::new(rate(per_second, Some(burst)), Duration::ZERO);
            let mut now = Duration::ZERO;
            let (mut admitted, mut waited) = (Vec::new(), Vec::new());
            for (cost, late) in costs {
                let cost = cost.min(burst);
                let delay = bucket.delay(cost, now);
                // The timer of the host is not exact.
                now += delay + Duration::from_nanos(if delay.is_zero() { 0 } else { late });
                prop_assert_eq!(bucket.delay(cost, now), Duration::ZERO);
                bucket.take(cost);
                admitted.push((now, cost));
                waited.push((delay, late));
            }
            for from in 0..admitted.len() {
                let (mut sum, start) = (0u128, admitted[from].0);
                for (at, cost) in &admitted[from..] {
                    sum += u128::from(*cost);
                    let time = (*at - start).as_nanos() + 1;
                    let most = u128::from(burst) + (time * u128::from(per_second)).div_ceil(1_000_000_000);
                    prop_assert!(sum <= most, "{sum} > {most}");
                }
            }
        }
    }
}
