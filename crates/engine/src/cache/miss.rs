//! Misses under way: one store read for each address, however many readers wait.
//!
//! The first reader that requests an address is its *leader*; readers that arrive during this read are
//! *followers* and receive its result. A leader that fails, or is dropped before it completes (its client
//! disconnected), removes the address and sends the followers back to the start, where one of them becomes
//! the next leader: no reader inherits another reader's error, and no reader waits forever.
//!
//! Protocol of a reader, so that an address is read once:
//! 1. look into the cache;
//! 2. [`MissTable::enter`];
//! 3. as leader, look into the cache *again* (another leader may have finished between 1 and 2); if the block
//!    is still missing, read the store, insert into the cache, then [`Leader::complete`]; as follower, await,
//!    and on `None` restart.
//!
//! A reader that needs several addresses leads as many of them as it can, and completes these *before* it
//! awaits the addresses that other readers lead; otherwise two such readers could wait for each other.
//!
//! Followers are woken in the order of their first poll, so that a simulated run is reproducible.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_format::Address;
use hashbrown::HashMap;

use crate::sync::Mutex;

/// The misses under way; clones are handles to the same table. `T` is the value that a leader passes to its
/// followers.
pub(crate) struct MissTable<T> {
    flights: Arc<Mutex<HashMap<Address, Arc<Flight<T>>>>>,
}

/// A miss under way. The lock of the table is never taken while this one is held.
struct Flight<T>(Mutex<State<T>>);

struct State<T> {
    outcome: Option<Outcome<T>>,
    /// Followers that wait for the leader, each with its number.
    waiting: Vec<(u64, Waker)>,
    next_follower: u64,
}

enum Outcome<T> {
    Done(T),
    Abandoned,
}

/// The role of a reader that missed.
pub(crate) enum MissRole<T> {
    /// This reader reads the store, and completes the miss.
    Leader(Leader<T>),
    /// This reader waits for the leader.
    Follower(Follower<T>),
}

impl<T> Clone for MissTable<T> {
    fn clone(&self) -> Self {
        MissTable { flights: self.flights.clone() }
    }
}

impl<T> Default for MissTable<T> {
    fn default() -> Self {
        MissTable { flights: Arc::default() }
    }
}

impl<T> MissTable<T> {
    /// Joins the read of `addr` that is under way, or begins such a read.
    pub fn enter(&self, addr: Address) -> MissRole<T> {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&addr) {
            return MissRole::Follower(Follower { flight: flight.clone(), number: None });
        }
        let state = State { outcome: None, waiting: Vec::new(), next_follower: 0 };
        let flight = Arc::new(Flight(Mutex::new(state)));
        flights.insert(addr, flight.clone());
        drop(flights);
        MissRole::Leader(Leader { table: self.clone(), addr, flight: Some(flight) })
    }

    /// Number of misses under way.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.flights.lock().len()
    }
}

/// The obligation to read an address. If the leader is dropped without completing, the followers look the
/// block up again.
pub(crate) struct Leader<T> {
    table: MissTable<T>,
    addr: Address,
    flight: Option<Arc<Flight<T>>>,
}

impl<T> Leader<T> {
    /// Ends the miss and passes `value` to every follower. Insertions into the cache must precede this call.
    pub fn complete(mut self, value: T) {
        self.end(Outcome::Done(value));
    }

    fn end(&mut self, outcome: Outcome<T>) {
        let Some(flight) = self.flight.take() else { return };
        // Remove the miss from the table first: a reader that restarts must not find it again.
        self.table.flights.lock().remove(&self.addr);
        let mut state = flight.0.lock();
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        self.end(Outcome::Abandoned);
    }
}

/// A reader that waits for the leader: the result is the leader's value, or `None` if the leader gave up and
/// the reader must look the block up again.
pub(crate) struct Follower<T> {
    flight: Arc<Flight<T>>,
    number: Option<u64>,
}

impl<T: Clone> Future for Follower<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        let mut state = this.flight.0.lock();
        match &state.outcome {
            Some(Outcome::Done(value)) => return Poll::Ready(Some(value.clone())),
            Some(Outcome::Abandoned) => return Poll::Ready(None),
            None => {}
        }
        let mut waker = cx.waker().clone();
        let number = *this.number.get_or_insert(state.next_follower);
        match state.waiting.iter_mut().find(|(n, _)| *n == number) {
            Some((_, old)) => std::mem::swap(old, &mut waker),
            None => {
                state.next_follower += 1;
                state.waiting.push((number, waker));
                return Poll::Pending;
            }
        }
        // Dropping a waker may drop a task, which runs arbitrary code, so wakers are dropped after the lock.
        drop(state);
        drop(waker);
        Poll::Pending
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.flight.0.lock();
        let mine = state.waiting.iter().position(|(n, _)| *n == number);
        let waker = mine.map(|at| state.waiting.remove(at));
        drop(state);
        drop(waker);
    }
}
