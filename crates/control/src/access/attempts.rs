//! The limit on failed authentication, for each address.
//!
//! A secret has 256 random bits, so the limit is not needed against guesses: it bounds the work, the audit
//! log and the answers that a client without a valid token causes. A valid token is accepted at any time;
//! otherwise any local user could lock out the administrators on a loopback address.
//!
//! **Bounds.** One record for each IPv4 address or /64 network of IPv6, at most [`MAX`]; a new one replaces
//! the record whose last failure is oldest.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use forebay_frontend::plane::network;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Number of failures that are permitted before the limit applies.
const BURST: u32 = 10;
/// Time after which one more failure is permitted.
const INTERVAL: Duration = Duration::from_secs(6);
/// Maximum number of addresses with failed attempts that are recorded.
const MAX: usize = 4096;

#[derive(Debug)]
struct Record {
    /// Number of failures that count now.
    count: u32,
    last: Instant,
}

impl Record {
    /// Forgets a failure for each interval that has passed.
    fn settle(&mut self, now: Instant) {
        let passed = (now - self.last).as_millis() / INTERVAL.as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            self.count = self.count.saturating_sub(passed);
            self.last = now;
        }
    }
}

/// Failed attempts to authenticate, by address.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<IpAddr, Record>>);

impl Failures {
    /// Counts a failed attempt. Returns the time to wait if the limit is exceeded; the caller then answers
    /// the client with this time, and does not log the attempt.
    pub fn record(&self, address: Option<IpAddr>) -> Option<Duration> {
        let key = network(address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
        let now = Instant::now();
        let mut all = self.0.lock();
        if all.len() >= MAX
            && !all.contains_key(&key)
            && let Some(oldest) = all.iter().min_by_key(|(_, r)| r.last).map(|(key, _)| *key)
        {
            all.remove(&oldest);
        }
        let record = all.entry(key).or_insert(Record { count: 0, last: now });
        record.settle(now);
        if record.count >= BURST {
            return Some(INTERVAL.saturating_sub(now - record.last).max(Duration::from_secs(1)));
        }
        record.count += 1;
        record.last = now;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> Option<IpAddr> {
        Some(IpAddr::from((0x0a00_0000 + n).to_be_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_address_are_limited_and_forgotten_with_time() {
        let failures = Failures::default();
        for _ in 0..BURST {
            assert_eq!(failures.record(address(1)), None);
        }
        assert!(failures.record(address(1)).is_some_and(|wait| wait <= INTERVAL));
        assert_eq!(failures.record(address(2)), None, "another address");
        tokio::time::advance(INTERVAL).await;
        assert_eq!(failures.record(address(1)), None);
        assert!(failures.record(address(1)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_counts_as_one_address_and_mapped_addresses_as_ipv4() {
        assert_eq!(network("2001:db8::1".parse().unwrap()), network("2001:db8::ffff".parse().unwrap()));
        assert_ne!(network("2001:db8::1".parse().unwrap()), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_bounded() {
        let failures = Failures::default();
        for n in 0..2 * MAX as u32 {
            failures.record(address(n));
            tokio::time::advance(Duration::from_micros(1)).await;
        }
        assert_eq!(failures.0.lock().len(), MAX);
    }
}
