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

/// How long clients have to take their last replies after a shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long to wait after a failed accept (out of descriptors, mostly) before the next.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What speaks one protocol.
pub(crate) trait FrontEnd: Send + Sync {
    /// Serves a client in a task of this thread.
    fn spawn(&self, worker: &Rc<Worker>, client: Client);
}

/// A client that was accepted and let in.
pub(crate) struct Client {
    pub socket: RawSocket,
    pub admission: Admission,
}

/// A data plane that is bound, so that its addresses are taken, and does not run yet: clients queue up.
#[derive(Default)]
pub struct Plane {
    doors: Vec<(Listener, Arc<dyn FrontEnd>)>,
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
        Plane { doors: Vec::new(), limits, memory }
    }

    /// Takes the addresses of a front end. Returns them with the ports that were taken.
    pub(crate) fn listen(
        &mut self,
        front: &Arc<dyn FrontEnd>,
        addresses: &[ListenAddr],
    ) -> Result<Vec<ListenAddr>, ListenError> {
        let mut taken = Vec::new();
        for address in addresses {
            for listener in Listener::bind(address)? {
                taken.push(listener.address());
                self.doors.push((listener, front.clone()));
            }
        }
        Ok(taken)
    }

    /// Serves clients on `cores` threads, at least one.
    pub fn run(self, cores: usize) -> io::Result<Handle> {
        let addresses = self.doors.iter().map(|(listener, _)| listener.address()).collect();
        let connections = Arc::new(AtomicUsize::new(0));
        let (closing, closing_rx) = watch::channel(false);
        let mut handle = Handle { addresses, connections: connections.clone(), closing, threads: Vec::new() };
        let cores = cores.max(1);
        let memory = Memory::new(self.memory);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        let mut doors = Some((self.doors, senders, Connections::new(self.limits)));
        for (n, clients) in receivers.into_iter().enumerate() {
            let (connections, memory, accept) = (connections.clone(), memory.clone(), doors.take());
            let worker = {
                let closing = closing_rx.clone();
                move || Worker::new(closing, connections, memory)
            };
            let closing = closing_rx.clone();
            // A thread that cannot be had ends those that are there: the handle is dropped.
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
    /// Where the server listens, with the ports it took.
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// How many clients are connected, those that still negotiate included.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Stops: no new clients; what was asked for is finished and answered, what is asked for later is refused;
    /// clients that do not take their answers are left after 2 seconds. The socket files are gone when this
    /// returns. The pool stays open.
    pub async fn shutdown(mut self) {
        self.closing.send_replace(true);
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                // A thread that panicked has nothing left to close.
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

/// A client, and what speaks with it.
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
        if let Some((doors, senders, connections)) = accept {
            let senders: Arc<[_]> = senders.into();
            let next = Arc::new(AtomicUsize::new(0));
            for (listener, front) in doors {
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
                // Where nothing can come any more, because nothing is listened on, only closing is waited for.
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
    /// Accepts clients until the server closes; the listener is dropped then.
    async fn run(self, mut closing: watch::Receiver<bool>) {
        loop {
            let client = tokio::select! {
                biased;
                _ = closing.wait_for(|c| *c) => return,
                client = self.next_client() => client,
            };
            if let Some(client) = client {
                let n = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
                // A receiver that is gone is closing, and closes the socket.
                let _ = self.senders[n].send((self.front.clone(), client));
            }
        }
    }

    /// The next client; `None` where one could not be accepted or let in.
    async fn next_client(&self) -> Option<Client> {
        static FAILED: Throttle = Throttle::new();
        let socket = match self.acceptor.accept().await {
            Ok(socket) => socket,
            // It went away while it waited.
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

    /// Lets a client in, when there is a place for it; `None` where there is none.
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
