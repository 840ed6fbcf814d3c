//! Starting, running and stopping the data plane.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};

use super::connections::{Admission, ConnectionLimits, Connections, LimitsHandle, Refused};
use super::gate::Gate;
use super::handover::{Busy, Parked, Phase, Received, Resume, Resumed};
use super::latency::{Counts, Front, Latencies, Served as ServedFrom};
use super::listen::{Acceptor, Bound, ListenAddr, ListenError, Listener, RawSocket};
use super::memory::{Memory, MemoryLimits};
use super::pace::Pace;
use super::worker::Worker;
use crate::throttle::Throttle;

/// Time that clients have to receive their last replies after a shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Delay after a failed accept (mostly because descriptors are missing) before the next accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Interval at which the answers of threads are checked.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

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
    /// The bound address on which the client was accepted.
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
pub struct Probe(Vec<(ThreadId, mpsc::UnboundedSender<Served>)>);

impl Probe {
    /// Returns when every thread has answered, has ended, or is `excused`.
    pub async fn answered(&self, excused: impl Fn(ThreadId) -> bool) {
        let asked = self.0.iter().filter_map(|(id, thread)| {
            let (answer, answered) = oneshot::channel();
            thread.send(Served::Probe(answer)).is_ok().then_some((*id, answered))
        });
        let mut asked: Vec<_> = asked.collect();
        loop {
            asked.retain_mut(|(id, answered)| {
                answered.try_recv() == Err(TryRecvError::Empty) && !excused(*id)
            });
            if asked.is_empty() {
                return;
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }
}

/// A data-plane thread, to which clients are given.
#[derive(Clone)]
struct Lane {
    clients: mpsc::UnboundedSender<Served>,
    /// Number of clients that the thread serves or was given.
    load: Arc<AtomicUsize>,
}

impl Lane {
    fn new() -> (Lane, mpsc::UnboundedReceiver<Served>) {
        let (clients, receiver) = mpsc::unbounded_channel();
        (Lane { clients, load: Arc::default() }, receiver)
    }

    fn give(&self, client: Served) {
        self.load.fetch_add(1, Ordering::Relaxed);
        // A dropped receiver means that the thread is closing; the socket is closed.
        let _ = self.clients.send(client);
    }

    /// Returns one of the threads with the fewest clients. The first thread, which accepts clients, is the
    /// last choice.
    fn least_loaded(lanes: &[Lane]) -> Option<&Lane> {
        lanes.iter().rev().min_by_key(|lane| lane.load.load(Ordering::Relaxed))
    }
}

/// The counters of a running data plane. They are read without a lock.
#[derive(Clone, Default)]
pub struct PlaneCounters {
    connections: Arc<AtomicUsize>,
    memory: Option<Arc<Memory>>,
    /// Latencies of each thread.
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

    /// Works like [`Plane::new`], with listeners that are bound already.
    pub fn with_bound(limits: ConnectionLimits, memory: MemoryLimits, bound: Bound) -> Plane {
        Plane { bound, ..Plane::new(limits, memory) }
    }

    /// Binds the addresses of a front end, unless they are bound. Returns the addresses with the actual
    /// ports.
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

    /// Sets the gate: replies leave only while it is open.
    pub fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// Keeps a value until all connections of another process are served again.
    pub fn keep_until_resumed(&mut self, value: Arc<dyn Any + Send + Sync>) {
        self.until_resumed = Some(value);
    }

    /// Continues to serve a connection of another process, once the data plane runs. The front ends must be
    /// listening.
    ///
    /// # Errors
    /// Why it cannot be served; it is closed.
    pub fn resume(&mut self, parked: Parked) -> Result<(), String> {
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
        let (lanes, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| Lane::new()).unzip();
        let until_resumed = self.until_resumed.unwrap_or_else(|| Arc::new(()));
        let resumed = self.resumed.into_iter().zip(lanes.iter().rev().cycle());
        for ((resume, socket, listener, received), lane) in resumed {
            let (admission, until_resumed) = (clients.adopt(socket.peer()), until_resumed.clone());
            let client = Resumed { socket, listener, admission, received, until_resumed };
            lane.give(Served::Resumed(resume, client));
        }
        let mut listeners = Some((self.listeners, lanes.clone(), clients));
        for (n, clients) in receivers.into_iter().enumerate() {
            let (connections, memory, accept) = (connections.clone(), memory.clone(), listeners.take());
            let worker = {
                let (phase, busy, gate) = (phase_rx.clone(), busy.clone(), self.gate.clone());
                let latencies = latencies[n].clone();
                // The store may block a thread that makes commits, so the thread that accepts clients makes
                // none.
                let pace = Pace::new(lanes[n].load.clone(), accept.is_none());
                move || Worker::new(phase, connections, busy, memory, gate, latencies, pace)
            };
            let phase = phase_rx.clone();
            // If a thread cannot be started, dropping the handle stops the threads that were started.
            handle.threads.push(
                std::thread::Builder::new()
                    .name(format!("data-{n}"))
                    .spawn(move || run_thread(phase, worker, clients, accept))?,
            );
        }
        let ids = handle.threads.iter().map(|thread| thread.thread().id());
        handle.probe = Probe(ids.zip(lanes.into_iter().map(|lane| lane.clients)).collect());
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

    /// The counters, which stay readable after the end of the data plane.
    pub fn counters(&self) -> PlaneCounters {
        self.counters.clone()
    }

    /// Determines whether the threads make progress.
    pub fn probe(&self) -> Probe {
        self.probe.clone()
    }

    /// Changes the limits on clients.
    pub fn limits(&self) -> LimitsHandle {
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
    pub async fn quiesce(&self, time: Duration) -> Result<(), usize> {
        self.phase.send_replace(Phase::Quiescing);
        let quiet = self.busy.wait_for_none(time).await;
        if quiet.is_err() {
            self.phase.send_replace(Phase::Serving);
        }
        quiet
    }

    /// Serves again after [`Handle::quiesce`].
    pub fn continue_serving(&self) {
        self.phase.send_replace(Phase::Serving);
    }

    /// Stops after [`Handle::quiesce`]. Returns the connections that can be handed over, and the number of
    /// connections that were closed.
    pub async fn hand_over(mut self) -> (Vec<Parked>, usize) {
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

/// What a data-plane thread has to serve.
enum Served {
    /// An accepted client, and the front end that serves it.
    Accepted(Arc<dyn FrontEnd>, Client),
    /// A client that another process has handed over.
    Resumed(Resume, Resumed),
    /// A question whether the thread makes progress.
    Probe(oneshot::Sender<()>),
}

type Accept = (Vec<(Listener, Arc<dyn FrontEnd>)>, Vec<Lane>, Arc<Connections>);

/// A data-plane thread, from start to end. Returns the connections to be handed over.
fn run_thread(
    mut server: watch::Receiver<Phase>,
    worker: impl FnOnce() -> Rc<Worker>,
    mut clients: mpsc::UnboundedReceiver<Served>,
    accept: Option<Accept>,
) -> Vec<Parked> {
    let worker = worker();
    let result = worker.clone().block_on(async move {
        if let Some((listeners, lanes, connections)) = accept {
            let lanes: Arc<[_]> = lanes.into();
            for (listener, front) in listeners {
                let accepting = Accepting {
                    address: Arc::new(listener.address()),
                    acceptor: listener.into_tokio()?,
                    front,
                    connections: connections.clone(),
                    lanes: lanes.clone(),
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
                // Only `server` can end the loop.
                Some(client) = clients.recv() => match client {
                    Served::Accepted(front, client) => worker.begin(|worker| front.spawn(worker, client)),
                    Served::Resumed(resume, client) => worker.begin(|worker| resume(worker, client)),
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
    lanes: Arc<[Lane]>,
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
            if let (Some(client), Some(lane)) = (client, Lane::least_loaded(&self.lanes)) {
                lane.give(Served::Accepted(self.front.clone(), client));
            }
        }
    }

    /// The next client; `None` if it could not be accepted or admitted.
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

    /// Admits a client as soon as the limits allow it; `None` if the client is refused.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_does_not_answer_is_waited_for_unless_it_is_excused() {
        let id = std::thread::current().id();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (ended, _) = mpsc::unbounded_channel();
        let probe = Probe(vec![(id, sender), (id, ended)]);
        let minute = Duration::from_secs(60);
        assert!(tokio::time::timeout(minute, probe.answered(|_| false)).await.is_err());
        assert!(tokio::time::timeout(minute, probe.answered(|thread| thread == id)).await.is_ok());
        let answers = async {
            while let Some(Served::Probe(answer)) = receiver.recv().await {
                let _ = answer.send(());
            }
        };
        tokio::select! {
            () = answers => unreachable!("the sender exists"),
            answered = tokio::time::timeout(minute, probe.answered(|_| false)) => answered.unwrap(),
        }
    }

    #[test]
    fn a_client_is_given_to_the_thread_with_the_fewest_and_rather_not_to_the_first() {
        let (lanes, _receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| Lane::new()).unzip();
        let given: Vec<usize> = (0..6)
            .map(|_| {
                let lane = Lane::least_loaded(&lanes).unwrap();
                lane.give(Served::Probe(oneshot::channel().0));
                lanes.iter().position(|other| Arc::ptr_eq(&other.load, &lane.load)).unwrap()
            })
            .collect();
        assert_eq!(given, [2, 1, 0, 2, 1, 0]);
        lanes[1].load.store(0, Ordering::Relaxed);
        assert!(Arc::ptr_eq(&Lane::least_loaded(&lanes).unwrap().load, &lanes[1].load));
    }
}
