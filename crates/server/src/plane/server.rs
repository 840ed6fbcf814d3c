//! Starting, running and stopping the data plane.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::connections::{Admission, ConnectionLimits, Connections, Refused};
use super::listen::{Acceptor, ListenAddr, ListenError, Listener, RawSocket};
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
}

/// A client that was accepted and admitted.
pub(crate) struct Client {
    pub socket: RawSocket,
    pub admission: Admission,
}

/// A data plane that is bound to its addresses and not running yet: clients queue in the kernel.
#[derive(Default)]
pub struct Plane {
    listeners: Vec<(Listener, Arc<dyn FrontEnd>)>,
    limits: ConnectionLimits,
    memory: MemoryLimits,
}

/// A running data plane.
pub struct Handle {
    addresses: Vec<ListenAddr>,
    connections: Arc<AtomicUsize>,
    closing: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Plane {
    /// A data plane with these limits on its clients.
    pub fn new(limits: ConnectionLimits, memory: MemoryLimits) -> Plane {
        Plane { listeners: Vec::new(), limits, memory }
    }

    /// Binds the addresses of a front end. Returns them with the actual ports.
    pub(crate) fn listen(
        &mut self,
        front: &Arc<dyn FrontEnd>,
        addresses: &[ListenAddr],
    ) -> Result<Vec<ListenAddr>, ListenError> {
        let mut taken = Vec::new();
        for address in addresses {
            for listener in Listener::bind(address)? {
                taken.push(listener.address());
                self.listeners.push((listener, front.clone()));
            }
        }
        Ok(taken)
    }

    /// Serves clients on `cores` threads, at least one.
    pub fn run(self, cores: usize) -> io::Result<Handle> {
        let addresses = self.listeners.iter().map(|(listener, _)| listener.address()).collect();
        let connections = Arc::new(AtomicUsize::new(0));
        let (closing, closing_rx) = watch::channel(false);
        let mut handle = Handle { addresses, connections: connections.clone(), closing, threads: Vec::new() };
        let cores = cores.max(1);
        let memory = Memory::new(self.memory);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        let mut listeners = Some((self.listeners, senders, Connections::new(self.limits)));
        for (n, clients) in receivers.into_iter().enumerate() {
            let (connections, memory, accept) = (connections.clone(), memory.clone(), listeners.take());
            let worker = {
                let closing = closing_rx.clone();
                move || Worker::new(closing, connections, memory)
            };
            let closing = closing_rx.clone();
            // If a thread cannot be started, dropping the handle stops those that were started.
            handle.threads.push(
                std::thread::Builder::new()
                    .name(format!("data-{n}"))
                    .spawn(move || run_thread(closing, worker, clients, accept))?,
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

    /// Stops: accepts no new clients, finishes and answers requests received before, refuses those received
    /// later, and disconnects clients that have not received their replies after 2 seconds. The socket files
    /// are removed when this returns. The pool stays open.
    pub async fn shutdown(mut self) {
        self.closing.send_replace(true);
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                // A thread that panicked has nothing to close.
                let _ = thread.join();
            }
        });
        let _ = joined.await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

/// A client, and the front end that serves it.
type Served = (Arc<dyn FrontEnd>, Client);
type Accept = (Vec<(Listener, Arc<dyn FrontEnd>)>, Vec<mpsc::UnboundedSender<Served>>, Arc<Connections>);

/// A data-plane thread, from start to end.
fn run_thread(
    mut closing: watch::Receiver<bool>,
    worker: impl FnOnce() -> Rc<Worker>,
    mut clients: mpsc::UnboundedReceiver<Served>,
    accept: Option<Accept>,
) {
    let worker = worker();
    let result = worker.clone().block_on(async move {
        if let Some((listeners, senders, connections)) = accept {
            let senders: Arc<[_]> = senders.into();
            let next = Arc::new(AtomicUsize::new(0));
            for (listener, front) in listeners {
                let accepting = Accepting {
                    acceptor: listener.into_tokio()?,
                    front,
                    connections: connections.clone(),
                    senders: senders.clone(),
                    next: next.clone(),
                };
                tokio::task::spawn_local(accepting.run(closing.clone()));
            }
        }
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|c| *c) => break,
                                // Without listeners there are no senders, and only `closing` can end the
                                // loop.
                Some((front, client)) = clients.recv() => front.spawn(&worker, client),
            }
        }
        drop(clients);
        worker.close(SHUTDOWN_GRACE).await;
        io::Result::Ok(())
    });
    if let Err(error) = result {
        tracing::error!(%error, "a data-plane thread cannot run");
    }
}

/// Accepts the clients of one listener.
struct Accepting {
    acceptor: Acceptor,
    front: Arc<dyn FrontEnd>,
    connections: Arc<Connections>,
    senders: Arc<[mpsc::UnboundedSender<Served>]>,
    next: Arc<AtomicUsize>,
}

impl Accepting {
    /// Accepts clients until the server closes, and then drops the listener.
    async fn run(self, mut closing: watch::Receiver<bool>) {
        loop {
            let client = tokio::select! {
                biased;
                _ = closing.wait_for(|c| *c) => return,
                client = self.next_client() => client,
            };
            if let Some(client) = client {
                let n = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
                // A dropped receiver means that the thread is closing; the socket is closed.
                let _ = self.senders[n].send((self.front.clone(), client));
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
        Some(Client { socket, admission })
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
