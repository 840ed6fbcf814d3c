//! The NBD listeners of a node: each of their clients can use any disk of the cluster.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::plane::{ListenAddr, Listener};
use forebay_gateway::nbd::Gateway;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::NodeError;

/// Time without data after which the host of a client is asked whether it still has the connection.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Descriptors of a client: its socket, and the stream to the owner.
const DESCRIPTORS: usize = 2;

/// The NBD listeners.
pub(super) struct NbdListeners {
    bound: Vec<Listener>,
    addresses: Vec<ListenAddr>,
}

impl NbdListeners {
    /// Binds the addresses.
    pub fn bind(addresses: &[ListenAddr]) -> Result<NbdListeners, NodeError> {
        let (mut bound, mut actual) = (Vec::new(), Vec::new());
        for address in addresses {
            let listeners = Listener::bind(address)?;
            for listener in &listeners {
                actual.push(match listener {
                    Listener::Tcp(listener) => ListenAddr::Tcp(listener.local_addr()?.to_string()),
                    Listener::Unix { path, .. } => ListenAddr::Unix(path.clone()),
                });
            }
            bound.extend(listeners);
        }
        Ok(NbdListeners { bound, addresses: actual })
    }

    /// The addresses, with the actual ports.
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// Serves clients on these threads until the tasks are dropped. `descriptors` are those that the
    /// clients can use.
    pub fn serve(
        self,
        tasks: &mut JoinSet<()>,
        threads: &Handle,
        gateway: &Arc<Gateway>,
        descriptors: usize,
    ) -> io::Result<()> {
        let clients = Arc::new(Semaphore::new((descriptors / DESCRIPTORS).min(Semaphore::MAX_PERMITS)));
        for listener in self.bound {
            let (gateway, clients) = (gateway.clone(), clients.clone());
            match listener {
                Listener::Tcp(listener) => {
                    listener.set_nonblocking(true)?;
                    let listener = TcpListener::from_std(listener)?;
                    tasks.spawn_on(accept(listener, tcp_client, gateway, clients), threads);
                }
                Listener::Unix { listener, file, .. } => {
                    listener.set_nonblocking(true)?;
                    let listener = UnixListener::from_std(listener)?;
                    let accepting = async move {
                        // The file exists for as long as clients are accepted.
                        let _file = file;
                        accept(listener, unix_client, gateway, clients).await;
                    };
                    tasks.spawn_on(accepting, threads);
                }
            }
        }
        Ok(())
    }
}

/// Prepares the socket of a client, and returns the name of the client for administrators.
fn tcp_client(socket: &TcpStream, address: &SocketAddr) -> String {
    // Without these, small replies may be late, and a client whose host has failed keeps its place; the
    // connection works nevertheless.
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
    address.to_string()
}

fn unix_client(socket: &UnixStream, _: &tokio::net::unix::SocketAddr) -> String {
    match socket.peer_cred().ok().and_then(|peer| peer.pid()) {
        Some(pid) => format!("process {pid}"),
        None => "a process of the node".to_owned(),
    }
}

async fn accept<L: axum::serve::Listener>(
    mut listener: L,
    prepare: fn(&L::Io, &L::Addr) -> String,
    gateway: Arc<Gateway>,
    clients: Arc<Semaphore>,
) {
    loop {
        // Further clients wait in the queue of the kernel. The semaphore is never closed.
        let Ok(place) = clients.clone().acquire_owned().await else { return };
        let (socket, address) = listener.accept().await;
        let (gateway, name) = (gateway.clone(), prepare(&socket, &address));
        tokio::spawn(async move {
            // The gateway logs the end.
            let _ = gateway.serve(socket, &name).await;
            drop(place);
        });
    }
}
