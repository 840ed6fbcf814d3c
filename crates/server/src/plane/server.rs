//! Starting, running and stopping the data plane.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::connections::{Admission, ConnectionLimits, Connections, LimitsHandle, Refused};
use super::gate::Gate;
use super::handover::{Busy, Parked, Phase, Received, Resume, Resumed};
use super::latency::{Counts, Front, Latencies, Served as ServedFrom};
use super::listen::{Acceptor, Bound, ListenAddr, ListenError, Listener, RawSocket};
use super::memory::{Memory, MemoryLimits};
use super::worker::Worker;
use crate::throttle::Throttle;

/// Time that clients have to receive their last replies after a shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Delay after a failed accept (mostly for lack of descriptors) before the next.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The server of one protocol.
pub(crate) trait FrontEnd: Send + Sync {
    /// Serves a client in a task of this thread.
    fn spawn(&self, worker: &Rc<Worker>, client: Client);

    /// Prepares to serve a client that another process handed over, from the state that its
    /// [`Protocol`](super::Protocol) returned there.
    ///
    /// # Errors
    /// Why the client cannot be served; its connection is closed.
    fn resume(&self, _state: serde_json::Value, _socket: &RawSocket) -> Result<Resume, String> {
        Err("its protocol cannot be handed over".into())
    }
}

/// A client that was accepted and admitted.
pub(crate) struct Client {
    pub socket: RawSocket,
    pub admission: Admission,
    /// The bound address on which it was accepted.
    pub listener: Arc<ListenAddr>,
}

/// A data plane that is bound to its addresses and not running yet: clients queue in the kernel.
#[derive(Default)]
pub struct Plane {
    bound: Bound,
    listeners: Vec<(Listener, Arc<dyn FrontEnd>)>,
    resumed: Vec<(Resume, RawSocket, Arc<ListenAddr>, Received)>,
    until_resumed: Option<Arc<dyn Any + Send + Sync>>,
    limits: ConnectionLimits,
    memory: MemoryLimits,
    gate: Gate,
}

/// A running data plane.
pub struct Handle {
    addresses: Vec<ListenAddr>,
    connections: Arc<AtomicUsize>,
    phase: watch::Sender<Phase>,
    busy: Arc<Busy>,
    threads: Vec<JoinHandle<Vec<Parked>>>,
    counters: PlaneCounters,
    limits: LimitsHandle,
    probe: Probe,
}

/// Determines whether the threads of a data plane make progress.
#[derive(Clone)]
pub(crate) struct Probe(Vec<mpsc::UnboundedSender<Served>>);

impl Probe {
    /// Returns when every thread has answered, also one that has ended.
    pub async fn answered(&self) {
        let asked = self.0.iter().filter_map(|thread| {
            let (answer, answered) = oneshot::channel();
            thread.send(Served::Probe(answer)).is_ok().then_some(answered)
        });
        for answered in asked.collect::<Vec<_>>() {
            let _ = answered.await;
        }
    }
}

/// The counters of a running data plane. They are read without a lock.
#[derive(Clone, Default)]
pub(crate) struct PlaneCounters {
    connections: Arc<AtomicUsize>,
    memory: Option<Arc<Memory>>,
    /// Of each thread.
    latencies: Vec<Arc<Latencies>>,
}

impl PlaneCounters {
    /// Connected clients, including those that are negotiating.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes that the server holds for clients, and the budget.
    pub fn memory(&self) -> (usize, usize) {
        self.memory.as_ref().map_or((0, 0), |memory| memory.use_and_budget())
    }

    /// The times of the requests of all threads.
    pub fn latencies(&self, front: Front, served: ServedFrom) -> Counts {
        let mut counts = Counts::default();
        self.latencies.iter().for_each(|thread| thread.add_to(&mut counts, front, served));
        counts
    }
}

impl Plane {
    /// A data plane with these limits on its clients.
    pub fn new(limits: ConnectionLimits, memory: MemoryLimits) -> Plane {
        Plane { limits, memory, ..Plane::default() }
    }

    /// As [`Plane::new`], with listeners that are bound already.
    pub(crate) fn with_bound(limits: ConnectionLimits, memory: MemoryLimits, bound: Bound) -> Plane {
        Plane { bound, ..Plane::new(limits, memory) }
    }

    /// Binds the addresses of a front end, unless they are bound. Returns them with the actual ports.
    pub(crate) fn listen(
        &mut self,
        front: &Arc<dyn FrontEnd>,
        addresses: &[ListenAddr],
    ) -> Result<Vec<ListenAddr>, ListenError> {
        let mut taken = Vec::new();
        for address in addresses {
            let listeners = match self.bound.take(address) {
                Some(bound) => bound,
                None => Listener::bind(address)?,
            };
            for listener in listeners {
                taken.push(listener.address());
                self.listeners.push((listener, front.clone()));
            }
        }
        Ok(taken)
    }

    /// Replies leave only while this gate is open.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// Keeps a value until all connections of another process are served again.
    pub(crate) fn keep_until_resumed(&mut self, value: Arc<dyn Any + Send + Sync>) {
        self.until_resumed = Some(value);
    }

