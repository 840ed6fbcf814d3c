//! TLS handshakes, on a dedicated thread.
//!
//! A handshake takes milliseconds of asymmetric cryptography, during which a data-plane thread could not
//! serve other clients. So the socket moves: it leaves the event loop of its thread, joins that of the
//! handshake thread, and returns with the established TLS session. The number of handshakes is limited; a
//! client that needs longer than [`HANDSHAKE_TIMEOUT`], including the time in the queue, is disconnected.
//!
//! Until the handshake is complete, the TLS library keeps the received part of a message in memory, up to 64
//! KiB and more. So a client can send no more than [`MAX_HANDSHAKE`], and its connection is charged for this
//! memory ([`super::negotiate`]).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::pem;
use crate::plane::{RawSocket, Socket, contained};

/// Maximum number of concurrent handshakes, each of at most [`MAX_HANDSHAKE`] and some 20 KiB: the default
/// limit of negotiating clients, so that no client queues behind silent clients, which are evicted instead
/// (`plane::connections`).
const MAX_HANDSHAKES: usize = 1024;
/// Time limit of a handshake, including the time in the queue.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that a client sends for a handshake: its greeting, of at most some KiB, and a
/// chain of certificates.
pub(super) const MAX_HANDSHAKE: usize = 32 << 10;
/// Niceness of the thread, so that it yields to data-plane threads (nice(2)).
const NICENESS: libc::c_int = 5;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("TLS handshake failed: {}", pem::in_words(.0))]
    Failed(#[from] io::Error),
    #[error("the TLS handshake took longer than {0:?}")]
    Timeout(Duration),
}

/// A TLS session, and its socket, which was taken out of the session: the socket must leave the event loop
/// of the handshake thread before both move to the data-plane thread.
struct Detached {
    stream: Box<TlsStream<Seat>>,
    socket: RawSocket,
}

struct Job {
    acceptor: TlsAcceptor,
    socket: RawSocket,
    done: oneshot::Sender<io::Result<Detached>>,
    permit: OwnedSemaphorePermit,
}

/// Handle of the handshake thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Handshakes {
    jobs: mpsc::UnboundedSender<Job>,
    permits: Arc<Semaphore>,
    timeout: Duration,
}

impl Handshakes {
    /// Starts the thread that performs handshakes.
    pub fn start() -> io::Result<Handshakes> {
        Handshakes::with(MAX_HANDSHAKES, HANDSHAKE_TIMEOUT)
    }

    /// Starts the thread, for at most `limit` concurrent handshakes, each no longer than `timeout`.
    fn with(limit: usize, timeout: Duration) -> io::Result<Handshakes> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (jobs, mut received) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("tls".into()).spawn(move || {
            // SAFETY: the call takes only integers. 0 is the calling thread (setpriority(2), on Linux).
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
            runtime.block_on(async {
                while let Some(job) = received.recv().await {
                    tokio::spawn(contained("a TLS handshake", run(job)));
                }
            });
        })?;
        Ok(Handshakes { jobs, permits: Arc::new(Semaphore::new(limit)), timeout })
    }

    /// Performs the handshake with the client on `socket`, and returns the TLS session to this thread.
    /// Dropping the future ends the handshake.
    pub async fn accept(
        &self,
        acceptor: TlsAcceptor,
        socket: Socket,
    ) -> Result<Box<TlsStream<Seat>>, HandshakeError> {
        let handshake = self.accept_in_time(acceptor, socket);
        let done = tokio::time::timeout(self.timeout, handshake).await;
        done.map_err(|_| HandshakeError::Timeout(self.timeout))?
    }

    async fn accept_in_time(
        &self,
        acceptor: TlsAcceptor,
        socket: Socket,
    ) -> Result<Box<TlsStream<Seat>>, HandshakeError> {
        let gone = || io::Error::other("the handshake thread has ended");
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| gone())?;
        let (done, result) = oneshot::channel();
        let job = Job { acceptor, socket: socket.into_raw()?, done, permit };
        self.jobs.send(job).map_err(|_| gone())?;
        let Detached { mut stream, socket } = result.await.map_err(|_| gone())??;
        *stream.get_mut().0 = Seat { socket: Some(socket.into_tokio()?), left: None };
        Ok(stream)
    }
}

/// Performs one handshake, on the handshake thread.
async fn run(mut job: Job) {
    let handshake = async {
        let seat = Seat { socket: Some(job.socket.into_tokio()?), left: Some(MAX_HANDSHAKE) };
        let mut stream = Box::new(job.acceptor.accept(seat).await?);
        let socket = stream.get_mut().0.socket.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Detached { stream, socket: socket.into_raw()? })
    };
    let result = tokio::select! {
        biased;
        // The connection ended, or its time limit was reached.
        () = job.done.closed() => return,
        result = handshake => result,
    };
    // The permit is free when the accepting task sees the result.
    drop(job.permit);
    // If the receiver was dropped, this drops the socket and so closes it.
    let _ = job.done.send(result);
}

/// The socket of a TLS session.
pub(super) struct Seat {
    /// The socket; `None` only while it moves between threads.
    socket: Option<Socket>,
    /// Number of bytes that may still be received; `None` for no limit.
    left: Option<usize>,
}

