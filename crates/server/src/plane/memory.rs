//! The memory that clients can have the server hold, of all connections together.
//!
//! Messages that are not whole yet, data that is gathered for a command, requests in tasks and replies that are not
//! sent are charged to one budget, with their capacity. A [`Charge`] gives its bytes back when it is dropped, so it
//! goes where the memory goes.
//!
//! - **Base.** Each connection has [`BASE`] bytes, charged when it is made. What stays within them takes no memory of
//!   the budget, so a client with one small request at a time is always served.
//! - **Small things are forced** ([`MemoryAccount::force`]): what one pass of a connection received, and replies to it.
//!   A connection is given whole passes only while the budget has room ([`Memory::is_full`]), so each thread exceeds
//!   it by one pass at most, some 2 MiB. After that it gets passes of some KiB, and one request at a time.
//! - **All else waits** ([`Claim`]) in one queue. The connection that gives memory back grants it to those that wait; a grant does
//!   not depend on whether, or when, the connection is polled. Connections that hold least go first, and a part of
//!   the budget is for those that hold little ([`MEDIUM`]), so greedy clients wait for each other.
//! - **The reserve** ([`RESERVE`]) has room for the longest request. It is granted to the claim that has waited
//!   longest, one at a time. So connections that hold memory and wait for more cannot block each other for ever: one of
//!   them always goes on.
//! - **Stalled clients.** A client that holds memory and makes no progress (stops inside a message, does not read
//!   its replies) is cut while others wait for memory ([`Stall`]).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Sleep;

/// What each connection may hold at any rate: a request in a task, with a block of data.
const BASE: usize = 12 << 10;
/// The longest request, with its header and some work.
const RESERVE: usize = 34 << 20;
/// A connection that would hold no more than this can have the last eighth of the budget, too.
const MEDIUM: usize = 4 << 20;
/// The least budget: the reserve, and as much again for all others, with what is kept for small ones.
pub const MIN_BUDGET: u64 = 96 << 20;
/// What the jobs of one connection and their replies hold at most, unless it is a single one. At this point no
/// further request is taken.
const SHARE: usize = 32 << 20;
/// In the time that a client has, it has to move so much, or this part of what it holds.
const PROGRESS: usize = 64 << 10;
const PROGRESS_PART: usize = 16;
/// How often is looked whether others wait, once a client has stalled.
const STALL_CHECK: Duration = Duration::from_millis(500);

/// How much memory, and how long a client may hold some of it without progress while others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes.
    pub budget: u64,
    /// How long.
    pub stall: Duration,
}

impl Default for MemoryLimits {
    fn default() -> MemoryLimits {
        MemoryLimits { budget: 256 << 20, stall: Duration::from_secs(10) }
    }
}

/// The memory of all threads' connections.
pub(crate) struct Memory {
    /// Bytes of the budget without the reserve.
    total: usize,
    stall: Duration,
    /// Of `total`. Forced charges can exceed it.
    used: AtomicUsize,
    /// How many claims wait, so that giving back takes no lock where none does.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    last_id: u64,
    /// Claims that wait, in the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    /// The same by size class, and then in that order.
    by_size: BTreeSet<(u32, u64)>,
    /// Claims that were granted and did not take it yet.
    granted: BTreeMap<u64, Grant>,
    reserve_is_taken: bool,
}

struct Waiting {
    bytes: usize,
    /// What its connection would hold.
    holds: usize,
    waker: Waker,
}

#[derive(Clone, Copy)]
struct Grant {
    bytes: usize,
    of_reserve: bool,
}

/// The size class of a connection that holds so much.
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

    /// How much of the budget a connection can use that would hold `holds` bytes.
    fn limit(&self, holds: usize) -> usize {
        if holds <= MEDIUM { self.total } else { self.total - self.total / 8 }
    }

    /// Whether there is no room for what is charged after the fact.
    pub fn is_full(&self) -> bool {
        self.used.load(Relaxed) >= self.limit(usize::MAX)
    }

    /// Whether some connection waits for memory.
    fn is_wanted(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// Takes `bytes`, if there is room for them.
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
        if self.is_wanted() {
            self.grant();
        }
    }

    /// Grants what there is to those that wait, and wakes them.
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

    /// Takes what was granted to a claim; `None` while it waits.
    fn granted(&self, id: u64, waker: &Waker) -> Option<Grant> {
        let mut queue = self.queue.lock();
        if let Some(waiting) = queue.waiting.get_mut(&id) {
            waiting.waker.clone_from(waker);
            return None;
        }
        queue.granted.remove(&id)
    }

    /// Takes a claim out of the queue that is given up.
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

    /// Grants the claim what it waits for. Returns whom to wake.
    fn grant(&mut self, id: u64, of_reserve: bool) -> Option<Waker> {
        let waiting = self.remove(id)?;
        self.granted.insert(id, Grant { bytes: waiting.bytes, of_reserve });
        Some(waiting.waker)
    }
}

