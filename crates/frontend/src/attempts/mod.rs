//! Rate limit of attempts of CHAP and DH-HMAC-CHAP, against guesses of secrets.
//!
//! Failures are counted per [`Account`], an entry of a target's access list. So a success with another
//! account, a change of address, or the use of many addresses does not speed up guesses. Attempts on an
//! account are serialized, and an attempt waits longer the more attempts have failed before it. So concurrent
//! guesses test no more secrets than sequential guesses.
//!
//! An address from which a host succeeded has a separate lane, so that guesses from other addresses cannot
//! delay a host that reconnects ([`known`]).
//!
//! **Order.** In the lane of all other addresses, the address with the fewest recent failures is next, so a
//! host waits for one guess, however many a guesser has begun: the guesser's address has failed. Each
//! address has few places in the lane. When the lane is full, a newcomer takes the place of an attempt from
//! the address with the most failures. A guesser with many addresses delays an unknown host by one attempt
//! for each of them.
//!
//! **Bounds.** Accounts are entries of access lists, which administrators create: unknown initiator names
//! share one account. If there are [`MANY`] lanes or more, lanes without failures are dropped.

mod known;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use known::Account;
pub use known::{KnownHosts, remember};

use crate::plane::network;

/// Delay of the next attempt for each failure, and its maximum.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// Time without a failure after which the count of failures starts again from zero.
const FORGET: Duration = Duration::from_secs(300);
/// Maximum number of attempts that wait in one lane, and maximum number of them from one address, or one /64
/// network of IPv6. A host can begin several sessions at once.
const MAX_WAITING: usize = 256;
const MAX_WAITING_OF_ADDRESS: usize = 8;
/// Number of lanes from which on lanes without recent failures are dropped.
const MANY: usize = 4096;

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    fn count(&self) -> u32 {
        if self.last.is_some_and(|last| last.elapsed() < FORGET) { self.count } else { 0 }
    }

    fn add(&mut self) {
        self.count = self.count().saturating_add(1);
        self.last = Some(Instant::now());
    }

    /// Returns when the next attempt may be checked.
    fn next(&self) -> Option<Instant> {
        self.last.map(|last| last + (DELAY * self.count()).min(MAX_DELAY))
    }
}

/// Attempts that are checked one after another.
#[derive(Debug, Default)]
struct Lane {
    queue: Mutex<Queue>,
    /// Signalled when an attempt in the lane ends, or leaves the queue.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    failures: Failures,
    /// Failures of each address. Failures are rare, since each failure delays the next attempt, and forgotten
    /// failures are dropped. Therefore the map has less than a hundred entries.
    of_address: HashMap<IpAddr, Failures>,
    /// Attempts that wait, in the order of their arrival: their numbers and addresses.
    waiting: Vec<(u64, IpAddr)>,
    last: u64,
    /// Whether an attempt on the account is being checked.
    busy: bool,
}

/// What an attempt that waits has to do.
enum Next {
    Begin,
    Wait(Option<Instant>),
    Refused,
}

impl Queue {
    fn failures_of(&self, address: IpAddr) -> u32 {
        self.of_address.get(&address).map_or(0, Failures::count)
    }

    /// Adds an attempt, and returns its number.
    fn enter(&mut self, address: IpAddr) -> Result<u64, Busy> {
        let is_own = |(_, other): &&(u64, IpAddr)| *other == address;
        if self.waiting.iter().filter(is_own).count() >= MAX_WAITING_OF_ADDRESS {
            return Err(Busy);
        }
        if self.waiting.len() >= MAX_WAITING {
            let order = |at: &usize| (self.failures_of(self.waiting[*at].1), *at);
            let last = (0..self.waiting.len()).max_by_key(order).ok_or(Busy)?;
            if self.failures_of(self.waiting[last].1) <= self.failures_of(address) {
                return Err(Busy);
            }
            self.waiting.remove(last);
        }
        self.last += 1;
        self.waiting.push((self.last, address));
        Ok(self.last)
    }

