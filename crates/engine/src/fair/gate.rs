//! Admission to a resource for requests of many threads.
//!
//! **Fast path.** While no request waits, a request that leaves an eighth of the budget free is admitted
//! without a lock.
//!
//! **No lost wake-up.** A request that waits first enters the queue, which [`Gate::waiting`] counts, and then
//! the queue is drained. A request that gives bytes back first reduces the use, and then reads that count; if
//! it is not 0, its caller drains the queue, but for the exception below. Both sequences are sequentially
//! consistent: either the count is seen, or the drain sees the reduced use. A request is admitted under the
//! lock of the queue, together with its bytes. A request that is dropped leaves the queue under this lock, or
//! gives the bytes back.
//!
//! **No drain without effect.** A drain examines each flow that waits. At its end it records the use at which
//! it could admit no further request, and [`Gate::drain_returned`] does nothing until the use is less than
//! this record. The drain first writes the record and then reads the use again. A caller that gives bytes
//! back first reduces the use and then reads the record. So at least one of them sees the change of the
//! other. The use of a flow is reduced before the total use, so that a drain that sees the reduced total also
//! sees the reduced use of the flow. A request can also fit because the shares or the budget have changed.
//! Such a request waits for [`Gate::drain`], which the owner of the resource calls from time to time.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::flow::Flow;
use super::queue::{Budget, Queue};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{AtomicI64, AtomicUsize};
use crate::{Error, Result};

/// A request in the queue.
struct Waiter {
    /// Bytes that the request uses from its admission on.
    bytes: u64,
    admitted: oneshot::Sender<Result<()>>,
}

#[derive(Default)]
struct Inner {
    queue: Queue<Waiter>,
    /// The gate is closed: no request may wait any more.
    is_closed: bool,
}

/// Admission to a resource; see the module documentation.
#[derive(Default)]
pub struct Gate {
    /// Bytes that all flows use.
    used: AtomicI64,
    /// Number of requests that wait.
    waiting: AtomicUsize,
    /// Bytes in use when the last drain ended.
    drained: AtomicI64,
    inner: Mutex<Inner>,
}

impl Gate {
    /// Bytes that all flows use.
    pub fn used(&self) -> u64 {
        self.used.load(SeqCst).max(0) as u64
    }

    pub fn has_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// Whether requests wait, and less is used than when the last drain ended.
    fn was_given_back(&self) -> bool {
        self.has_waiting() && self.used.load(SeqCst) < self.drained.load(SeqCst)
    }

    /// Changes the bytes that a flow uses. If the use decreases, the caller has to call
    /// [`Gate::drain_returned`].
    pub fn add(&self, flow: &Flow, bytes: i64) {
        if bytes > 0 {
            self.used.fetch_add(bytes, SeqCst);
        }
        self.add_to_flow(flow, bytes);
        if bytes < 0 {
            self.used.fetch_add(bytes, SeqCst);
        }
    }

    /// Reduces the bytes that a flow uses, but not yet the bytes that all flows use: the caller reduces these
    /// for many flows at once by [`Gate::give_back`].
    pub fn give_back_later(&self, flow: &Flow, bytes: u64) {
        self.add_to_flow(flow, -(bytes as i64));
    }