/// What memory is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the client sends: messages, and data that is gathered.
    Input,
    /// Requests, what they work with, and replies.
    Work,
}

/// What one connection holds.
pub(crate) struct MemoryAccount {
    memory: Arc<Memory>,
    /// What is charged at any rate.
    base: Cell<usize>,
    /// What it holds of each [`Kind`], what is of the reserve included.
    input: Cell<usize>,
    work: Cell<usize>,
    /// Of that, what is of the reserve.
    reserve: Cell<usize>,
    /// What is left of [`SHARE`], in bytes.
    share: Semaphore,
}

impl MemoryAccount {
    pub fn new(memory: &Arc<Memory>) -> Rc<MemoryAccount> {
        memory.force(BASE);
        Rc::new(MemoryAccount {
            memory: memory.clone(),
            base: Cell::new(BASE),
            input: Cell::new(0),
            work: Cell::new(0),
            reserve: Cell::new(0),
            share: Semaphore::new(SHARE),
        })
    }

    /// Adds `bytes` for what the connection needs as long as it lives.
    pub fn add_to_base(&self, bytes: usize) {
        let before = self.charged();
        self.base.set(self.base.get() + bytes);
        self.memory.force(self.charged() - before);
    }

    /// The memory of all.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What is taken of the budget, without the reserve.
    fn charged(&self) -> usize {
        (self.held() - self.reserve.get()).max(self.base.get())
    }

    /// What would have to be taken of the budget to hold `bytes` more.
    fn excess(&self, bytes: usize) -> usize {
        (self.held() - self.reserve.get() + bytes).max(self.base.get()) - self.charged()
    }

    fn held(&self) -> usize {
        self.input.get() + self.work.get()
    }

    /// Whether its requests and replies hold as much as those of one connection may.
    pub fn is_spent(&self) -> bool {
        // A connection that has the reserve has to go on until it gives it back.
        self.work.get() >= if self.has_reserve() { 2 * SHARE } else { SHARE }
    }

    /// Whether it holds the reserve, which others may wait for.
    pub fn has_reserve(&self) -> bool {
        self.reserve.get() > 0
    }

    /// Takes `bytes` if there is room now.
    pub fn try_take(self: &Rc<Self>, bytes: usize, kind: Kind) -> Option<Charge> {
        let excess = self.excess(bytes);
        let taken = excess == 0 || self.memory.take(excess, self.held() + bytes);
        taken.then(|| self.hold(bytes, kind))
    }

    /// Takes `bytes` whether or not there is room: they are there already, or as good as.
    pub fn force(self: &Rc<Self>, bytes: usize, kind: Kind) -> Charge {
        let excess = self.excess(bytes);
        if excess > 0 {
            self.memory.force(excess);
        }
        self.hold(bytes, kind)
    }

    /// Waits for `bytes`.
    pub fn claim(self: &Rc<Self>, bytes: usize, kind: Kind) -> Claim {
        Claim { account: self.clone(), bytes, kind, id: None }
    }

    /// Takes `bytes` for a job: waits until the connection's share has room for them, and then the budget.
    pub async fn take_shared(self: &Rc<Self>, bytes: usize) -> Charge {
        let permits = u32::try_from(bytes.min(SHARE)).unwrap_or(u32::MAX);
        let permit = self.share.acquire_many(permits).await.ok();
        let mut claim = self.claim(bytes, Kind::Work);
        let mut charge = std::future::poll_fn(|cx| claim.poll(cx.waker())).await;
        if let Some(permit) = permit {
            permit.forget();
            charge.share = permits as usize;
        }
        charge
    }

    /// Counts what is taken already.
    fn hold(self: &Rc<Self>, bytes: usize, kind: Kind) -> Charge {
        let part = self.part(kind);
        part.set(part.get() + bytes);
        Charge { account: self.clone(), bytes, reserve: 0, share: 0, kind }
    }