    fn next(&mut self, number: u64) -> Next {
        let Some(at) = self.waiting.iter().position(|(n, _)| *n == number) else { return Next::Refused };
        if let Some(at) = self.failures.next().filter(|at| *at > Instant::now()) {
            return Next::Wait(Some(at));
        }
        let first = self.waiting.iter().min_by_key(|(n, address)| (self.failures_of(*address), *n));
        if self.busy || first.is_none_or(|(n, _)| *n != number) {
            return Next::Wait(None);
        }
        self.waiting.remove(at);
        self.busy = true;
        Next::Begin
    }
}

/// The lanes of each account: one lane for each known address, and the lane `None` for all other addresses.
type Lanes = HashMap<(Account, Option<IpAddr>), Arc<Lane>>;

/// The attempts on all accounts.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    known: Arc<KnownHosts>,
    lanes: Mutex<Lanes>,
}

/// Too many attempts on the account are waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Busy;

/// The right to try one secret. Other attempts in the lane wait until it is dropped.
#[must_use]
pub(crate) struct Turn<'a> {
    known: &'a KnownHosts,
    account: &'a Account,
    lane: Arc<Lane>,
    address: IpAddr,
}

impl Turn<'_> {
    /// Records that the secret was wrong.
    pub fn failed(self) {
        let mut queue = self.lane.queue.lock();
        queue.failures.add();
        queue.of_address.retain(|_, failures| failures.count() > 0);
        queue.of_address.entry(network(self.address)).or_default().add();
    }

    /// Records that the secret was right.
    pub fn succeeded(self) {
        self.known.insert(self.account, self.address);
        let mut queue = self.lane.queue.lock();
        queue.failures = Failures::default();
        queue.of_address.remove(&network(self.address));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.lane.queue.lock().busy = false;
        self.lane.changed.notify_waiters();
    }
}

/// A place in a queue, until the attempt begins or is cancelled.
struct Place<'a> {
    lane: &'a Lane,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.lane.queue.lock().waiting.retain(|(number, _)| *number != self.number);
        self.lane.changed.notify_waiters();
    }
}

impl Attempts {
    /// Makes the table without attempts. `known` has the addresses of known hosts.
    pub fn new(known: Arc<KnownHosts>) -> Attempts {
        Attempts { known, lanes: Mutex::default() }
    }

    /// Records that a host proved its credentials from this address.
    pub fn know(&self, account: &Account, address: IpAddr) {
        self.known.insert(account, address);
    }

