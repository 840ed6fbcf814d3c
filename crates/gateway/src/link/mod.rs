//! Links: streams of bytes between nodes, to the processes of the shards that the other node owns.
//!
//! A link is a TCP connection with TLS 1.3, on which both ends prove that they are nodes of the cluster
//! ([`identity`]). The node that connects names a shard and a service. The other node opens the socket of the
//! shard's process, and from then on bytes pass in both directions.
//!
//! **A link that was closed delivers nothing later.** After a normal close, the kernel of the sender
//! continues to send unacknowledged data for minutes. So a write could arrive after the client has written
//! newer data over another connection. So a link is reset when it is closed (`SO_LINGER` with a time of
//! zero), also if the process of the node is killed. An end that has to deliver everything waits until the
//! other end has closed.

pub mod identity;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, copy_bidirectional_with_sizes,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use self::identity::{Identity, IdentityError, new_identity};
use crate::places::Places;
use crate::{BoxFuture, NbdClient, Stream};

/// Maximum time until a link is connected, and until its first messages have been exchanged.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum time for which sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Maximum length of a message at the beginning of a link, in bytes.
const MAX_MESSAGE: usize = 4096;
/// Bytes that a link holds in each direction.
const BUFFER: usize = 64 << 10;
/// Links that have not exchanged their beginning yet, of all addresses and of one.
const MOST_BEGINNING: usize = 1024;
const MOST_OF_ONE: usize = 128;
/// Pause after a connection could not be accepted, such as without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A service of the process of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// The HTTP API.
    Api,
    /// NBD, for this client.
    Nbd(NbdClient),
}

/// The request of the node that connects. Later versions may add fields.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    shard: u32,
    service: Service,
}

/// What the other node answers.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// Why there is no such stream; absent if it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// The shards that this node owns.
pub trait Local: Send + Sync + 'static {
    /// Opens a stream to a service of a shard. It fails if this node does not own the shard, or its process
    /// does not serve clients.
    fn open(&self, shard: u32, service: Service) -> BoxFuture<'_, io::Result<Stream>>;
}

/// Figures of the links of a node since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of links of other nodes that are open.
    pub accepted: AtomicU64,
    /// Number of links of other nodes that did not begin, without those that asked for a shard of another
    /// owner.
    pub not_begun: AtomicU64,
    /// Number of attempts to reach another node that failed, without those that the other node refused.
    pub unreachable: AtomicU64,
}

/// Opens a stream to a service of a shard at the node with this address.
///
/// # Errors
/// If the node cannot be reached, or is none of this cluster; if it refuses, with its reason.
pub async fn connect(
    address: SocketAddr,
    identity: &Identity,
    (shard, service): (u32, Service),
    counters: &Counters,
) -> io::Result<Stream> {
    let connected = async {
        let socket = TcpStream::connect(address).await?;
        prepare(&socket)?;
        let connector = TlsConnector::from(identity.client.clone());
        let name = ServerName::try_from(identity::NAME).map_err(io::Error::other)?;
        let mut stream = connector.connect(name, socket).await?;
        send(&mut stream, &Wanted { shard, service }).await?;
        let Answer { refused } = receive(&mut stream).await?;
        io::Result::Ok(match refused {
            None => Ok(Box::new(stream) as Stream),
            Some(why) => Err(io::Error::other(why)),
        })
    };
    let connected = timeout(CONNECT, connected).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if connected.is_err() {
        counters.unreachable.fetch_add(1, Relaxed);
    }
    connected?
}

/// Serves the links of other nodes. Never returns.
pub async fn serve(
    listener: TcpListener,
    identity: watch::Receiver<Identity>,
    local: Arc<dyn Local>,
    counters: Arc<Counters>,
) {
    // A stranger does not keep nodes out.
    let beginning = Places::new(MOST_BEGINNING, MOST_OF_ONE);
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!("a link of another node cannot be accepted: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Connections beyond the limit are closed: a node repeats the attempt, and a stranger gets no memory.
        let Some(place) = beginning.take(address.ip()) else { continue };
        let (mut identity, local, counters) = (identity.clone(), local.clone(), counters.clone());
        tokio::spawn(async move {
            let own = identity.borrow_and_update().clone();
            let broken = broken(&socket);
            let begun = timeout(CONNECT, accept(socket, own, &*local)).await;
            drop(place);
            match begun {
                Ok(Ok(Begun::Refused)) => tracing::debug!("a link to a shard of another owner was refused"),
                Ok(Ok(Begun::Open(mut link, mut stream))) => {
                    counters.accepted.fetch_add(1, Relaxed);
                    tokio::select! {
                        // Either end may break; both are closed then.
                        _ = copy_bidirectional_with_sizes(&mut link, &mut stream, BUFFER, BUFFER) => {}
                        // A node was removed, which may be the one at the other end.
                        _ = identity.changed() => {}
                        // The process of the shard may have stopped reading, and the end of the link is
                        // behind the data: what was not taken yet must not be executed after the client has
                        // connected again.
                        () = broken => {}
                    }
                    counters.accepted.fetch_sub(1, Relaxed);
                }
                Ok(Err(e)) => {
                    counters.not_begun.fetch_add(1, Relaxed);
                    tracing::debug!("a link has not begun: {e}");
                }
                Err(_) => {
                    counters.not_begun.fetch_add(1, Relaxed);
                    tracing::debug!("a link has not begun within {CONNECT:?}");
                }
            }
        });
    }
}