    fn part(&self, kind: Kind) -> &Cell<usize> {
        match kind {
            Kind::Input => &self.input,
            Kind::Work => &self.work,
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        // Charges hold their account: all of them are gone.
        self.memory.give_back(self.charged(), false);
    }
}

/// A wait for memory; given up when dropped. Its owner polls it until it is ready.
pub(crate) struct Claim {
    account: Rc<MemoryAccount>,
    bytes: usize,
    kind: Kind,
    id: Option<u64>,
}

impl Claim {
    /// Ready when the memory is there, once.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Charge> {
        let Claim { account, bytes, kind, id } = self;
        let place = match *id {
            Some(place) => place,
            None => {
                let (excess, holds) = (account.excess(*bytes), account.held() + *bytes);
                let memory = &account.memory;
                if excess == 0 || (!memory.is_wanted() && memory.take(excess, holds)) {
                    return Poll::Ready(account.hold(*bytes, *kind));
                }
                let place = memory.enqueue(*bytes, holds, waker);
                *id = Some(place);
                memory.grant();
                place
            }
        };
        let Some(grant) = account.memory.granted(place, waker) else { return Poll::Pending };
        *id = None;
        // A grant does not count what the base has left.
        let excess = account.excess(*bytes);
        let mut charge = account.hold(*bytes, *kind);
        if grant.of_reserve {
            charge.reserve = *bytes;
            account.reserve.set(account.reserve.get() + *bytes);
        } else {
            account.memory.give_back(grant.bytes - excess, false);
        }
        Poll::Ready(charge)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.account.memory.leave(id);
        }
    }
}

/// Memory that is held; given back when dropped.
pub(crate) struct Charge {
    account: Rc<MemoryAccount>,
    bytes: usize,
    /// Of these, what is of the reserve.
    reserve: usize,
    /// What it takes of the connection's share.
    share: usize,
    kind: Kind,
}

impl Charge {
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what another charge of the same connection holds.
    pub fn join(&mut self, mut other: Charge) {
        debug_assert!(Rc::ptr_eq(&self.account, &other.account), "a charge is of one connection");
        other.change_kind(self.kind);
        self.bytes += std::mem::take(&mut other.bytes);
        self.reserve += std::mem::take(&mut other.reserve);
        self.share += std::mem::take(&mut other.share);
    }

    /// What was received is a request now.
    pub fn into_work(mut self) -> Charge {
        self.change_kind(Kind::Work);
        self
    }

    fn change_kind(&mut self, kind: Kind) {
        let (from, to) = (self.account.part(self.kind), self.account.part(kind));
        from.set(from.get() - self.bytes);
        to.set(to.get() + self.bytes);
        self.kind = kind;
    }

    /// Moves `bytes` of it, at most all, to a charge of their own. The reserve stays here as long as possible.
    pub fn split(&mut self, bytes: usize) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let reserve = self.reserve.saturating_sub(self.bytes);
        self.reserve -= reserve;
        let share = self.share.min(bytes);
        self.share -= share;
        Charge { account: self.account.clone(), bytes, reserve, share, kind: self.kind }
    }

    /// Gives back all but `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let back = self.bytes.saturating_sub(bytes);
        drop(self.split(back));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let account = &self.account;
        let before = account.charged();
        let part = account.part(self.kind);
        part.set(part.get() - self.bytes);
        account.reserve.set(account.reserve.get() - self.reserve);
        if self.share > 0 {
            account.share.add_permits(self.share);
        }
        account.memory.give_back(before - account.charged(), false);
        if self.reserve > 0 && !account.has_reserve() {
            account.memory.give_back(0, true);
        }
    }
}

/// Watches whether a client makes progress while it owes some: the rest of a message, or taking its replies.
pub(crate) struct Stall {
    account: Rc<MemoryAccount>,
    /// Since when it has not moved enough, and what it moved.
    since: Option<Instant>,
    moved: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub fn new(account: &Rc<MemoryAccount>) -> Stall {
        Stall { account: account.clone(), since: None, moved: 0, timer: None }
    }

    /// The client sent or took bytes.
    pub fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Looks at the end of a poll whether the client is to be cut. Otherwise the task is woken when that may be.
    pub fn poll(&mut self, cx: &mut Context<'_>, owes: bool) -> bool {
        let (held, base) = (self.account.held(), self.account.base.get());
        if !owes || held <= base {
            self.since = None;
            // A timer that runs is left: the client may owe something again in the next poll.
            self.timer.take_if(|timer| timer.is_elapsed());
            return false;
        }
        let now = Instant::now();
        if self.since.is_none() || self.moved >= PROGRESS.max(held / PROGRESS_PART) {
            (self.since, self.moved) = (Some(now), 0);
        }
        let mut due = self.since.unwrap_or(now) + self.account.memory.stall;
        if now >= due {
            if self.account.memory.is_wanted() {
                return true;
            }
            due = now + STALL_CHECK;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
        if timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(due.into());
            // Never ready: it is in the future.
            let _ = timer.as_mut().poll(cx);
        }
        false
    }
}

#[cfg(test)]
mod tests;
