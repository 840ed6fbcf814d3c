//! Starting, running and stopping the server: one data-plane thread for each core it is given, each with a
//! runtime of its own. The first also accepts, and hands clients out in turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_engine::Pool;
use tokio::sync::{mpsc, watch};

use super::connection;
use super::listen::{Acceptor, ListenAddr, ListenError, Listener, RawSocket};
use super::tls::{Tls, TlsConfig, TlsError};
use super::worker::Worker;

/// How long clients have to take their last replies after a shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long to wait after a failed accept (out of descriptors, mostly) before the next.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What the server is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<ListenAddr>,
    /// Whether and how TLS is used.
    pub tls: TlsConfig,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server that is bound, so that its addresses are taken, and does not run yet: clients queue up.
pub struct Server {
    listeners: Vec<Listener>,
    tls: Tls,
}

/// A running server.
pub struct Handle {
    addresses: Vec<ListenAddr>,
    connections: Arc<AtomicUsize>,
    closing: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Takes the addresses and reads the certificates.
    pub fn bind(config: &Config) -> Result<Server, BindError> {
        let tls = Tls::load(&config.tls)?;
        let mut listeners = Vec::new();
        for addr in &config.listen {
            listeners.extend(Listener::bind(addr)?);
        }
        Ok(Server { listeners, tls })
    }

    /// Serves the disks of `pool` on `cores` threads, at least one.
    pub fn run(self, pool: Arc<Pool>, cores: usize) -> io::Result<Handle> {
        let addresses = self.listeners.iter().map(Listener::address).collect();
        let connections = Arc::new(AtomicUsize::new(0));
        let (closing, closing_rx) = watch::channel(false);
        let mut handle = Handle { addresses, connections: connections.clone(), closing, threads: Vec::new() };
        let context = connection::Context { pool, tls: self.tls, connections, closing: closing_rx };
        let cores = cores.max(1);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        let mut listeners = Some((self.listeners, senders));
        for (n, sockets) in receivers.into_iter().enumerate() {
            let context = context.clone();
            let accept = listeners.take();
            // A thread that cannot be had ends those that are there: the handle is dropped.
            handle.threads.push(
                std::thread::Builder::new()
                    .name(format!("nbd-{n}"))
                    .spawn(move || run_thread(context, sockets, accept))?,
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

    /// Stops: no new clients; what was asked for is finished and answered, what is asked for later is refused
    /// with `ESHUTDOWN`; clients that do not take their answers are left after 2 seconds. The socket files are
    /// gone when this returns. The pool stays open.
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

type Accept = (Vec<Listener>, Vec<mpsc::UnboundedSender<RawSocket>>);

/// A data-plane thread, from start to end.
fn run_thread(
    context: connection::Context,
    mut sockets: mpsc::UnboundedReceiver<RawSocket>,
    accept: Option<Accept>,
) {
    let mut closing = context.closing.clone();
    let worker = Worker::new();
    let result = worker.clone().block_on(async move {
        if let Some((listeners, senders)) = accept {
            let senders: Arc<[_]> = senders.into();
            let next = Arc::new(AtomicUsize::new(0));
            for listener in listeners {
                let (senders, next, closing) = (senders.clone(), next.clone(), context.closing.clone());
                tokio::task::spawn_local(accept_loop(listener.into_tokio()?, senders, next, closing));
            }
        }
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|c| *c) => break,
                // Where nothing can come any more, because nothing is listened on, only closing is waited for.
                Some(socket) = sockets.recv() => connection::spawn(&worker, &context, socket),
            }
        }
        drop(sockets);
        worker.close(SHUTDOWN_GRACE).await;
        io::Result::Ok(())
    });
    if let Err(error) = result {
        tracing::error!(%error, "an NBD thread cannot run");
    }
}

/// Accepts clients until the server closes; the listener is dropped then.
async fn accept_loop(
    acceptor: Acceptor,
    senders: Arc<[mpsc::UnboundedSender<RawSocket>]>,
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
                let _ = senders[n].send(socket);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an NBD client; trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
