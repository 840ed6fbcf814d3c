//! The work in progress of a connection: requests in tasks, and unsent replies.
//!
//! It is bounded, so that a client that sends much or does not read its replies costs bounded memory: a
//! session accepts no further request while [`Backlog::is_full`]. A request is charged for the memory that it
//! holds (a [`Ticket`]), a reply for its bytes until they are sent, to the memory of all clients
//! ([`Memory`]). Each request is accepted as a whole, so a backlog holds at most the connection's share and
//! one request more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::task::Waker;

use tokio::sync::Notify;

use super::Worker;
use super::budget::Budget;
use super::contain::contained;
use super::memory::{Charge, Kind, MemoryAccount};
use super::spares::Spares;

/// The reasons with which [`Backlog::fail`] is called.
const PANICKED: &str = "the server panicked while serving it; this is a bug of the server";
pub(crate) const FENCED: &str = "another server has opened the pool";
/// Memory of a task in addition to its request, in bytes.
pub(crate) const TASK_OVERHEAD: usize = 768;
/// Maximum number of requests of a connection in tasks.
const MAX_REQUESTS: usize = 256;
/// Bytes of unsent replies from which on a long read waits before it adds more.
pub(crate) const MAX_UNSENT: usize = 2 << 20;

/// The backlog of one connection.
pub(crate) struct Backlog {
    requests: Cell<usize>,
    account: Rc<MemoryAccount>,
    spares: Rc<Spares>,
    /// Replies with their charges.
    replies: RefCell<VecDeque<(Vec<u8>, Option<Charge>)>>,
    /// Number of bytes in `replies` that were not sent yet.
    unsent: Cell<usize>,
    /// Notified when replies have been sent.
    sent: Notify,
    /// The client has disconnected, so replies are dropped.
    gone: Cell<bool>,
    /// Requests do not wait for their client to receive replies.
    draining: Cell<bool>,
    /// The reason for which the connection must end without further answers.
    failure: Cell<Option<&'static str>>,
    budget: Budget,
    waker: RefCell<Waker>,
}

impl Backlog {
    /// The backlog of a connection of this thread.
    pub fn new(worker: &Worker) -> Rc<Backlog> {
        Rc::new(Backlog {
            requests: Cell::default(),
            account: MemoryAccount::new(worker.memory()),
            spares: worker.spares().clone(),
            replies: RefCell::default(),
            unsent: Cell::default(),
            sent: Notify::new(),
            gone: Cell::default(),
            draining: Cell::default(),
            failure: Cell::default(),
            budget: Budget::default(),
            waker: RefCell::new(Waker::noop().clone()),
        })
    }

    /// The memory that the connection holds.
    pub fn account(&self) -> &Rc<MemoryAccount> {
        &self.account
    }

    /// Returns the memory for messages with much data.
    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Whether no further request may be accepted.
    pub fn is_full(&self) -> bool {
        let requests = self.requests.get();
        if self.account.has_reserve() {
            // Other connections wait for the reserve that this connection holds, so it continues even if the
            // memory is full.
            return requests >= 2 * MAX_REQUESTS || self.account.is_spent();
        }
        requests >= MAX_REQUESTS || self.account.is_spent() || (requests > 0 && self.account.is_full())
    }
    /// Whether all requests are finished and all replies sent.
    pub fn is_empty(&self) -> bool {
        self.requests.get() == 0 && self.unsent.get() == 0
    }
    /// Whether requests are in progress.
    pub fn has_requests(&self) -> bool {
        self.requests.get() > 0
    }
    /// Whether there are unsent replies.
    pub fn has_replies(&self) -> bool {
        self.unsent.get() > 0
    }

    /// Number of bytes of unsent replies.
    pub fn unsent(&self) -> usize {
        self.unsent.get()
    }

    /// Accepts a request that holds `bytes` of memory, all of them allocated already.
    pub fn enter(self: &Rc<Self>, bytes: usize) -> Ticket {
        self.enter_charged(self.account.force(bytes, Kind::Work))
    }

    /// Accepts a request whose memory is charged already.
    pub fn enter_charged(self: &Rc<Self>, charge: Charge) -> Ticket {
        self.requests.set(self.requests.get() + 1);
        Ticket { backlog: self.clone(), _charge: charge.into_work() }
    }