    /// Continues to serve a connection of another process, once the data plane runs. The front ends must be
    /// listening.
    ///
    /// # Errors
    /// Why it cannot be served; it is closed.
    pub(crate) fn resume(&mut self, parked: Parked) -> Result<(), String> {
        let Parked { listener, stream } = parked;
        let front = self.listeners.iter().find(|(l, _)| l.address() == listener).map(|(_, front)| front);
        let front = front.ok_or_else(|| format!("the server does not listen on {listener}"))?;
        let received = Received { input: stream.input, output: stream.output };
        if !received.is_valid() {
            return Err("its buffers are too long".into());
        }
        let socket = RawSocket::adopt(stream.socket).map_err(|e| e.to_string())?;
        let resume = front.resume(stream.protocol, &socket)?;
        self.resumed.push((resume, socket, Arc::new(listener), received));
        Ok(())
    }

    /// Serves clients on `cores` threads, at least one.
    pub fn run(self, cores: usize) -> io::Result<Handle> {
        let addresses = self.listeners.iter().map(|(listener, _)| listener.address()).collect();
        let connections = Arc::new(AtomicUsize::new(0));
        let (phase, phase_rx) = watch::channel(Phase::Serving);
        let busy = Arc::new(Busy::default());
        let clients = Connections::new(self.limits);
        let mut handle = Handle {
            addresses,
            connections: connections.clone(),
            phase,
            busy: busy.clone(),
            threads: Vec::new(),
            counters: PlaneCounters::default(),
            limits: LimitsHandle::new(clients.clone()),
            probe: Probe(Vec::new()),
        };
        let cores = cores.max(1);
        let memory = Memory::new(self.memory);
        let latencies: Vec<Arc<Latencies>> = (0..cores).map(|_| Arc::default()).collect();
        handle.counters = PlaneCounters {
            connections: connections.clone(),
            memory: Some(memory.clone()),
            latencies: latencies.clone(),
        };
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        handle.probe = Probe(senders.clone());
        let until_resumed = self.until_resumed.unwrap_or_else(|| Arc::new(()));
        let resumed = self.resumed.into_iter().zip(senders.iter().cycle());
        for ((resume, socket, listener, received), sender) in resumed {
            let (admission, until_resumed) = (clients.adopt(socket.peer()), until_resumed.clone());
            let client = Resumed { socket, listener, admission, received, until_resumed };
            let _ = sender.send(Served::Resumed(resume, client));
        }
        let mut listeners = Some((self.listeners, senders, clients));
        for (n, clients) in receivers.into_iter().enumerate() {
            let (connections, memory, accept) = (connections.clone(), memory.clone(), listeners.take());
            let worker = {
                let (phase, busy, gate) = (phase_rx.clone(), busy.clone(), self.gate.clone());
                let latencies = latencies[n].clone();
                move || Worker::new(phase, connections, busy, memory, gate, latencies)
            };
            let phase = phase_rx.clone();
            // If a thread cannot be started, dropping the handle stops those that were started.
            handle.threads.push(
                std::thread::Builder::new()
                    .name(format!("data-{n}"))
                    .spawn(move || run_thread(phase, worker, clients, accept))?,
            );
        }
        Ok(handle)
    }
}

impl Handle {
    /// The bound addresses, with the actual ports.
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// The number of connected clients, including those that are negotiating.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The counters, which stay readable after the end.
    pub(crate) fn counters(&self) -> PlaneCounters {
        self.counters.clone()
    }

    /// Determines whether the threads make progress.
    pub(crate) fn probe(&self) -> Probe {
        self.probe.clone()
    }

    /// Changes the limits on clients.
    pub(crate) fn limits(&self) -> LimitsHandle {
        self.limits.clone()
    }

    /// Stops: accepts no new clients, finishes and answers requests received before, refuses those received
    /// later, and disconnects clients that have not received their replies after 2 seconds. The socket files
    /// are removed when this returns. The pool stays open.
    pub async fn shutdown(mut self) {
        self.end(Phase::Closing).await;
    }

    /// Accepts no new clients, and reads no further requests of those that are connected. Returns when all
    /// requests that were read are answered.
    ///
    /// # Errors
    /// The number of connections whose requests are not finished after `time`; serving has continued then.
    pub(crate) async fn quiesce(&self, time: Duration) -> Result<(), usize> {
        self.phase.send_replace(Phase::Quiescing);
        let quiet = self.busy.wait_for_none(time).await;
        if quiet.is_err() {
            self.phase.send_replace(Phase::Serving);
        }
        quiet
    }

    /// Serves again after [`Handle::quiesce`].
    pub(crate) fn continue_serving(&self) {
        self.phase.send_replace(Phase::Serving);
    }

    /// Stops after [`Handle::quiesce`], and returns the connections that can be handed over, and the number
    /// of those that were closed.
    pub(crate) async fn hand_over(mut self) -> (Vec<Parked>, usize) {
        let all = self.connections();
        let parked = self.end(Phase::HandingOver).await;
        let closed = all.saturating_sub(parked.len());
        (parked, closed)
    }

