//! The memory that the server holds on behalf of clients, limited for all connections together.
//!
//! Incomplete messages, data gathered for a command, requests in tasks and unsent replies are charged to one
//! budget, with their capacity. A [`Charge`] returns its bytes when it is dropped, so it is kept together
//! with the memory.
//!
//! - **Base.** Each connection has [`BASE`] bytes, charged when it is created. Memory within them is not
//!   charged to the budget again, so a client with one small request at a time is always served.
//! - **Small charges are forced** ([`MemoryAccount::force`]): the bytes that one pass of a connection
//!   received, and replies to them. A connection gets full passes only while the budget has room
//!   ([`Memory::is_full`]), so each thread exceeds it by one pass at most, some 2 MiB. After that it gets
//!   passes of some KiB, and one request at a time.
//! - **All other charges wait** ([`Claim`]) in one queue. The connection that returns memory grants it to
//!   waiting claims; a grant does not depend on whether, or when, the connection is polled. Connections that
//!   hold least, together with what they wait for, precede the others, and a part of the budget is for those that hold little ([`MEDIUM`]), so
//!   greedy clients wait for each other.
//! - **The reserve** ([`RESERVE`]) has room for the longest request. It is granted to the claim that has
//!   waited longest, one at a time. So connections that hold memory and wait for more cannot deadlock: one of
//!   them always continues.
//! - **Stalled clients.** A client that holds memory and makes no progress (stops inside a message, does not
//!   read its replies) is cut while other connections wait for memory ([`Stall`]).
//!
//! This module has the budget, which all threads share, and its queue; `account` has the part of each
//! connection.

mod account;
mod stall;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use account::{Charge, Claim, Kind, MemoryAccount};
pub(crate) use stall::Stall;

/// Memory of each connection that is always available: a request in a task, with a block of data.
const BASE: usize = 12 << 10;
/// The longest request, with its header and some working memory.
const RESERVE: usize = 34 << 20;
/// Only a connection that would hold no more than this can use the last eighth of the budget.
const MEDIUM: usize = 4 << 20;
/// The least budget: the reserve, and the same amount for all others, with the part that is kept for small
/// ones.
pub const MIN_BUDGET: u64 = 96 << 20;
/// Most memory of the jobs of one connection and their replies, except for a single larger job. From this
/// point on no further request is accepted.
const SHARE: usize = 32 << 20;

/// The memory budget, and how long a client may hold memory without progress while other connections wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// In bytes.
    pub budget: u64,
    /// Time without progress after which a client is cut.
    pub stall: Duration,
}

impl Default for MemoryLimits {
    fn default() -> MemoryLimits {
        MemoryLimits { budget: 256 << 20, stall: Duration::from_secs(10) }
    }
}

/// The memory of the connections of all threads.
pub(crate) struct Memory {
    /// Bytes of the budget without the reserve.
    total: usize,
    stall: Duration,
    /// Used bytes of `total`. Forced charges can exceed it.
    used: AtomicUsize,
    /// Number of waiting claims, so that returning memory locks the queue only if there are any.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    last_id: u64,
    /// Waiting claims in order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The same claims by size class, then by order of arrival.
    by_size: BTreeSet<(u32, u64)>,
    /// Claims that are granted and whose connection has not taken the grant yet.
    granted: BTreeMap<u64, Grant>,
    reserve_is_taken: bool,
}

struct Waiting {
    bytes: usize,
    /// Bytes that its connection would hold with the grant.
    holds: usize,
    waker: Waker,
}

#[derive(Clone, Copy)]
struct Grant {
    bytes: usize,
    of_reserve: bool,
}

/// The size class of a connection that holds `holds` bytes.
fn size_class(holds: usize) -> u32 {
    holds.max(1).ilog2()
}

impl Memory {
    pub fn new(limits: MemoryLimits) -> Arc<Memory> {
        let budget = usize::try_from(limits.budget.max(MIN_BUDGET)).unwrap_or(usize::MAX);
        Arc::new(Memory {
            total: budget - RESERVE,
            stall: limits.stall,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
        })
    }

    /// The part of the budget that is available to a connection that would hold `holds` bytes.
    fn limit(&self, holds: usize) -> usize {
        if holds <= MEDIUM { self.total } else { self.total - self.total / 8 }
    }

    /// Used bytes, and the budget without its reserve.
    pub fn use_and_budget(&self) -> (usize, usize) {
        (self.used.load(Relaxed), self.total)
    }

    /// Whether no room is left for forced charges.
    pub fn is_full(&self) -> bool {
        self.used.load(Relaxed) >= self.limit(usize::MAX)
    }

    /// Whether any connection waits for memory.
    fn has_waiting_claims(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// Takes `bytes` if there is room for them.
    fn take(&self, bytes: usize, holds: usize) -> bool {
        let limit = self.limit(holds);
        let taken = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(SeqCst, SeqCst, taken).is_ok()
    }

    fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    fn give_back(&self, bytes: usize, of_reserve: bool) {
        if of_reserve {
            self.queue.lock().reserve_is_taken = false;
        } else if bytes > 0 {
            self.used.fetch_sub(bytes, SeqCst);
        } else {
            return;
        }
        if self.has_waiting_claims() {
            self.grant();
        }
    }

    /// Grants available memory to waiting claims, and wakes them.
    fn grant(&self) {
        let mut woken = Vec::new();
        let mut queue = self.queue.lock();
        while let Some((_, id)) = queue.by_size.first().copied()
            && let Some(first) = queue.waiting.get(&id)
            && self.take(first.bytes, first.holds)
        {
            woken.extend(queue.grant(id, false));
        }
        if !queue.reserve_is_taken
            && let Some(id) = queue.waiting.first_key_value().map(|(id, _)| *id)
        {
            queue.reserve_is_taken = true;
            woken.extend(queue.grant(id, true));
        }
        self.waiting.store(queue.waiting.len(), SeqCst);
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Queues a claim.
    fn enqueue(&self, bytes: usize, holds: usize, waker: &Waker) -> u64 {
        let mut queue = self.queue.lock();
        queue.last_id += 1;
        let id = queue.last_id;
        queue.waiting.insert(id, Waiting { bytes, holds, waker: waker.clone() });
        queue.by_size.insert((size_class(holds), id));
        self.waiting.store(queue.waiting.len(), SeqCst);
        id
    }

    /// Takes the grant of a claim; `None` while it waits.
    fn granted(&self, id: u64, waker: &Waker) -> Option<Grant> {
        let mut queue = self.queue.lock();
        if let Some(waiting) = queue.waiting.get_mut(&id) {
            waiting.waker.clone_from(waker);
            return None;
        }
        queue.granted.remove(&id)
    }

    /// Removes an abandoned claim from the queue.
    fn leave(&self, id: u64) {
        let mut queue = self.queue.lock();
        queue.remove(id);
        self.waiting.store(queue.waiting.len(), SeqCst);
        let granted = queue.granted.remove(&id);
        drop(queue);
        if let Some(grant) = granted {
            self.give_back(grant.bytes, grant.of_reserve);
        }
    }
}

impl Queue {
    fn remove(&mut self, id: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.by_size.remove(&(size_class(waiting.holds), id));
        Some(waiting)
    }

    /// Grants the bytes of a claim. Returns the waker to call.
    fn grant(&mut self, id: u64, of_reserve: bool) -> Option<Waker> {
        let waiting = self.remove(id)?;
        self.granted.insert(id, Grant { bytes: waiting.bytes, of_reserve });
        Some(waiting.waker)
    }
}
