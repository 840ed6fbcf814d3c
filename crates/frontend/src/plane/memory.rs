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
//!   ([`Memory::is_full`]), so each thread exceeds the budget by one pass at most, some 2 MiB. While the
//!   budget has no room, a connection gets passes of some KiB, and one request at a time.
//! - **All other charges wait** ([`Claim`]) in one queue. The connection that returns memory grants it to
//!   waiting claims; a grant does not depend on whether, or when, the connection is polled. Claims are
//!   ordered by the memory that their connection would hold: the smallest is first. A part of the budget is
//!   reserved for connections that hold little ([`MEDIUM`]). So clients that hold much memory wait for each
//!   other.
//! - **Connections to the same disk or target are one party** ([`Party`]). A party holds the sum of the
//!   memory of its connections, and gets at most [`PARTY`] of the budget. So requests that wait for the limit
//!   of one volume, from any number of connections, leave memory for the clients of other volumes.
//! - **The reserve** ([`RESERVE`]) has room for the longest request. It is granted to one claim at a time,
//!   the claim that has waited longest. So connections that hold memory and wait for more memory cannot
//!   deadlock: one of them always continues.
//! - **Stalled clients.** A client that holds memory and makes no progress (stops inside a message, does not
//!   read its replies) is cut while other connections wait for memory ([`Stall`]).
//!
//! This module has the budget, which all threads share; `queue` has the claims that wait, `account` the part
//! of each connection, `party` what connections have in common.

mod account;
mod party;
mod queue;
mod stall;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use account::{Charge, Claim, Kind, MemoryAccount};
use party::{Parties, Party};
use queue::{Grant, Queue, Waiting};
pub(crate) use stall::Stall;

/// Memory of each connection that is always available: a request in a task, with a block of data.
pub(crate) const BASE: usize = 12 << 10;
/// Bytes of the longest request, with its header and some working memory.
const RESERVE: usize = 34 << 20;
/// Maximum bytes of a connection that can use the last eighth of the budget.
const MEDIUM: usize = 4 << 20;
/// Part of the budget that one party can have, as numerator and denominator.
const PARTY: (usize, usize) = (3, 4);
/// Minimum of the budget: the reserve, and the same amount for all other memory, with the part that is kept
/// for small connections.
pub const MIN_BUDGET: u64 = 96 << 20;
/// Maximum bytes of the jobs of one connection and their replies, unless a single job is larger. At this
/// number no further request is accepted.
const SHARE: usize = 32 << 20;

/// The memory budget, and how long a client may hold memory without progress while other connections wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The budget for memory of clients, in bytes.
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
    /// Bytes of the budget that do not belong to the reserve.
    total: usize,
    stall: Duration,
    /// Used bytes of `total`. Forced charges can exceed it.
    used: AtomicUsize,
    /// Number of waiting claims. Returning memory locks the queue only if there are any.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    parties: Parties,
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
            parties: Parties::default(),
        })
    }

    /// The part of the budget that is available to a connection that would hold `holds` bytes.
    fn limit(&self, holds: usize) -> usize {
        if holds <= MEDIUM { self.total } else { self.total - self.total / 8 }
    }

    /// Number of used bytes, and the budget without its reserve.
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

    /// Returns the party of the connections to `what`.
    fn party(&self, what: &str) -> Arc<Party> {
        self.parties.of(what)
    }

    /// Whether a party may have `bytes` more, of which a connection would then hold `holds`. It may if it
    /// stays within its part of the budget, or has nothing.
    fn permits(&self, party: &Party, bytes: usize, holds: usize) -> bool {
        let held = party.held();
        held == 0 || held + bytes <= self.limit(holds) / PARTY.1 * PARTY.0
    }

    /// Takes `bytes` for a connection that would then hold `holds`, if there is room for these bytes.
    fn take(&self, bytes: usize, holds: usize, party: &Party) -> bool {
        let limit = self.limit(holds);
        let taken = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.permits(party, bytes, holds) && self.used.fetch_update(SeqCst, SeqCst, taken).is_ok()
    }

    fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    /// Returns memory of a connection of `party`.
    fn give_back(&self, bytes: usize, of_reserve: bool, party: &Arc<Party>) {
        if of_reserve {
            self.queue.lock().reserve_is_taken = false;
        } else if bytes > 0 {
            self.used.fetch_sub(bytes, SeqCst);
        } else {
            return;
        }
        if self.has_waiting_claims() {
            self.grant(party);
        }
    }

    /// Grants available memory to waiting claims, and wakes their connections. The memory of `party` has
    /// changed.
    fn grant(&self, party: &Arc<Party>) {
        let mut woken = Vec::new();
        let mut queue = self.queue.lock();
        queue.reconsider(party);
        while let Some((id, first)) = queue.first() {
            let party = first.party.clone();
            if !self.permits(&party, first.bytes, first.holds) {
                queue.put_off(&party);
            } else if self.take(first.bytes, first.holds, &party) {
                woken.extend(queue.grant(id, false));
            } else {
                break;
            }
        }
        if !queue.reserve_is_taken
            && let Some(id) = queue.oldest()
        {
            queue.reserve_is_taken = true;
            woken.extend(queue.grant(id, true));
        }
        self.waiting.store(queue.len(), SeqCst);
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether memory that a party returns would satisfy a waiting claim: a claim of the same party, or a
    /// claim that waits for the budget and not for the memory of another party.
    fn is_waited_for(&self, party: &Arc<Party>) -> bool {
        let permits = |claim: &Waiting| self.permits(&claim.party, claim.bytes, claim.holds);
        self.has_waiting_claims() && self.queue.lock().has(party, permits)
    }

    /// Queues a claim that has to wait, and returns its number.
    fn enqueue(&self, claim: Waiting) -> u64 {
        let mut queue = self.queue.lock();
        let id = queue.add(claim);
        self.waiting.store(queue.len(), SeqCst);
        id
    }

    /// Takes the grant of a claim; returns `None` while the claim waits.
    fn granted(&self, id: u64, waker: &Waker) -> Option<Grant> {
        self.queue.lock().granted(id, waker)
    }

    /// Removes an abandoned claim from the queue.
    fn leave(&self, id: u64) {
        let mut queue = self.queue.lock();
        let granted = queue.leave(id);
        self.waiting.store(queue.len(), SeqCst);
        drop(queue);
        if let Some((grant, party)) = granted {
            self.give_back(grant.bytes, grant.of_reserve, &party);
        }
    }
}