    async fn end(&mut self, phase: Phase) -> Vec<Parked> {
        self.phase.send_replace(phase);
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            // A thread that panicked has nothing to close.
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        joined.await.unwrap_or_default()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.phase.send_if_modified(|phase| {
            let ended = phase.ends();
            if !ended {
                *phase = Phase::Closing;
            }
            !ended
        });
    }
}

/// A client for a data-plane thread.
enum Served {
    /// An accepted client, and the front end that serves it.
    Accepted(Arc<dyn FrontEnd>, Client),
    /// A client of another process.
    Resumed(Resume, Resumed),
    /// A question whether the thread makes progress.
    Probe(oneshot::Sender<()>),
}

type Accept = (Vec<(Listener, Arc<dyn FrontEnd>)>, Vec<mpsc::UnboundedSender<Served>>, Arc<Connections>);

/// A data-plane thread, from start to end. Returns the connections to be handed over.
fn run_thread(
    mut server: watch::Receiver<Phase>,
    worker: impl FnOnce() -> Rc<Worker>,
    mut clients: mpsc::UnboundedReceiver<Served>,
    accept: Option<Accept>,
) -> Vec<Parked> {
    let worker = worker();
    let result = worker.clone().block_on(async move {
        if let Some((listeners, senders, connections)) = accept {
            let senders: Arc<[_]> = senders.into();
            let next = Arc::new(AtomicUsize::new(0));
            for (listener, front) in listeners {
                let accepting = Accepting {
                    address: Arc::new(listener.address()),
                    acceptor: listener.into_tokio()?,
                    front,
                    connections: connections.clone(),
                    senders: senders.clone(),
                    next: next.clone(),
                };
                tokio::task::spawn_local(accepting.run(server.clone()));
            }
        }
        let last = loop {
            tokio::select! {
                biased;
                changed = server.changed() => {
                    // An error means that the handle was dropped.
                    let phase = changed.map_or(Phase::Closing, |()| *server.borrow_and_update());
                    if phase.ends() {
                        break phase;
                    }
                    worker.enter_phase(phase);
                }
                // Only `server` ends the loop.
                Some(client) = clients.recv() => match client {
                    Served::Accepted(front, client) => front.spawn(&worker, client),
                    Served::Resumed(resume, client) => resume(&worker, client),
                    Served::Probe(answer) => drop(answer.send(())),
                },
            }
        };
        drop(clients);
        Ok(worker.close(last, SHUTDOWN_GRACE).await)
    });
    result.unwrap_or_else(|error: io::Error| {
        tracing::error!(%error, "a data-plane thread cannot run");
        Vec::new()
    })
}

/// Accepts the clients of one listener.
struct Accepting {
    address: Arc<ListenAddr>,
    acceptor: Acceptor,
    front: Arc<dyn FrontEnd>,
    connections: Arc<Connections>,
    senders: Arc<[mpsc::UnboundedSender<Served>]>,
    next: Arc<AtomicUsize>,
}

impl Accepting {
    /// Accepts clients while the server is serving, until it ends; then drops the listener.
    async fn run(self, mut server: watch::Receiver<Phase>) {
        loop {
            let phase = server.wait_for(|phase| *phase != Phase::Quiescing).await.map(|phase| *phase);
            if phase.map_or(true, Phase::ends) {
                return;
            }
            let client = tokio::select! {
                biased;
                _ = server.wait_for(|phase| *phase != Phase::Serving) => continue,
                client = self.next_client() => client,
            };
            if let Some(client) = client {
                let n = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
                // A dropped receiver means that the thread is closing; the socket is closed.
                let _ = self.senders[n].send(Served::Accepted(self.front.clone(), client));
            }
        }
    }

    /// The next client; `None` if one could not be accepted or admitted.
    async fn next_client(&self) -> Option<Client> {
        static FAILED: Throttle = Throttle::new();
        let socket = match self.acceptor.accept().await {
            Ok(socket) => socket,
            // The client disconnected before it was accepted.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => return None,
            Err(error) => {
                if let Some(left_out) = FAILED.permit() {
                    tracing::warn!(%error, left_out, "cannot accept a client; trying again");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                return None;
            }
        };
        let admission = self.admit(&socket).await?;
        Some(Client { socket, admission, listener: self.address.clone() })
    }

    /// Admits a client as soon as the limits allow; `None` if it is refused.
    async fn admit(&self, socket: &RawSocket) -> Option<Admission> {
        static REFUSED: Throttle = Throttle::new();
        let peer = socket.peer();
        loop {
            let limit = match self.connections.admit(peer) {
                Ok(admission) => return Some(admission),
                Err(Refused::Wait(most)) => {
                    self.connections.wait(most).await;
                    continue;
                }
                Err(Refused::All) => "limits.connections",
                Err(Refused::Address) => "limits.connections_per_address",
            };
            if let Some(left_out) = REFUSED.permit() {
                tracing::warn!(?peer, limit, left_out, "refused a client: too many are connected");
            }
            return None;
        }
    }
}