/// How a link has begun.
enum Begun {
    /// The link, and the stream to the process of the shard.
    Open(Stream, Stream),
    /// The other node has received the reason why there is no such stream.
    Refused,
}

async fn accept(socket: TcpStream, identity: Identity, local: &dyn Local) -> io::Result<Begun> {
    prepare(&socket)?;
    let mut link = TlsAcceptor::from(identity.server.clone()).accept(socket).await?;
    let Wanted { shard, service } = receive(&mut link).await?;
    match local.open(shard, service).await {
        Ok(stream) => {
            send(&mut link, &Answer { refused: None }).await?;
            Ok(Begun::Open(Box::new(link), stream))
        }
        Err(e) => {
            send(&mut link, &Answer { refused: Some(e.to_string()) }).await?;
            link.shutdown().await?;
            // A reset would discard the answer: the other end closes first.
            let _ = link.read(&mut [0]).await;
            Ok(Begun::Refused)
        }
    }
}

/// Completes when a socket was reset, also while nothing reads from it.
fn broken(socket: &TcpStream) -> impl Future<Output = ()> + use<> {
    let second = socket.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
    let watched = second.and_then(TcpStream::from_std);
    async move {
        match watched {
            Ok(watched) => drop(watched.ready(Interest::ERROR).await),
            // Then the end is noticed by reading.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Sets the options of the socket of a link.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = socket2::SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    let keepalive =
        socket2::TcpKeepalive::new().with_time(UNACKNOWLEDGED / 2).with_interval(UNACKNOWLEDGED / 5);
    socket.set_tcp_keepalive(&keepalive)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u16::try_from(text.len()).ok().filter(|len| usize::from(*len) <= MAX_MESSAGE);
    let len = len.ok_or_else(|| io::Error::other("a message is too long"))?;
    stream.write_all(&[&len.to_be_bytes()[..], &text].concat()).await?;
    stream.flush().await
}

async fn receive<T: for<'a> Deserialize<'a>>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let len = usize::from(stream.read_u16().await?);
    if len > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use parking_lot::Mutex;
    use tokio::io::DuplexStream;
    use tokio::sync::oneshot;

    use super::*;

    /// A node whose shard 7 echoes.
    struct Echo;

    impl Local for Echo {
        fn open(&self, shard: u32, _: Service) -> BoxFuture<'_, io::Result<Stream>> {
            Box::pin(async move {
                if shard != 7 {
                    return Err(io::Error::other("this node does not own the shard"));
                }
                let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 10);
                tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(far);
                    tokio::io::copy(&mut read, &mut write).await
                });
                Ok(Box::new(near) as Stream)
            })
        }
    }

    async fn node(identity: &Identity) -> (SocketAddr, watch::Sender<Identity>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = watch::channel(identity.clone());
        tokio::spawn(serve(listener, receiver, Arc::new(Echo), Arc::default()));
        (address, sender)
    }

    async fn open(address: SocketAddr, identity: &Identity, shard: u32) -> io::Result<Stream> {
        connect(address, identity, (shard, Service::Api), &Counters::default()).await
    }

    #[tokio::test]
    async fn refusals_are_no_failures_of_links() {
        let (own, other, counters) = (identity(), identity(), Counters::default());
        let (address, _sender) = node(&own).await;
        let unreachable = || counters.unreachable.load(Relaxed);
        assert!(connect(address, &own, (8, Service::Api), &counters).await.is_err());
        assert_eq!(unreachable(), 0, "refused");
        assert!(connect(address, &other, (7, Service::Api), &counters).await.is_err());
        assert_eq!(unreachable(), 1, "a stranger");
        assert!(connect(address, &own, (7, Service::Api), &counters).await.is_ok());
        assert_eq!(unreachable(), 1);
    }

    fn identity() -> Identity {
        Identity::parse(&new_identity().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn bytes_pass_between_nodes_of_one_cluster() {
        let own = identity();
        let (address, _sender) = node(&own).await;
        let mut link = open(address, &own, 7).await.unwrap();
        let sent: Vec<u8> = (0..1 << 20).map(|i: u32| (i * 7) as u8).collect();
        let (mut read, mut write) = tokio::io::split(&mut link);
        let mut received = vec![0; sent.len()];
        let (written, read) = tokio::join!(
            async {
                write.write_all(&sent).await?;
                write.flush().await
            },
            read.read_exact(&mut received)
        );
        written.unwrap();
        read.unwrap();
        assert!(received == sent);
    }

    /// A node whose shard does not read.
    struct Stuck(Mutex<Option<oneshot::Sender<DuplexStream>>>);

    impl Local for Stuck {
        fn open(&self, _: u32, _: Service) -> BoxFuture<'_, io::Result<Stream>> {
            let (near, far) = tokio::io::duplex(16);
            let kept = self.0.lock().take().map(|sender| sender.send(far));
            Box::pin(async move {
                kept.map(|_| Box::new(near) as Stream).ok_or_else(|| io::ErrorKind::Other.into())
            })
        }
    }

    #[tokio::test]
    async fn a_reset_is_noticed_behind_data_that_nobody_takes() {
        let (own, listener) = (identity(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (address, (_sender, receiver)) = (listener.local_addr().unwrap(), watch::channel(own.clone()));
        let (sender, far) = oneshot::channel();
        tokio::spawn(serve(listener, receiver, Arc::new(Stuck(Mutex::new(Some(sender)))), Arc::default()));
        let mut link = open(address, &own, 1).await.unwrap();
        let mut far = far.await.unwrap();
        link.write_all(&[7; 1 << 16]).await.unwrap();
        link.flush().await.unwrap();
        let mut first = [0; 4];
        far.read_exact(&mut first).await.unwrap();
        drop(link);
        // The stream ends soon, with the few bytes that its buffer had.
        let mut rest = Vec::new();
        timeout(CONNECT, far.read_to_end(&mut rest)).await.expect("the stream has not ended").unwrap();
        assert!(rest.len() < 1 << 16, "{} bytes came after the reset", rest.len());
    }

    #[tokio::test]
    async fn a_refusal_states_the_reason() {
        let own = identity();
        let (address, _sender) = node(&own).await;
        let error = open(address, &own, 8).await.err().unwrap();
        assert_eq!(error.to_string(), "this node does not own the shard");
    }

    #[tokio::test]
    async fn strangers_and_former_members_are_refused() {
        let (own, other) = (identity(), identity());
        let (address, sender) = node(&own).await;
        assert!(open(address, &other, 7).await.is_err());
        let mut bare = TcpStream::connect(address).await.unwrap();
        bare.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        // The other end is closed, in order or by a reset.
        let mut rest = Vec::new();
        let _ = bare.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("HTTP"));
        let mut before = open(address, &own, 7).await.unwrap();
        sender.send_replace(other.clone());
        assert!(before.read_u8().await.is_err(), "a link of a former member goes on");
        assert!(open(address, &own, 7).await.is_err(), "the identity was replaced");
        assert!(open(address, &other, 7).await.is_ok());
    }

    #[test]
    fn one_address_does_not_take_all_places() {
        let beginning = Places::new(MOST_BEGINNING, MOST_OF_ONE);
        let (one, other): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut places: Vec<_> = (0..MOST_OF_ONE).map(|_| beginning.take(one).unwrap()).collect();
        assert!(beginning.take(one).is_none() && beginning.take(other).is_some());
        places.pop();
        assert!(beginning.take(one).is_some());
        drop(places);
        assert!(beginning.are_free());
    }

    #[test]
    fn damaged_identities_are_refused() {
        assert!(Identity::parse("").is_err());
        let (one, other) = (new_identity().unwrap(), new_identity().unwrap());
        let end = "-----END PRIVATE KEY-----";
        let (key, _) = one.split_once(end).unwrap();
        let (_, certificate) = other.split_once(end).unwrap();
        assert!(Identity::parse(&format!("{key}{end}{certificate}")).is_err(), "they do not belong together");
    }
}
