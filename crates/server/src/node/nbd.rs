//! The NBD listeners of a node: each of their clients can use any disk of the cluster.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::nbd::{has_hung_up, since_acknowledgement};
use forebay_frontend::plane::{ListenAddr, Listener};
use forebay_gateway::nbd::{Gateway, Presence};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::NodeError;

/// Time without data after which the host of a client is asked whether it still has the connection.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// This time, while the client has to prove that it is connected: the shortest that the kernel accepts.
const KEEPALIVE_OF_PROOF: Duration = Duration::from_secs(1);
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
                    tasks.spawn_on(accept(listener, tcp_client, &TcpPresence, gateway, clients), threads);
                }
                Listener::Unix { listener, file, .. } => {
                    listener.set_nonblocking(true)?;
                    let listener = UnixListener::from_std(listener)?;
                    let accepting = async move {
                        // The file exists for as long as clients are accepted.
                        let _file = file;
                        accept(listener, unix_client, &UnixPresence, gateway, clients).await;
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
    set_keepalive(socket, KEEPALIVE, KEEPALIVE / 3);
    address.to_string()
}

/// An error is ignored, since the connection works nevertheless.
fn set_keepalive(socket: &TcpStream, idle: Duration, interval: Duration) {
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// A TCP client is connected if its host acknowledges keepalive probes.
struct TcpPresence;

impl Presence<TcpStream> for TcpPresence {
    fn ask(&self, client: &TcpStream, is_asking: bool) {
        let (idle, interval) = match is_asking {
            true => (KEEPALIVE_OF_PROOF, KEEPALIVE_OF_PROOF),
            false => (KEEPALIVE, KEEPALIVE / 3),
        };
        set_keepalive(client, idle, interval);
    }

    fn last_sign(&self, client: &TcpStream) -> Option<Duration> {
        let socket = client.as_raw_fd();
        if has_hung_up(socket) { None } else { since_acknowledgement(socket) }
    }
}

/// The end of a UNIX socket is always visible.
struct UnixPresence;

impl Presence<UnixStream> for UnixPresence {
    fn ask(&self, _: &UnixStream, _: bool) {}

    fn last_sign(&self, client: &UnixStream) -> Option<Duration> {
        (!has_hung_up(client.as_raw_fd())).then_some(Duration::ZERO)
    }
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
    presence: &'static dyn Presence<L::Io>,
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
            let _ = gateway.serve(socket, presence, &name).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::sleep;

    use super::*;

    /// Whether the client gives a sign within 3 s.
    async fn gives_a_sign<C>(presence: &dyn Presence<C>, client: &C) -> bool {
        let begin = Instant::now();
        presence.ask(client, true);
        let mut is_connected = false;
        while !is_connected && begin.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(20)).await;
            is_connected = presence.last_sign(client).is_some_and(|ago| ago <= begin.elapsed());
        }
        presence.ask(client, false);
        is_connected
    }

    #[tokio::test]
    async fn a_client_that_waits_for_its_reply_gives_a_sign_and_a_client_that_is_gone_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        client.write_all(&[1]).await.unwrap();
        socket.read_u8().await.unwrap();
        sleep(Duration::from_millis(200)).await;
        assert!(gives_a_sign(&TcpPresence, &socket).await);
        // Its end is behind input that was not read.
        client.write_all(&[1]).await.unwrap();
        drop(client);
        sleep(Duration::from_millis(100)).await;
        assert!(!gives_a_sign(&TcpPresence, &socket).await);
        assert_eq!(TcpPresence.last_sign(&socket), None);

        let (mut client, socket) = UnixStream::pair().unwrap();
        assert!(gives_a_sign(&UnixPresence, &socket).await);
        client.write_all(&[1]).await.unwrap();
        drop(client);
        assert!(!gives_a_sign(&UnixPresence, &socket).await);
    }
}