    /// Reduces the bytes that all flows use, after the bytes of each flow were reduced. The caller has to
    /// drain the queue.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes as i64, SeqCst);
    }

    fn add_to_flow(&self, flow: &Flow, bytes: i64) {
        if flow.add(bytes) {
            self.inner.lock().queue.recount(flow);
        }
    }

    /// Whether a request of `cost` bytes may be made now.
    pub fn may(&self, flow: &Flow, cost: u64, budget_of: impl Fn(&Flow, u64) -> Option<Budget>) -> bool {
        let Some(budget) = budget_of(flow, cost) else { return false };
        let used = self.used();
        if !self.has_waiting() && used + cost <= budget.above() {
            return true;
        }
        self.inner.lock().queue.may_pass(flow, cost, used, budget_of)
    }

    /// Works like [`Gate::may`]; if the request may be made, uses `bytes`.
    pub fn take(
        &self,
        flow: &Flow,
        (cost, bytes): (u64, u64),
        budget_of: impl Fn(&Flow, u64) -> Option<Budget>,
    ) -> bool {
        let inner = &mut *self.inner.lock();
        let may = inner.queue.may_pass(flow, cost, self.used(), budget_of);
        if may {
            self.take_locked(&mut inner.queue, flow, bytes);
        }
        may
    }

    fn take_locked(&self, queue: &mut Queue<Waiter>, flow: &Flow, bytes: u64) {
        self.used.fetch_add(bytes as i64, SeqCst);
        flow.add(bytes as i64);
        queue.recount(flow);
    }

    /// Enters the queue with a request that uses `bytes` from its admission on. The caller drains the queue
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`Gate::close`].
    pub fn enqueue(&self, flow: &Arc<Flow>, (cost, bytes): (u64, u64)) -> Result<Waiting<'_>> {
        let (admitted, receiver) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Error::Closed);
        }
        self.waiting.fetch_add(1, SeqCst);
        let number = inner.queue.push(flow, cost, Waiter { bytes, admitted });
        Ok(Waiting { gate: self, flow: flow.clone(), number, bytes, admitted: Some(receiver) })
    }

    /// Admits the requests that wait, in order, until one does not fit.
    pub fn drain(&self, budget_of: impl Fn(&Flow, u64) -> Option<Budget>) {
        self.drain_locked(&mut self.inner.lock().queue, budget_of);
    }

    /// Works like [`Gate::drain`], if less is used than when the last drain ended.
    pub fn drain_returned(&self, budget_of: impl Fn(&Flow, u64) -> Option<Budget>) {
        if self.was_given_back() {
            let mut inner = self.inner.lock();
            // Another thread may have drained the queue in the meantime.
            if self.was_given_back() {
                self.drain_locked(&mut inner.queue, budget_of);
            }
        }
    }

    fn drain_locked(&self, queue: &mut Queue<Waiter>, budget_of: impl Fn(&Flow, u64) -> Option<Budget>) {
        let used = Cell::new(0);
        loop {
            queue.drain(
                || {
                    used.set(self.used.load(SeqCst));
                    used.get().max(0) as u64
                },
                &budget_of,
                |flow, waiter| {
                    self.waiting.fetch_sub(1, SeqCst);
                    self.used.fetch_add(waiter.bytes as i64, SeqCst);
                    flow.add(waiter.bytes as i64);
                    // If the receiver is being dropped, it gives the bytes back: it takes the lock first.
                    let _ = waiter.admitted.send(Ok(()));
                },
            );
            // Bytes in use when the last request was refused.
            self.drained.store(used.get(), SeqCst);
            if !self.was_given_back() {
                return;
            }
        }
    }

    /// Fails each waiting request for which `why` returns an error.
    pub fn refuse(&self, why: impl Fn(u64) -> Option<Error>) {
        let mut inner = self.inner.lock();
        for (cost, waiter) in inner.queue.remove_if(|_, cost| why(cost).is_some()) {
            self.waiting.fetch_sub(1, SeqCst);
            let _ = waiter.admitted.send(why(cost).map_or(Ok(()), Err));
        }
    }

    /// Fails all requests that wait, and refuses all that would have to wait from now on.
    pub fn close(&self) {
        self.inner.lock().is_closed = true;
        self.refuse(|_| Some(Error::Closed));
    }
}

/// A request that waits for admission. Dropping it leaves the queue, or gives its bytes back.
pub(crate) struct Waiting<'a> {
    gate: &'a Gate,
    flow: Arc<Flow>,
    number: u64,
    bytes: u64,
    /// The result of the admission; `None` once the bytes belong to the caller.
    admitted: Option<oneshot::Receiver<Result<()>>>,
}

impl Waiting<'_> {
    /// Waits until the request is admitted. Then its bytes are the caller's to give back.
    ///
    /// # Errors
    /// The errors of [`Gate::refuse`]; [`Error::Closed`].
    pub async fn admitted(&mut self) -> Result<()> {
        let Some(receiver) = &mut self.admitted else { return Ok(()) };
        let admitted = receiver.await.unwrap_or(Err(Error::Closed));
        self.admitted = None;
        admitted
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.admitted.take() else { return };
        let is_removed = {
            let mut inner = self.gate.inner.lock();
            inner.queue.remove(&self.flow, self.number).is_some()
        };
        if is_removed {
            self.gate.waiting.fetch_sub(1, SeqCst);
        } else if matches!(receiver.try_recv(), Ok(Ok(()))) {
            self.gate.add(&self.flow, -(self.bytes as i64));
        }
    }
}
