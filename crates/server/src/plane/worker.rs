//! A data-plane thread: its runtime, the buffers shared by its connections, and its shutdown.

use std::cell::{Cell, RefCell, RefMut};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;

use super::backlog::Backlog;
use super::budget::next_round;
use super::memory::Memory;
use super::pace::{Pace, precise_timers};
use super::scratch::Scratch;

/// State shared by the connections of one thread. Borrowed during one poll, never across an await.
pub(crate) struct Worker {
    scratch: RefCell<Scratch>,
    pace: Arc<Pace>,
    stopping: watch::Receiver<bool>,
    closing: Cell<bool>,
    connections: Cell<usize>,
    /// Connections of all threads.
    total: Arc<AtomicUsize>,
    memory: Arc<Memory>,
    last_left: Notify,
    /// Sessions to wake when the server closes.
    sessions: RefCell<Vec<Weak<Backlog>>>,
}

impl Worker {
    /// The worker of this thread. `stopping` becomes true when the server stops, `total` counts the
    /// connections of all threads, `memory` is the memory of all clients.
    pub fn new(stopping: watch::Receiver<bool>, total: Arc<AtomicUsize>, memory: Arc<Memory>) -> Rc<Worker> {
        Rc::new(Worker {
            scratch: RefCell::new(Scratch::new()),
            pace: Arc::default(),
            stopping,
            closing: Cell::new(false),
            connections: Cell::new(0),
            total,
            memory,
            last_left: Notify::new(),
            sessions: RefCell::new(Vec::new()),
        })
    }

    /// Runs the thread's main task; tasks that are still running when it ends are dropped.
    pub fn block_on<T>(self: Rc<Self>, main: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
        precise_timers();
        let pace = self.pace.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .on_thread_park(move || {
                pace.before_sleep();
                next_round();
            })
            .build()?;
        LocalSet::new().block_on(&runtime, main)
    }

    /// The memory of all clients.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The shared buffers.
    pub fn scratch(&self) -> RefMut<'_, Scratch> {
        self.scratch.borrow_mut()
    }

    /// Decides when the thread sleeps.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Waits until the server is stopping.
    pub async fn stopping(&self) {
        // An error means that the server was dropped, so it has stopped.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// Whether new requests are refused.
    pub fn closing(&self) -> bool {
        self.closing.get()
    }

    /// Counts a connection until the returned guard is dropped.
    pub fn enter(self: &Rc<Self>) -> Entered {
        self.connections.set(self.connections.get() + 1);
        self.total.fetch_add(1, Relaxed);
        Entered(self.clone())
    }

    /// Registers a session to be woken when the server closes.
    pub fn register(&self, session: &Rc<Backlog>) {
        let mut sessions = self.sessions.borrow_mut();
        // Sessions that have ended are removed only when the vector is full, so the amortised cost is
        // constant.
        if sessions.len() == sessions.capacity() {
            sessions.retain(|s| s.strong_count() > 0);
        }
        sessions.push(Rc::downgrade(session));
    }

    /// Ends the sessions, and waits for them, but no longer than `grace`.
    pub async fn close(&self, grace: Duration) {
        self.closing.set(true);
        let sessions = self.sessions.take();
        sessions.iter().filter_map(Weak::upgrade).for_each(|s| s.wake());
        let all_left = async {
            while self.connections.get() > 0 {
                self.last_left.notified().await;
            }
        };
        let _ = tokio::time::timeout(grace, all_left).await;
    }
}

/// Counts a connection until dropped.
pub(crate) struct Entered(Rc<Worker>);

impl Drop for Entered {
    fn drop(&mut self) {
        let left = self.0.connections.get() - 1;
        self.0.connections.set(left);
        self.0.total.fetch_sub(1, Relaxed);
        if left == 0 {
            self.0.last_left.notify_one();
        }
    }
}
