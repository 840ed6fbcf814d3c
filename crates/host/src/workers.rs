//! The threads on which the engine's CPU work runs, in addition to the engine's thread.
//!
//! The caller takes part: a helper that the system does not schedule soon finds nothing left to do. Idle
//! helpers sleep at once. In general thread pools, a helper looks for more work before it sleeps. Such a
//! helper stays on the core of the thread that woke it, while another core is idle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use forebay_engine::Workers;
use parking_lot::{Condvar, Mutex};

/// A number of threads, of which the caller is one.
pub(super) struct WorkerThreads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// The caller that is being helped holds this lock.
    helped: Mutex<()>,
}

/// Work that several threads do together.
type Task = &'static (dyn Fn() + Sync);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is a task, or the threads have to end.
    begun: Condvar,
    /// Notified when no helper is busy.
    left: Condvar,
}

#[derive(Default)]
struct State {
    task: Option<Task>,
    /// Number of helpers that may still begin the task.
    wanted: usize,
    /// Number of helpers that began the task and have not ended it.
    busy: usize,
    has_panicked: bool,
    is_ending: bool,
}

impl WorkerThreads {
    /// Starts all threads but the caller's.
    pub fn start(threads: usize) -> std::io::Result<WorkerThreads> {
        let mut workers =
            WorkerThreads { shared: Arc::default(), helpers: Vec::new(), helped: Mutex::default() };
        for n in 1..threads {
            let shared = workers.shared.clone();
            let helper = thread::Builder::new().name(format!("worker-{n}")).spawn(move || shared.help())?;
            workers.helpers.push(helper);
        }
        Ok(workers)
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        self.shared.state.lock().is_ending = true;
        self.shared.begun.notify_all();
        for helper in self.helpers.drain(..) {
            // The thread cannot have panicked: `help` catches panics.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// A helper: does its part of each task.
    fn help(&self) {
        let mut state = self.state.lock();
        while !state.is_ending {
            let Some(task) = state.task.filter(|_| state.wanted > 0) else {
                self.begun.wait(&mut state);
                continue;
            };
            state.wanted -= 1;
            state.busy += 1;
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(task));
            state = self.state.lock();
            state.has_panicked |= done.is_err();
            state.busy -= 1;
            if state.busy == 0 {
                self.left.notify_one();
            }
        }
    }

    /// Lets up to `helpers` helper threads do `task` as well, until the result is dropped.
    fn begin<'a>(&'a self, helpers: usize, task: &'a (dyn Fn() + Sync)) -> Helped<'a> {
        // SAFETY: the task is used only by helpers that are busy with it. Dropping `Helped` takes it from
        // those that have not begun, and waits for the others; it is not leaked, so that happens while the
        // task is borrowed.
        let task = unsafe { std::mem::transmute::<&'a (dyn Fn() + Sync), Task>(task) };
        let mut state = self.state.lock();
        (state.task, state.wanted) = (Some(task), helpers);
        drop(state);
        for _ in 0..helpers {
            self.begun.notify_one();
        }
        Helped { shared: self }
    }
}

/// A task for which there are helpers.
struct Helped<'a> {
    shared: &'a Shared,
}

impl Drop for Helped<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        (state.task, state.wanted) = (None, 0);
        while state.busy > 0 {
            self.shared.left.wait(&mut state);
        }
        let has_panicked = std::mem::take(&mut state.has_panicked);
        drop(state);
        assert!(!has_panicked || thread::panicking(), "a worker panicked");
    }
}

impl Workers for WorkerThreads {
    fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    fn run(&self, count: usize, each: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let take = || {
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= count {
                    break;
                }
                each(n);
            }
        };
        let helpers = self.helpers.len().min(count.saturating_sub(1));
        // A second caller does its work without helpers.
        let alone = self.helped.try_lock().filter(|_| helpers > 0);
        let _helped = alone.as_ref().map(|_| self.shared.begin(helpers, &take));
        take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn each_number_is_taken_once() {
        for threads in [0, 1, 3] {
            let workers = WorkerThreads::start(threads).unwrap();
            assert_eq!(workers.threads(), threads.max(1));
            for count in [0, 1, 2, 63] {
                let taken = AtomicU64::new(0);
                workers.run(count, &|n| assert_eq!(taken.fetch_or(1 << n, Relaxed) & 1 << n, 0));
                assert_eq!(taken.into_inner(), (1 << count) - 1);
            }
        }
    }

    #[test]
    fn nothing_runs_after_the_return() {
        let workers = WorkerThreads::start(4).unwrap();
        for round in 0..2000 {
            let sum = AtomicU64::new(0);
            workers.run(1 + round % 9, &|n| {
                sum.fetch_add(n as u64 + 1, Relaxed);
            });
            let count = 1 + round as u64 % 9;
            assert_eq!(sum.into_inner(), count * (count + 1) / 2);
        }
    }

    #[test]
    fn several_callers_may_run_at_once_and_within_each_other() {
        let workers = WorkerThreads::start(3).unwrap();
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        workers.run(5, &|_| workers.run(3, &|_| _ = sum.fetch_add(1, Relaxed)));
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 200 * 5 * 3);
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let workers = WorkerThreads::start(3).unwrap();
        for at in 0..8 {
            let run = || workers.run(8, &|n| assert_ne!(n, at));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        let taken = AtomicU64::new(0);
        workers.run(8, &|_| _ = taken.fetch_add(1, Relaxed));
        assert_eq!(taken.into_inner(), 8);
    }
}
