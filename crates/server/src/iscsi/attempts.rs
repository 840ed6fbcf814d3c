//! Slowing down who guesses secrets of CHAP.
//!
//! Failures are counted for what is guessed at, an [`Account`]: an entry of a target's access list. So neither a
//! success with another account, nor a change of address, nor many addresses make guessing any faster. The attempts
//! on an account take turns, and each waits the longer the more have failed before it: guessing side by side tests
//! no more secrets than guessing one after the other.
//!
//! The address from which an account was last proved has a separate lane. So guesses from elsewhere cannot keep a
//! host out that comes back from where it was.
//!
//! **Bounds.** Accounts are entries of access lists, which administrators make: names that an initiator invents share
//! one account. An account without failures is forgotten when there are [`MANY`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::targets::IqnName;

/// What each failure adds to the time that the next answer takes, and the most that it takes.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// After this time without a failure, counting starts from zero.
const FORGET: Duration = Duration::from_secs(300);
/// Attempts that wait for their turn in one lane; more are refused.
const MAX_WAITING: usize = 8;
/// Accounts from which on those without recent failures are forgotten.
const MANY: usize = 4096;

/// What an attempt guesses at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Account {
    /// The target; `None` for discovery.
    pub target: Option<IqnName>,
    /// The initiator; `None` for one without an entry, which an open target admits.
    pub initiator: Option<IqnName>,
}

/// Failed attempts, and who waits for a turn.
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
    /// Where the account was last proved from.
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

/// Too many attempts on the account wait already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

/// The right to try one secret. Others wait until it is dropped.
#[must_use]
pub(super) struct Turn {
    record: Arc<Record>,
    address: IpAddr,
    failures: OwnedMutexGuard<Failures>,
}

impl Turn {
    /// The secret was wrong.
    pub fn failed(mut self) {
        self.failures.count = self.failures.count().saturating_add(1);
        self.failures.last = Some(Instant::now());
    }

    /// The secret was right.
    pub fn succeeded(mut self) {
        *self.failures = Failures::default();
        *self.record.known.lock() = Some(self.address);
    }
}

impl Attempts {
    /// Waits until an attempt on `account` from `address` may be checked.
    ///
    /// # Errors
    /// [`Busy`] where [`MAX_WAITING`] others wait.
    pub async fn turn(&self, account: &Account, address: IpAddr) -> Result<Turn, Busy> {
        /// Counts who waits, also where the attempt is given up meanwhile.
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
    async fn guessing_gets_slower_from_every_address() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        for n in 0..20 {
            let took = fail(&attempts, &victim, address(n)).await;
            assert!(took >= (DELAY * n.into()).min(MAX_DELAY), "attempt {n} took {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_with_another_account_changes_nothing() {
        let (attempts, victim, own) =
            (Attempts::default(), account("iqn.2026-11.example:a"), account("iqn.2026-11.example:b"));
        for _ in 0..4 {
            fail(&attempts, &victim, address(1)).await;
            attempts.turn(&own, address(1)).await.ok().unwrap().succeeded();
        }
        assert!(fail(&attempts, &victim, address(1)).await >= DELAY * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_side_by_side_take_turns() {
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
    async fn who_waits_is_bounded_and_counted_out() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        let held = attempts.turn(&victim, address(1)).await.ok().unwrap();
        let mut waiting: Vec<_> =
            (0..MAX_WAITING).map(|_| Box::pin(attempts.turn(&victim, address(2)))).collect();
        for one in &mut waiting {
            tokio::select! {
                biased;
                _ = one => panic!("the turn is taken"),
                () = std::future::ready(()) => {}
            }
        }
        assert_eq!(attempts.turn(&victim, address(2)).await.err(), Some(Busy));
        drop(waiting);
        held.failed();
        fail(&attempts, &victim, address(2)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_comes_back_is_not_held_up_by_guesses_from_elsewhere() {
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
    async fn many_accounts_do_not_push_out_one_that_is_being_guessed() {
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
