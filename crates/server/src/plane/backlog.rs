//! What a connection has under way: requests in tasks, and replies that are not sent yet.
//!
//! It is bounded, so that a client that sends much or reads nothing costs bounded memory: a session takes no
//! further request while [`Backlog::is_full`]. A request is charged for the memory that it holds (a
//! [`Ticket`]), a reply for its bytes until they are sent; each request is let in whole, so the most there
//! can be is the limit and one request more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use tokio::sync::Notify;

/// Most requests in tasks.
const MAX_REQUESTS: usize = 256;
/// Bytes held at which no further request is taken.
const MAX_BYTES: usize = 32 << 20;
/// Bytes of unsent replies at which a long read waits before it adds more.
const MAX_UNSENT: usize = 2 << 20;

/// The backlog of one connection.
#[derive(Default)]
pub(crate) struct Backlog {
    requests: Cell<usize>,
    request_bytes: Cell<usize>,
    replies: RefCell<VecDeque<Vec<u8>>>,
    /// Bytes in `replies`.
    unsent: Cell<usize>,
    /// Signalled as replies are sent.
    sent: Notify,
    /// The client is gone: nobody wants the replies.
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Backlog {
    /// Whether no further request may be taken.
    pub fn is_full(&self) -> bool {
        self.requests.get() >= MAX_REQUESTS || self.request_bytes.get() + self.unsent.get() >= MAX_BYTES
    }
    /// Whether all is done and sent.
    pub fn is_empty(&self) -> bool {
        self.requests.get() == 0 && self.unsent.get() == 0
    }
    /// Whether requests are under way.
    pub fn has_requests(&self) -> bool {
        self.requests.get() > 0
    }
    /// Whether replies wait.
    pub fn has_replies(&self) -> bool {
        self.unsent.get() > 0
    }

    /// Bytes of the replies that wait.
    pub fn unsent(&self) -> usize {
        self.unsent.get()
    }

    /// Takes a request that holds `bytes` of memory.
    pub fn enter(self: &Rc<Self>, bytes: usize) -> Ticket {
        self.requests.set(self.requests.get() + 1);
        self.request_bytes.set(self.request_bytes.get() + bytes);
        Ticket { backlog: self.clone(), bytes }
    }

    /// Whom to wake when a request is done.
    pub fn set_waker(&self, waker: &Waker) {
        let mut mine = self.waker.borrow_mut();
        match &*mine {
            Some(w) if w.will_wake(waker) => {}
            _ => *mine = Some(waker.clone()),
        }
    }
    /// Wakes the session.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Queues a reply, or a part of one.
    pub fn push(&self, reply: Vec<u8>) {
        if !self.gone.get() && !reply.is_empty() {
            self.unsent.set(self.unsent.get() + reply.len());
            self.replies.borrow_mut().push_back(reply);
        }
    }
    /// The queued replies.
    pub fn replies(&self) -> std::cell::Ref<'_, VecDeque<Vec<u8>>> {
        self.replies.borrow()
    }
    /// Forgets the first `bytes` of the queue; `head` are the bytes of its first reply that were sent earlier.
    /// Returns the new head.
    pub fn sent(&self, head: usize, bytes: usize) -> usize {
        let mut replies = self.replies.borrow_mut();
        self.unsent.set(self.unsent.get() - bytes);
        let mut head = head + bytes;
        while let Some(first) = replies.front()
            && head >= first.len()
        {
            head -= first.len();
            replies.pop_front();
        }
        if self.unsent.get() < MAX_UNSENT {
            self.sent.notify_waiters();
        }
        head
    }
    /// Waits until the client has taken enough of what is queued.
    pub async fn room(&self) {
        while self.unsent.get() >= MAX_UNSENT && !self.gone.get() {
            self.sent.notified().await;
        }
    }

    /// The client is gone.
    pub fn abandon(&self) {
        self.gone.set(true);
        self.replies.take();
        self.unsent.set(0);
        self.sent.notify_waiters();
    }
    /// Whether the client is gone.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// A request that is under way; done when dropped.
pub(crate) struct Ticket {
    backlog: Rc<Backlog>,
    bytes: usize,
}

impl Ticket {
    /// The backlog that it is in.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let b = &self.backlog;
        b.requests.set(b.requests.get() - 1);
        b.request_bytes.set(b.request_bytes.get() - self.bytes);
        b.wake();
    }
}
