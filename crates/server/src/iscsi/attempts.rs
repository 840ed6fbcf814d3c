//! Rate limit of CHAP attempts, against guesses of secrets.
//!
//! Failures are counted per [`Account`], an entry of a target's access list. So a success with another
//! account, a change of address, or the use of many addresses does not speed up guesses. Attempts on an
//! account are serialized, and each waits longer the more have failed before it: concurrent guesses test no
//! more secrets than sequential ones.
//!
//! The address of the last success on an account has a separate lane, so that guesses from other addresses
//! cannot delay a host that reconnects from its known address.
//!
//! **Bounds.** Accounts are entries of access lists, which administrators create: unknown initiator names
//! share one account. From [`MANY`] accounts on, those without failures are dropped.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::targets::IqnName;

/// Delay of the next answer for each failure, and its maximum.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// After this time without a failure, the count starts again from zero.
const FORGET: Duration = Duration::from_secs(300);
/// Most attempts that wait in one lane; more are refused.
const MAX_WAITING: usize = 8;
/// Number of accounts at which those without recent failures are dropped.
const MANY: usize = 4096;

/// The account that an attempt tries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Account {
    /// The target; `None` for discovery.
    pub target: Option<IqnName>,
    /// The initiator; `None` for one without an entry, which only an open target admits.
    pub initiator: Option<IqnName>,
}

/// Failed attempts, and the number of waiting ones.
#[derive(Debug, Default)]
struct Lane {
    failures: Arc<tokio::sync::Mutex<Failures>>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    fn count(&self) -> u32 {
        if self.last.is_some_and(|last| last.elapsed() < FORGET) { self.count } else { 0 }
    }
}

#[derive(Debug, Default)]
struct Record {
    /// The address of the last success.
    known: Mutex<Option<IpAddr>>,
    from_known: Lane,
    from_elsewhere: Lane,
}

impl Record {
    fn lane(&self, address: IpAddr) -> &Lane {
        if *self.known.lock() == Some(address) { &self.from_known } else { &self.from_elsewhere }
    }

    fn is_idle(&self) -> bool {
        let lanes = [&self.from_known, &self.from_elsewhere];
        lanes.iter().all(|lane| lane.failures.try_lock().is_ok_and(|failures| failures.count() == 0))
    }
}

/// The attempts on all accounts.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    records: Mutex<HashMap<Account, Arc<Record>>>,
}

/// Too many attempts on the account are waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

/// The right to try one secret. Other attempts in the lane wait until it is dropped.
#[must_use]
pub(super) struct Turn {
    record: Arc<Record>,
    address: IpAddr,
    failures: OwnedMutexGuard<Failures>,
}

impl Turn {
    /// Records that the secret was wrong.
    pub fn failed(mut self) {
        self.failures.count = self.failures.count().saturating_add(1);
        self.failures.last = Some(Instant::now());
    }

    /// Records that the secret was right.
    pub fn succeeded(mut self) {
        *self.failures = Failures::default();
        *self.record.known.lock() = Some(self.address);
    }
}

impl Attempts {
    /// Waits until an attempt on `account` from `address` can be checked.
    ///
    /// # Errors
    /// [`Busy`] if [`MAX_WAITING`] attempts are waiting.
    pub async fn turn(&self, account: &Account, address: IpAddr) -> Result<Turn, Busy> {
        /// Counts a waiting attempt, until it ends or is cancelled.
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }

        let record = self.record(account);
        let lane = record.lane(address);
        let waiting = Waiting(&lane.waiting);
        if lane.waiting.fetch_add(1, Relaxed) >= MAX_WAITING {
            return Err(Busy);
        }
        let failures = lane.failures.clone().lock_owned().await;
        tokio::time::sleep((DELAY * failures.count()).min(MAX_DELAY)).await;
        drop(waiting);
        Ok(Turn { record, address, failures })
    }

    fn record(&self, account: &Account) -> Arc<Record> {
        let mut records = self.records.lock();
        if let Some(record) = records.get(account) {
            return record.clone();
        }
        if records.len() >= MANY {
            records.retain(|_, record| !record.is_idle());
        }
        records.entry(account.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(initiator: &str) -> Account {
        Account { target: None, initiator: Some(initiator.parse().unwrap()) }
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    async fn fail(attempts: &Attempts, account: &Account, address: IpAddr) -> Duration {
        let begin = Instant::now();
        attempts.turn(account, address).await.ok().unwrap().failed();
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_delays_the_next_attempt_from_every_address() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        for n in 0..20 {
            let took = fail(&attempts, &victim, address(n)).await;
            assert!(took >= (DELAY * n.into()).min(MAX_DELAY), "attempt {n} took {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_with_another_account_does_not_reset_the_delay() {
        let (attempts, victim, own) =
            (Attempts::default(), account("iqn.2026-11.example:a"), account("iqn.2026-11.example:b"));
        for _ in 0..4 {
            fail(&attempts, &victim, address(1)).await;
            attempts.turn(&own, address(1)).await.ok().unwrap().succeeded();
        }
        assert!(fail(&attempts, &victim, address(1)).await >= DELAY * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_attempts_are_serialized() {
        let (attempts, victim) = (Arc::new(Attempts::default()), account("iqn.2026-11.example:a"));
        let begin = Instant::now();
        let tries = (0..MAX_WAITING as u8).map(|n| {
            let (attempts, victim) = (attempts.clone(), victim.clone());
            tokio::spawn(async move { attempts.turn(&victim, address(n)).await.ok().unwrap().failed() })
        });
        for one in tries.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        let least: Duration = (0..MAX_WAITING as u32).map(|n| DELAY * n).sum();
        assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_attempts_are_bounded_and_cancelled_ones_not_counted() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        let held = attempts.turn(&victim, address(1)).await.ok().unwrap();
        let mut waiting: Vec<_> =
            (0..MAX_WAITING).map(|_| Box::pin(attempts.turn(&victim, address(2)))).collect();
        for one in &mut waiting {
            tokio::select! {
                biased;
                _ = one => panic!("another attempt holds the turn"),
                () = std::future::ready(()) => {}
            }
        }
        assert_eq!(attempts.turn(&victim, address(2)).await.err(), Some(Busy));
        drop(waiting);
        held.failed();
        fail(&attempts, &victim, address(2)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_from_other_addresses_do_not_delay_a_known_host() {
        let (attempts, host) = (Attempts::default(), account("iqn.2026-11.example:a"));
        attempts.turn(&host, address(1)).await.ok().unwrap().succeeded();
        for _ in 0..10 {
            fail(&attempts, &host, address(9)).await;
        }
        let begin = Instant::now();
        attempts.turn(&host, address(1)).await.ok().unwrap().succeeded();
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_with_failures_is_not_dropped() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        fail(&attempts, &victim, address(1)).await;
        for n in 0..2 * MANY {
            let other = account(&format!("iqn.2026-11.example:other{n}"));
            drop(attempts.turn(&other, address(1)).await.ok().unwrap());
        }
        assert!(attempts.records.lock().len() <= MANY);
        assert!(fail(&attempts, &victim, address(1)).await >= DELAY);
    }
}
