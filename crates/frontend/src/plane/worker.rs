//! A data-plane thread: its runtime, the buffers shared by its connections, its shutdown, and its part in
//! handing connections over (`handover`).

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
use super::contain::contained;
use super::gate::Gate;
use super::handover::{Busy, BusyGuard, Parked, Phase};
use super::latency::{Latencies, Times};
use super::memory::Memory;
use super::pace::{Pace, precise_timers};
use super::scratch::Scratch;
use super::spares::Spares;

/// State shared by the connections of one thread. Borrowed during one poll, never across an await.
pub(crate) struct Worker {
    scratch: RefCell<Scratch>,
    spares: Rc<Spares>,
    pace: Arc<Pace>,
    times: Rc<Times>,
    /// The phase in which the server is.
    server: watch::Receiver<Phase>,
    /// The phase that the connections of this thread follow.
    phase: Cell<Phase>,
    busy: Arc<Busy>,
    /// Parked connections of this thread, to be handed over.
    parked: RefCell<Vec<Parked>>,
    connections: Cell<usize>,
    /// Number of connections of all threads.
    total: Arc<AtomicUsize>,
    memory: Arc<Memory>,
    gate: Gate,
    last_left: Notify,
    /// Sessions to wake when the server closes.
    sessions: RefCell<Vec<Weak<Backlog>>>,
}

impl Worker {
    /// The worker of this thread. `server` is the phase of the server, `total` counts the connections of all
    /// threads, `busy` those that are not quiet, `memory` is the memory of all clients, `gate` lets
    /// replies leave, `latencies` counts the requests of this thread, `pace` decides when it sleeps.
    pub fn new(
        server: watch::Receiver<Phase>,
        total: Arc<AtomicUsize>,
        busy: Arc<Busy>,
        memory: Arc<Memory>,
        gate: Gate,
        latencies: Arc<Latencies>,
        pace: Pace,
    ) -> Rc<Worker> {
        Rc::new(Worker {
            scratch: RefCell::new(Scratch::new()),
            spares: Rc::default(),
            pace: Arc::new(pace),
            times: Times::new(latencies),
            server,
            phase: Cell::new(Phase::Serving),
            busy,
            parked: RefCell::new(Vec::new()),
            connections: Cell::new(0),
            total,
            memory,
            gate,
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

    /// Returns the gate that lets replies leave.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The memory for all clients.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The buffers that the connections of this thread share.
    pub fn scratch(&self) -> RefMut<'_, Scratch> {
        self.scratch.borrow_mut()
    }

    /// Returns the memory for messages with much data.
    pub fn spares(&self) -> &Rc<Spares> {
        &self.spares
    }

    /// The pace, which decides when the thread sleeps.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Measures the times of the requests of this thread.
    pub fn times(&self) -> &Rc<Times> {
        &self.times
    }

    /// Waits until the server is stopping, or hands its connections over.
    pub async fn stopping(&self) {
        // An error means that the server was dropped, so it has stopped.
        let _ = self.server.clone().wait_for(|phase| phase.ends()).await;
    }

    /// Whether new requests are refused.
    pub fn closing(&self) -> bool {
        self.phase.get() == Phase::Closing
    }

    /// The phase that the connections follow.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Whether requests that were not begun are left to a successor.
    pub fn is_quiescing(&self) -> bool {
        matches!(self.phase.get(), Phase::Quiescing | Phase::HandingOver)
    }

    /// Lets the connections follow another phase.
    pub fn enter_phase(&self, phase: Phase) {
        self.phase.set(phase);
        let sessions: Vec<_> = self.sessions.borrow().iter().filter_map(Weak::upgrade).collect();
        sessions.iter().for_each(|session| session.wake());
    }

    /// Counts a connection as busy until it is quiet or dropped.
    pub fn begin_busy(&self) -> BusyGuard {
        BusyGuard::new(&self.busy)
    }

    /// Keeps a connection to be handed over.
    pub fn park(&self, parked: Parked) {
        self.parked.borrow_mut().push(parked);
    }

    /// Begins to serve a client that this thread was given.
    pub fn begin(self: &Rc<Self>, serve: impl FnOnce(&Rc<Worker>)) {
        serve(self);
        // `enter` counts the client from now on, unless it is not served.
        self.pace.left();
    }

    /// Counts a connection until the returned guard is dropped.
    pub fn enter(self: &Rc<Self>) -> Entered {
        self.connections.set(self.connections.get() + 1);
        self.pace.entered();
        self.total.fetch_add(1, Relaxed);
        Entered(self.clone())
    }

    /// Serves a connection in a task of this thread. `what` names the connection in the log of a panic;
    /// `ended` receives the error with which the connection ended.
    pub fn spawn_connection<E: 'static, F: Future<Output = Result<(), E>> + 'static>(
        self: &Rc<Self>,
        what: &'static str,
        connection: impl FnOnce(Rc<Worker>) -> F,
        ended: fn(E),
    ) {
        let entered = self.enter();
        let connection = connection(self.clone());
        tokio::task::spawn_local(async move {
            let _entered = entered;
            // A panic is logged where it is contained.
            if let Ok(Err(end)) = contained(what, connection).await {
                ended(end);
            }
        });
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

    /// Ends the sessions, and waits for them at most `grace`. In the phase of handing over, returns the
    /// connections to be handed over.
    pub async fn close(&self, phase: Phase, grace: Duration) -> Vec<Parked> {
        self.enter_phase(phase);
        let all_left = async {
            while self.connections.get() > 0 {
                self.last_left.notified().await;
            }
        };
        let _ = tokio::time::timeout(grace, all_left).await;
        self.parked.take()
    }
}

/// Counts a connection until this guard is dropped.
pub(crate) struct Entered(Rc<Worker>);

impl Drop for Entered {
    fn drop(&mut self) {
        let left = self.0.connections.get() - 1;
        self.0.connections.set(left);
        self.0.total.fetch_sub(1, Relaxed);
        self.0.pace.left();
        if left == 0 {
            self.0.last_left.notify_one();
        }
    }
}