    /// Waits until an attempt on `account` from `address` can be checked.
    ///
    /// # Errors
    /// [`Busy`] if too many attempts are waiting.
    pub async fn turn<'a>(&'a self, account: &'a Account, address: IpAddr) -> Result<Turn<'a>, Busy> {
        let lane = self.lane(account, address);
        let number = lane.queue.lock().enter(network(address))?;
        let _place = Place { lane: &lane, number };
        loop {
            // The notification is created before the queue is examined, so that no signal is missed.
            let changed = lane.changed.notified();
            let next = lane.queue.lock().next(number);
            match next {
                Next::Begin => {
                    return Ok(Turn { known: &self.known, account, lane: lane.clone(), address });
                }
                Next::Refused => return Err(Busy),
                Next::Wait(None) => changed.await,
                Next::Wait(Some(at)) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    fn lane(&self, account: &Account, address: IpAddr) -> Arc<Lane> {
        let known = Some(address).filter(|address| self.known.contains(account, *address));
        let mut lanes = self.lanes.lock();
        if lanes.len() >= MANY {
            let is_used = |lane: &Arc<Lane>| {
                let queue = lane.queue.lock();
                queue.busy || !queue.waiting.is_empty() || queue.failures.count() > 0
            };
            lanes.retain(|_, lane| is_used(lane));
        }
        lanes.entry((account.clone(), known)).or_default().clone()
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
        let tries = (0..8).map(|n| {
            let (attempts, victim) = (attempts.clone(), victim.clone());
            tokio::spawn(async move { attempts.turn(&victim, address(n)).await.ok().unwrap().failed() })
        });
        for one in tries.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        let least: Duration = (0..8).map(|n| DELAY * n).sum();
        assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    }

    /// Begins an attempt that has to wait.
    async fn wait<'a>(
        attempts: &'a Attempts,
        account: &'a Account,
        address: IpAddr,
    ) -> std::pin::Pin<Box<impl Future<Output = Result<Turn<'a>, Busy>>>> {
        let mut one = Box::pin(attempts.turn(account, address));
        tokio::select! {
            biased;
            _ = &mut one => panic!("another attempt holds the turn"),
            () = std::future::ready(()) => {}
        }
        one
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_attempts_are_bounded_and_cancelled_ones_not_counted() {
        let (attempts, victim) = (Attempts::default(), account("iqn.2026-11.example:a"));
        let held = attempts.turn(&victim, address(1)).await.ok().unwrap();
        let mut waiting = Vec::new();
        for n in 0..MAX_WAITING {
            waiting.push(wait(&attempts, &victim, address((n / MAX_WAITING_OF_ADDRESS) as u8)).await);
        }
        assert_eq!(attempts.turn(&victim, address(99)).await.err(), Some(Busy));
        drop(waiting);
        held.failed();
        fail(&attempts, &victim, address(2)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_waits_for_one_guess_of_an_address_with_many() {
        let (attempts, host) = (Attempts::default(), account("iqn.2026-11.example:a"));
        for _ in 0..20 {
            fail(&attempts, &host, address(9)).await;
        }
        let guess = attempts.turn(&host, address(9)).await.ok().unwrap();
        let mut guesses = Vec::new();
        for _ in 0..MAX_WAITING_OF_ADDRESS {
            guesses.push(wait(&attempts, &host, address(9)).await);
        }
        assert_eq!(attempts.turn(&host, address(9)).await.err(), Some(Busy), "the places of one address");
        let login = wait(&attempts, &host, address(1)).await;
        let begin = Instant::now();
        guess.failed();
        let guessing = async {
            for guess in guesses {
                guess.await.ok().unwrap().failed();
            }
        };
        tokio::select! {
            biased;
            () = guessing => panic!("all guesses preceded the host"),
            turn = login => turn.ok().unwrap().succeeded(),
        }
        assert!(begin.elapsed() < MAX_DELAY + DELAY, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_takes_a_place_of_the_address_with_most_failures() {
        let (attempts, host) = (Attempts::default(), account("iqn.2026-11.example:a"));
        for n in 0..MAX_WAITING / MAX_WAITING_OF_ADDRESS {
            fail(&attempts, &host, address(n as u8)).await;
        }
        let held = attempts.turn(&host, address(0)).await.ok().unwrap();
        let mut guesses = Vec::new();
        for n in 0..MAX_WAITING {
            guesses.push(wait(&attempts, &host, address((n / MAX_WAITING_OF_ADDRESS) as u8)).await);
        }
        assert_eq!(attempts.turn(&host, address(0)).await.err(), Some(Busy));
        let login = wait(&attempts, &host, address(99)).await;
        drop(held);
        login.await.ok().unwrap().succeeded();
        assert_eq!(guesses.pop().unwrap().await.err(), Some(Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn every_address_of_a_host_is_known_also_after_a_restart() {
        let (before, host) = (Attempts::default(), account("iqn.2026-11.example:a"));
        for n in 1..=2 {
            before.turn(&host, address(n)).await.ok().unwrap().succeeded();
        }
        let after = Attempts::new(before.known.clone());
        for _ in 0..10 {
            fail(&after, &host, address(9)).await;
        }
        let begin = Instant::now();
        for n in 1..=2 {
            after.turn(&host, address(n)).await.ok().unwrap().succeeded();
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
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
        assert!(attempts.lanes.lock().len() <= MANY);
        assert!(fail(&attempts, &victim, address(1)).await >= DELAY);
    }
}
