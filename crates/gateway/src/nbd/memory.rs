//! The memory that clients can make this process hold: one budget for all connections.
//!
//! A request takes the memory of its data and of its reply as a whole, before its payload is received, and
//! gives it back when the client has received the reply. **Waits cannot deadlock**: a connection that waits
//! for memory holds memory only for requests that are complete, which need no further memory to be answered.
//! What remains are clients that do not receive their replies, or do not send the rest of a payload: these
//! are disconnected after a time while another connection waits ([`super::limits::STALL`]).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::limits::{LEAST_MEMORY, MAX_HELD, OWN};

/// Bytes of one permit of the budget.
const UNIT: usize = 1024;

/// The memory of all connections of a process.
#[derive(Debug)]
pub(super) struct Budget {
    units: Arc<Semaphore>,
    /// Number of units that exist.
    all: usize,
    waiting: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes`, or the least with which every request can be served.
    pub fn new(bytes: usize) -> Arc<Budget> {
        let units = (bytes.max(LEAST_MEMORY) / UNIT).min(Semaphore::MAX_PERMITS);
        Arc::new(Budget { units: Arc::new(Semaphore::new(units)), all: units, waiting: AtomicUsize::new(0) })
    }

    /// Bytes that connections hold.
    pub fn held(&self) -> usize {
        self.all.saturating_sub(self.units.available_permits()) * UNIT
    }

    /// Bytes that no connection holds.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.units.available_permits() * UNIT
    }

    /// Whether a connection waits for memory.
    pub fn is_short(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

type Wait = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The wait of a connection for its turn.
struct Waiting {
    budget: Arc<Budget>,
    wait: Wait,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.budget.waiting.fetch_sub(1, Relaxed);
    }
}

/// The memory of one connection.
pub(super) struct Account {
    budget: Arc<Budget>,
    held: usize,
    permits: Option<OwnedSemaphorePermit>,
    waiting: Option<Waiting>,
}

/// Units of the budget for a connection that holds `bytes`.
fn units(bytes: usize) -> usize {
    bytes.saturating_sub(OWN).div_ceil(UNIT)
}

impl Account {
    pub fn new(budget: Arc<Budget>) -> Account {
        Account { budget, held: 0, permits: None, waiting: None }
    }

    /// Bytes that the connection holds.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the connection holds memory that other connections could use.
    pub fn holds_shared(&self) -> bool {
        self.permits.is_some()
    }

    /// Whether another connection waits for memory that this one holds.
    pub fn is_wanted(&self) -> bool {
        self.holds_shared() && self.budget.is_short()
    }

    /// Takes memory, if it is free now.
    pub fn try_take(&mut self, bytes: usize) -> bool {
        let missing = units(self.held + bytes).saturating_sub(self.granted());
        let Ok(missing) = u32::try_from(missing) else { return false };
        if missing > 0 {
            match self.budget.units.clone().try_acquire_many_owned(missing) {
                Ok(permits) => self.merge(permits),
                Err(_) => return false,
            }
        }
        self.held += bytes;
        true
    }

    /// Takes memory for a request. Pending while the connection holds too much, or while the budget is used
    /// up.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        if self.held > 0 && self.held + bytes > MAX_HELD {
            // The connection's own replies free the memory, so its task is running then.
            self.waiting = None;
            return Poll::Pending;
        }
        if self.waiting.is_none() && self.try_take(bytes) {
            return Poll::Ready(());
        }
        loop {
            let missing = units(self.held + bytes).saturating_sub(self.granted());
            if missing == 0 {
                self.waiting = None;
                self.held += bytes;
                self.trim();
                return Poll::Ready(());
            }
            let budget = &self.budget;
            let waiting = self.waiting.get_or_insert_with(|| {
                budget.waiting.fetch_add(1, Relaxed);
                let missing = u32::try_from(missing).unwrap_or(u32::MAX);
                let wait = Box::pin(budget.units.clone().acquire_many_owned(missing));
                Waiting { budget: budget.clone(), wait }
            });
            match waiting.wait.as_mut().poll(cx) {
                // The semaphore is never closed.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(permits)) => {
                    self.waiting = None;
                    self.merge(permits);
                }
            }
        }
    }

    /// Gives memory back.
    pub fn give_back(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.held);
        self.held = self.held.saturating_sub(bytes);
        self.trim();
    }

    fn granted(&self) -> usize {
        self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    fn merge(&mut self, permits: OwnedSemaphorePermit) {
        match &mut self.permits {
            Some(own) => own.merge(permits),
            none => *none = Some(permits),
        }
    }

    fn trim(&mut self) {
        let excess = self.granted().saturating_sub(units(self.held));
        if excess == self.granted() {
            self.permits = None;
        } else if let Some(permits) = &mut self.permits {
            drop(permits.split(excess));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn memory_is_taken_and_given_back_exactly() {
        let budget = Budget::new(0);
        let all = budget.free();
        let (mut a, mut b) = (Account::new(budget.clone()), Account::new(budget.clone()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(a.poll_take(cx, OWN), Poll::Ready(()));
        assert_eq!(budget.free(), all, "each connection has some separate memory");
        assert_eq!(a.poll_take(cx, 1), Poll::Ready(()));
        assert_eq!(budget.free(), all - UNIT);
        assert_eq!(a.poll_take(cx, MAX_HELD), Poll::Pending, "one connection cannot take everything");
        a.give_back(OWN + 1);
        assert_eq!((a.held(), budget.free()), (0, all));
        assert_eq!(a.poll_take(cx, MAX_HELD), Poll::Ready(()));
        assert_eq!(b.poll_take(cx, MAX_HELD), Poll::Ready(()));
        let mut c = Account::new(budget.clone());
        assert!(!budget.is_short());
        assert_eq!(c.poll_take(cx, MAX_HELD), Poll::Pending);
        assert!(budget.is_short() && a.is_wanted());
        drop(a);
        assert_eq!(c.poll_take(cx, MAX_HELD), Poll::Ready(()));
        assert!(!budget.is_short());
        drop((b, c));
        assert_eq!(budget.free(), all);
    }

    #[test]
    fn a_wait_ends_if_own_memory_becomes_free() {
        let budget = Budget::new(0);
        let all = budget.free();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut others = [Account::new(budget.clone()), Account::new(budget.clone())];
        others.iter_mut().for_each(|other| assert!(other.try_take(MAX_HELD)));
        let left = budget.free();
        let mut a = Account::new(budget.clone());
        assert!(a.try_take(OWN + left));
        assert_eq!(a.poll_take(cx, OWN), Poll::Pending);
        a.give_back(OWN);
        assert_eq!(a.poll_take(cx, OWN), Poll::Ready(()));
        assert!(!budget.is_short());
        drop((a, others));
        assert_eq!(budget.free(), all);
    }
}