    /// The waker for a claim of the session.
    pub fn waker(&self) -> std::cell::Ref<'_, Waker> {
        self.waker.borrow()
    }

    /// Sets the waker to call when a request is done.
    pub fn set_waker(&self, waker: &Waker) {
        let mut mine = self.waker.borrow_mut();
        mine.clone_from(waker);
    }
    /// Wakes the session that waits for the backlog.
    pub fn wake(&self) {
        self.waker.borrow().wake_by_ref();
    }

    /// Queues a reply, or a part of a reply.
    pub fn push(&self, reply: Vec<u8>) {
        let charge = self.account.force(reply.capacity(), Kind::Work);
        self.push_charged(reply, Some(charge));
    }
    /// Queues a reply that is charged already, with `charge` or, if `None`, with the charge of a later reply.
    pub fn push_charged(&self, reply: Vec<u8>, charge: Option<Charge>) {
        if !self.gone.get() && !reply.is_empty() {
            self.unsent.set(self.unsent.get() + reply.len());
            self.replies.borrow_mut().push_back((reply, charge));
        }
    }
    /// Queues a reply with the charge for its memory. The memory may have been larger before, so the charge
    /// shrinks.
    pub fn push_shrunk(&self, reply: Vec<u8>, mut charge: Charge) {
        charge.shrink(reply.capacity());
        self.push_charged(reply, Some(charge));
    }

    /// Holds a charge until all replies that are queued now are sent.
    pub fn charge_queued(&self, charge: Charge) {
        if let Some((_, last)) = self.replies.borrow_mut().back_mut() {
            match last {
                Some(last) => last.join(charge),
                none => *none = Some(charge),
            }
        }
    }
    /// The replies that are queued.
    pub fn replies(&self) -> std::cell::Ref<'_, VecDeque<(Vec<u8>, Option<Charge>)>> {
        self.replies.borrow()
    }
    /// Removes the first `bytes` from the queue; `head` is the number of bytes of its first reply that were
    /// sent before. Returns the new `head`.
    pub fn sent(&self, head: usize, bytes: usize) -> usize {
        let mut replies = self.replies.borrow_mut();
        self.unsent.set(self.unsent.get() - bytes);
        let mut head = head + bytes;
        while let Some((first, _)) = replies.front()
            && head >= first.len()
        {
            head -= first.len();
            if let Some((message, _)) = replies.pop_front() {
                self.spares.keep(message);
            }
        }
        if self.unsent.get() < MAX_UNSENT {
            self.sent.notify_waiters();
        }
        head
    }
    /// Waits until the client has received enough of the queued replies.
    pub async fn room(&self) {
        while self.unsent.get() >= MAX_UNSENT && !self.gone.get() && !self.draining.get() {
            self.sent.notified().await;
        }
    }

    /// Sets whether requests continue although their client does not receive its replies, which then stay in
    /// memory. Used for the short time before a connection is handed over.
    pub fn set_draining(&self, draining: bool) {
        if self.draining.replace(draining) != draining && draining {
            self.sent.notify_waiters();
        }
    }

    /// A copy of the queued replies, without the first `head` bytes, which were already sent.
    pub fn unsent_bytes(&self, head: usize) -> Vec<u8> {
        let replies = self.replies.borrow();
        let all: Vec<u8> = replies.iter().flat_map(|(reply, _)| reply).copied().collect();
        all[head.min(all.len())..].to_vec()
    }

    /// Drops all replies after the client has disconnected.
    pub fn abandon(&self) {
        self.gone.set(true);
        drop(self.replies.take());
        self.unsent.set(0);
        self.sent.notify_waiters();
    }
    /// The connection's share of its thread.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
    /// Ends the connection: a request cannot be answered, and the client would wait for its reply forever.
    pub fn fail(&self, why: &'static str) {
        self.failure.set(Some(why));
        self.abandon();
        self.wake();
    }
    /// The reason why the connection has to end; `None` if it need not end.
    pub fn failure(&self) -> Option<&'static str> {
        self.failure.get()
    }
    /// Whether the client has disconnected.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// Executes a request of a connection in a task of this thread. A panic ends the connection.
pub(crate) fn spawn_request<F: Future<Output = ()> + 'static>(backlog: &Rc<Backlog>, request: F) {
    let backlog = backlog.clone();
    // Boxed, because each future that wraps it would reserve space for it twice.
    let request = Box::pin(request);
    let charge = backlog.account.force(size_of::<F>() + TASK_OVERHEAD, Kind::Work);
    tokio::task::spawn_local(async move {
        let _charge = charge;
        if contained("a request", backlog.budget.run(request)).await.is_err() {
            backlog.fail(PANICKED);
        }
    });
}

/// A request in progress. The request is finished when this guard is dropped.
pub(crate) struct Ticket {
    backlog: Rc<Backlog>,
    _charge: Charge,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let b = &self.backlog;
        b.requests.set(b.requests.get() - 1);
        b.wake();
    }
}
