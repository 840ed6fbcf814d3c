//! Starting, running and stopping the data plane.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::listen::{Acceptor, ListenAddr, ListenError, Listener, RawSocket};
use super::worker::Worker;

/// How long clients have to take their last replies after a shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long to wait after a failed accept (out of descriptors, mostly) before the next.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What speaks one protocol.
pub(crate) trait FrontEnd: Send + Sync {
    /// Serves a client in a task of this thread.
    fn spawn(&self, worker: &Rc<Worker>, socket: RawSocket);
}

/// A data plane that is bound, so that its addresses are taken, and does not run yet: clients queue up.
#[derive(Default)]
pub struct Plane {
    doors: Vec<(Listener, Arc<dyn FrontEnd>)>,
}

/// A running data plane.
pub struct Handle {
    addresses: Vec<ListenAddr>,
    connections: Arc<AtomicUsize>,
    closing: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Plane {
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
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        let mut doors = Some((self.doors, senders));
        for (n, clients) in receivers.into_iter().enumerate() {
            let (closing, connections, accept) = (closing_rx.clone(), connections.clone(), doors.take());
            // A thread that cannot be had ends those that are there: the handle is dropped.
            handle.threads.push(
                std::thread::Builder::new()
                    .name(format!("data-{n}"))
                    .spawn(move || run_thread(closing, connections, clients, accept))?,
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
type Client = (Arc<dyn FrontEnd>, RawSocket);
type Accept = (Vec<(Listener, Arc<dyn FrontEnd>)>, Vec<mpsc::UnboundedSender<Client>>);

/// A data-plane thread, from start to end.
fn run_thread(
    mut closing: watch::Receiver<bool>,
    connections: Arc<AtomicUsize>,
    mut clients: mpsc::UnboundedReceiver<Client>,
    accept: Option<Accept>,
) {
    let worker = Worker::new(closing.clone(), connections);
    let result = worker.clone().block_on(async move {
        if let Some((doors, senders)) = accept {
            let senders: Arc<[_]> = senders.into();
            let next = Arc::new(AtomicUsize::new(0));
            for (listener, front) in doors {
                let (senders, next, closing) = (senders.clone(), next.clone(), closing.clone());
                tokio::task::spawn_local(accept_loop(listener.into_tokio()?, front, senders, next, closing));
            }
        }
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|c| *c) => break,
                // Where nothing can come any more, because nothing is listened on, only closing is waited for.
                Some((front, socket)) = clients.recv() => front.spawn(&worker, socket),
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

/// Accepts clients until the server closes; the listener is dropped then.
async fn accept_loop(
    acceptor: Acceptor,
    front: Arc<dyn FrontEnd>,
    senders: Arc<[mpsc::UnboundedSender<Client>]>,
    next: Arc<AtomicUsize>,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            _ = closing.wait_for(|c| *c) => return,
            accepted = acceptor.accept() => accepted,
        };
        match accepted {
            Ok(socket) => {
                let n = next.fetch_add(1, Ordering::Relaxed) % senders.len();
                // A receiver that is gone is closing, and closes the socket.
                let _ = senders[n].send((front.clone(), socket));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client; trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
