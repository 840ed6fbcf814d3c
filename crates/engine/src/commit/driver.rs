//! Who runs the commit task: the engine's thread, or the thread that waits for the commit.
//!
//! To wake a thread takes some tens of microseconds of CPU on a virtual machine. A single durable write on a
//! fast store took two such wake-ups: one of the engine's thread, and one of the thread with the client. So a
//! thread that has [permission](commit_here) *helps*: it polls the commit task itself until the task has to
//! wait. If the store completes synced appends on the calling thread, the commit is then complete. Otherwise
//! the event for which the task waits wakes the engine's thread, which continues the task.
//!
//! The commit task is still one task with one state, polled by one thread at a time, and [`Host::run_step`]
//! keeps the other tasks of the engine from running at the same time. So the commit does not depend on which
//! thread polls it. While a thread helps, a wake-up of the task is only recorded. The helper passes the
//! recorded wake-up on when it stops.
//!
//! A helper makes one commit at most ([`Driver::end_turn`]), and never commits a group of more than
//! [`HELPED_BYTES`]: such a group has data of other clients, and preparing it takes longer than a wake-up.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};

use crate::pacing::Schedule;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::SeqCst;
use crate::{BoxFuture, Host};

/// Maximum dirty bytes of a group that another thread than the engine's commits.
const HELPED_BYTES: u64 = 256 << 10;

thread_local! {
    static MAY_COMMIT: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether this thread may make the commits for which its requests wait. An append to a store that was
/// fast until now may then block the thread. The permission is useful while the thread serves only one client
/// that waits for each reply, because then no other client of the thread waits for the store. By default a
/// thread has no permission.
pub fn commit_here(may: bool) {
    MAY_COMMIT.set(may);
}

/// Whether this thread has the permission to commit.
pub fn may_commit_here() -> bool {
    MAY_COMMIT.get()
}

/// The commit task, and its wake-ups.
#[derive(Default)]
pub(crate) struct Driver {
    /// `None` before it has begun and after it has ended.
    task: Mutex<Option<BoxFuture<'static, ()>>>,
    /// Wakes the engine's thread.
    engine: Mutex<Option<Waker>>,
    /// A thread other than the engine's is running the commit task.
    helps: AtomicBool,
    /// The thread that is running the commit task while `helps` is set.
    helper: Mutex<Option<ThreadId>>,
    /// The task was woken while another thread was running it.
    woken: AtomicBool,
}

impl Driver {
    /// Runs the commit task to its end.
    pub async fn run(self: Arc<Driver>, task: BoxFuture<'static, ()>) {
        *self.task.lock() = Some(task);
        let _ended = Ended(&self);
        poll_fn(|cx| {
            *self.engine.lock() = Some(cx.waker().clone());
            self.poll(&mut self.task.lock())
        })
        .await;
    }

    fn poll(self: &Arc<Driver>, task: &mut Option<BoxFuture<'static, ()>>) -> Poll<()> {
        let Some(running) = task else { return Poll::Ready(()) };
        let waker = Waker::from(self.clone());
        let polled = running.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *task = None;
        }
        polled
    }

    /// Whether this thread may commit a group of `dirty` bytes.
    pub fn may_help(&self, dirty: u64) -> bool {
        may_commit_here() && dirty <= HELPED_BYTES
    }

    /// The thread other than the engine's that is running the commit task; the store may block it.
    pub fn helper(&self) -> Option<ThreadId> {
        *self.helper.lock()
    }

    /// Requests a commit, and runs the commit task on this thread. Returns false, and does nothing, if
    /// another thread is running it.
    pub fn help(self: &Arc<Driver>, host: &dyn Host, schedule: &Schedule) -> bool {
        if self.helps.swap(true, SeqCst) {
            return false;
        }
        let helping = Helping(self);
        *self.helper.lock() = Some(thread::current().id());
        schedule.request_and_help(host.now());
        // The task now finds the work for which it was woken. What other threads did before they woke the
        // task is visible after a swap, but not after a store.
        self.woken.swap(false, SeqCst);
        let mut waits = false;
        host.run_step(&mut || {
            waits = self.task.try_lock().is_some_and(|mut task| self.poll(&mut task).is_pending());
        });
        schedule.end_help();
        if !waits {
            self.woken.store(true, SeqCst);
        }
        drop(helping);
        true
    }

    /// If another thread runs the commit task, leaves the rest of the work to the engine's thread.
    pub async fn end_turn(&self) {
        let mut has_yielded = false;
        poll_fn(|cx| {
            if has_yielded || !self.helps.load(SeqCst) {
                return Poll::Ready(());
            }
            has_yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn wake_engine(&self) {
        let engine = self.engine.lock().clone();
        if let Some(engine) = engine {
            engine.wake();
        }
    }
}

impl Wake for Driver {
    fn wake(self: Arc<Driver>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Driver>) {
        if self.helps.load(SeqCst) {
            self.woken.store(true, SeqCst);
            // If the thread still helps, it has not checked `woken` yet.
            if self.helps.load(SeqCst) {
                return;
            }
        }
        self.wake_engine();
    }
}

/// While this value exists, a thread helps. When it is dropped, the engine's thread continues if the task was
/// woken.
struct Helping<'a>(&'a Driver);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        *self.0.helper.lock() = None;
        self.0.helps.store(false, SeqCst);
        if self.0.woken.swap(false, SeqCst) {
            self.0.wake_engine();
        }
    }
}

/// Drops the task, which refers to the [`Driver`], when the engine's thread has ended or dropped it.
struct Ended<'a>(&'a Driver);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let task = self.0.task.lock().take();
        drop(task);
    }
}