impl Seat {
    /// The socket, unless it moves between threads.
    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }
}

/// Calls a method of the socket; returns an error if there is no socket.
macro_rules! seated {
    ($self:expr, $method:ident($($arg:expr),*)) => {
        match &mut $self.get_mut().socket {
            Some(socket) => Pin::new(socket).$method($($arg),*),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl AsyncRead for Seat {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(left) = self.left else { return seated!(self, poll_read(cx, buf)) };
        if left == 0 {
            return Poll::Ready(Err(io::Error::other("the client sent too much for a handshake")));
        }
        let unfilled = left.min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(unfilled));
        let done = match &mut self.socket {
            Some(socket) => Pin::new(socket).poll_read(cx, &mut part),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        };
        let received = part.filled().len();
        self.left = Some(left - received);
        buf.advance(received);
        done
    }
}

impl AsyncWrite for Seat {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        seated!(self, poll_write(cx, buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        seated!(self, poll_write_vectored(cx, bufs))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        seated!(self, poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        seated!(self, poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned, sign};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Records the thread on which a handshake resolves its certificate.
    #[derive(Debug)]
    struct Recorder {
        key: Arc<sign::CertifiedKey>,
        thread: Mutex<Option<String>>,
    }

    impl ResolvesServerCert for Recorder {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<sign::CertifiedKey>> {
            *self.thread.lock().unwrap() = std::thread::current().name().map(str::to_owned);
            Some(self.key.clone())
        }
    }

    fn both_sides() -> (TlsAcceptor, Arc<ClientConfig>, Arc<Recorder>) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let key = sign::CertifiedKey::from_der(vec![cert.der().clone()], key, &provider).unwrap();
        let recorder = Arc::new(Recorder { key: Arc::new(key), thread: Mutex::default() });
        let server = ServerConfig::builder_with_provider(provider.clone());
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let server = server.with_cert_resolver(recorder.clone());
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider);
        let client = client.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        (TlsAcceptor::from(Arc::new(server)), Arc::new(client.with_no_client_auth()), recorder)
    }

    /// A socket pair: the server's end, registered in this thread's runtime, and the client's end.
    fn pair() -> (Socket, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        (RawSocket::Unix(server).into_tokio().unwrap(), client)
    }

    /// A client that sends `ping` and expects `pong`.
    fn ping(config: Arc<ClientConfig>, socket: UnixStream) -> std::thread::JoinHandle<()> {
        use std::io::{Read, Write};
        std::thread::spawn(move || {
            let tls = ClientConnection::new(config, ServerName::try_from("x").unwrap()).unwrap();
            let mut stream = StreamOwned::new(tls, socket);
            stream.write_all(b"ping").unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"pong");
        })
    }

    async fn pong(stream: &mut TlsStream<Seat>) {
        let mut question = [0; 4];
        stream.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"ping");
        stream.write_all(b"pong").await.unwrap();
        stream.flush().await.unwrap();
    }

    #[tokio::test]
    async fn a_handshake_runs_on_its_own_thread_and_returns_the_session() {
        let (acceptor, client_config, recorder) = both_sides();
        let handshakes = Handshakes::start().unwrap();
        let (socket, client) = pair();
        let client = ping(client_config, client);
        let mut stream = handshakes.accept(acceptor, socket).await.unwrap();
        assert_eq!(recorder.thread.lock().unwrap().as_deref(), Some("tls"));
        pong(&mut stream).await;
        client.join().unwrap();
        assert_eq!(handshakes.permits.available_permits(), MAX_HANDSHAKES);
    }

    #[tokio::test]
    async fn an_unfinished_greeting_is_bounded() {
        let (acceptor, _, _) = both_sides();
        let handshakes = Handshakes::with(1, Duration::from_secs(60)).unwrap();
        let (socket, mut client) = pair();
        // The client sends records of a ClientHello of 64 KiB, which never ends.
        let record = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
        let mut greeting = [&record[..], &record, &record].concat();
        greeting[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
        let sender = std::thread::spawn(move || {
            // The connection is cut while the client sends.
            let _ = std::io::Write::write_all(&mut client, &greeting);
            client
        });
        let error = handshakes.accept(acceptor, socket).await.err().unwrap();
        assert!(error.to_string().contains("too much for a handshake"), "{error}");
        sender.join().unwrap();
    }

    #[tokio::test]
    async fn a_silent_client_is_disconnected_at_the_time_limit() {
        let (acceptor, client_config, _) = both_sides();
        let handshakes = Handshakes::with(1, Duration::from_millis(300)).unwrap();
        let ((silent, _silent_client), (waiting, _waiting_client)) = (pair(), pair());
        let (first, second) = tokio::join!(
            handshakes.accept(acceptor.clone(), silent),
            handshakes.accept(acceptor.clone(), waiting)
        );
        assert!(matches!(first, Err(HandshakeError::Timeout(_))));
        assert!(matches!(second, Err(HandshakeError::Timeout(_))), "the time in the queue counts");
        let unhurried = Handshakes { timeout: Duration::from_secs(60), ..handshakes };
        let (socket, client) = pair();
        let client = ping(client_config, client);
        pong(&mut unhurried.accept(acceptor, socket).await.unwrap()).await;
        client.join().unwrap();
    }
}
