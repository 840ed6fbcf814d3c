//! The bounds of the operations in flight.
//!
//! Above its limits, librados blocks the thread that submits an operation. An async thread must not block, so
//! the limits of the library are raised, and operations beyond the lower limits of this module wait in this
//! queue. They are submitted in the order of arrival, by one thread at a time: RADOS executes the operations
//! on an object in the order of their submission, and callers rely on this order.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// A closure that submits an operation.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Limits of operations in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of operations.
    pub(super) operations: usize,
    /// Maximum bytes of operations. A larger operation is submitted alone.
    pub(super) bytes: usize,
}

/// A queue of operations, and the number of operations in flight.
pub(super) struct Queue {
    limits: Limits,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    operations: usize,
    bytes: usize,
    /// Number of blocking calls, which have no limit.
    calls: usize,
    waiting: VecDeque<(usize, Job)>,
    /// Operations that the limits do not delay.
    urgent: VecDeque<(usize, Job)>,
    /// A thread is submitting. It also submits what other threads add.
    submitting: bool,
}

impl State {
    fn next(&mut self, limits: Limits) -> Option<Job> {
        let urgent = self.urgent.pop_front();
        if let (None, Some((bytes, _))) = (&urgent, self.waiting.front()) {
            let fits = self.operations < limits.operations && self.bytes + bytes <= limits.bytes;
            if !fits && self.operations > 0 {
                return None;
            }
        }
        let (bytes, job) = urgent.or_else(|| self.waiting.pop_front())?;
        self.operations += 1;
        self.bytes += bytes;
        Some(job)
    }

    /// Whether nothing is in flight. False also while a thread submits: an operation can end before its
    /// submission returns.
    fn is_idle(&self) -> bool {
        self.operations == 0
            && self.calls == 0
            && self.waiting.is_empty()
            && self.urgent.is_empty()
            && !self.submitting
    }
}

impl Queue {
    pub(super) fn new(limits: Limits) -> Queue {
        Queue { limits, state: Mutex::default(), idle: Condvar::new() }
    }

    /// Adds an operation and submits it, if there is room. `job` must not panic, and [`Queue::ended`] must be
    /// called once after it was called.
    pub(super) fn add(&self, bytes: usize, job: Job) {
        self.state.lock().waiting.push_back((bytes, job));
        self.submit();
    }

    /// Works like [`Queue::add`], but submits the operation at once, even beyond the limits.
    pub(super) fn add_urgent(&self, bytes: usize, job: Job) {
        self.state.lock().urgent.push_back((bytes, job));
        self.submit();
    }

    /// Records that an operation has ended, so that waiting operations can be submitted.
    pub(super) fn ended(&self, bytes: usize) {
        {
            let mut state = self.state.lock();
            state.operations -= 1;
            state.bytes -= bytes;
        }
        self.submit();
    }

    fn submit(&self) {
        let mut state = self.state.lock();
        if state.submitting {
            return;
        }
        state.submitting = true;
        while let Some(job) = state.next(self.limits) {
            // Operations are submitted without the lock: submitting copies data, and an operation that fails
            // at once ends within the call.
            drop(state);
            job();
            state = self.state.lock();
        }
        state.submitting = false;
        self.wake_if_idle(&state);
    }

    /// Records that a blocking call begins.
    pub(super) fn call_begins(&self) {
        self.state.lock().calls += 1;
    }

    /// Records that a blocking call has ended.
    pub(super) fn call_ended(&self) {
        let mut state = self.state.lock();
        state.calls -= 1;
        self.wake_if_idle(&state);
    }

    fn wake_if_idle(&self, state: &State) {
        if state.is_idle() {
            self.idle.notify_all();
        }
    }

    /// Waits until no operation is in flight and none is queued.
    pub(super) fn wait_until_idle(&self) {
        let mut state = self.state.lock();
        while !state.is_idle() {
            self.idle.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn queue(operations: usize, bytes: usize) -> Queue {
        Queue::new(Limits { operations, bytes })
    }

    /// Adds an operation whose submission is noted under `name`.
    fn add(queue: &Queue, submitted: &Arc<Mutex<Vec<usize>>>, name: usize, bytes: usize) {
        let submitted = submitted.clone();
        queue.add(bytes, Box::new(move || submitted.lock().push(name)));
    }

    #[test]
    fn operations_above_the_bounds_wait_in_order() {
        let (q, submitted) = (queue(2, 100), Arc::default());
        add(&q, &submitted, 0, 60);
        add(&q, &submitted, 1, 50);
        add(&q, &submitted, 2, 10);
        add(&q, &submitted, 3, 10);
        assert_eq!(*submitted.lock(), [0], "1 has no room for its bytes, and 2 does not overtake it");
        q.ended(60);
        assert_eq!(*submitted.lock(), [0, 1, 2], "3 would be the third operation");
        q.ended(10);
        assert_eq!(*submitted.lock(), [0, 1, 2, 3]);
        q.ended(50);
        q.ended(10);
        q.wait_until_idle();
    }

    #[test]
    fn an_operation_above_the_bound_of_bytes_is_submitted_alone() {
        let (q, submitted) = (queue(10, 100), Arc::default());
        add(&q, &submitted, 0, 1);
        add(&q, &submitted, 1, 500);
        add(&q, &submitted, 2, 1);
        assert_eq!(*submitted.lock(), [0]);
        q.ended(1);
        assert_eq!(*submitted.lock(), [0, 1]);
        q.ended(500);
        assert_eq!(*submitted.lock(), [0, 1, 2]);
    }

    #[test]
    fn operations_that_fail_at_once_neither_recurse_nor_stop_the_queue() {
        let q = Arc::new(queue(1, 100));
        let submitted = Arc::new(AtomicUsize::new(0));
        q.add(1, Box::new(|| {}));
        for _ in 0..100_000 {
            let (queue, submitted) = (q.clone(), submitted.clone());
            let fails = move || {
                submitted.fetch_add(1, Ordering::Relaxed);
                queue.ended(1);
            };
            q.add(1, Box::new(fails));
        }
        q.ended(1);
        q.wait_until_idle();
        assert_eq!(submitted.load(Ordering::Relaxed), 100_000);
    }

    #[test]
    fn the_operations_of_each_thread_are_submitted_in_order_and_within_the_bounds() {
        const THREADS: usize = 4;
        const EACH: usize = 2_000;
        let q = Arc::new(queue(3, 1_000));
        let (begun, ends) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (q, begun) = (q.clone(), begun.clone());
                scope.spawn(move || {
                    for n in 0..EACH {
                        let begun = begun.clone();
                        q.add(1, Box::new(move || begun.send((thread, n)).expect("received until the end")));
                    }
                });
            }
            drop(begun);
            let mut next = [0; THREADS];
            for (thread, n) in ends {
                assert_eq!(n, next[thread]);
                next[thread] += 1;
                assert!(q.state.lock().operations <= 3);
                q.ended(1);
            }
            assert_eq!(next, [EACH; THREADS]);
        });
        q.wait_until_idle();
    }

    #[test]
    fn a_blocking_call_keeps_it_from_being_idle() {
        let q = queue(1, 1);
        q.call_begins();
        assert!(!q.state.lock().is_idle());
        q.call_ended();
        q.wait_until_idle();
    }
}
