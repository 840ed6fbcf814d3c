//! One client, from accept to close.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use forebay_engine::Pool;
use forebay_wire::nbd::ProtocolError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::access::Access;
use super::handshake::{HandshakeError, Seat};
use super::negotiate::negotiate;
use super::session::session;
use super::tls::Tls;
use crate::plane::{Client, Cut, FrontEnd, MemoryAccount, Socket, Worker, contained};
use crate::throttle::Throttle;

/// What every connection needs.
#[derive(Clone)]
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub tls: Tls,
    pub access: Access,
}

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    #[error("bytes in clear after STARTTLS")]
    ClearAfterStartTls,
    #[error(transparent)]
    Negotiation(#[from] Cut),
    #[error("no memory for a long option")]
    NoMemory,
    #[error("export '{name}' was refused: {why}")]
    ExportName { name: String, why: String },
}

impl FrontEnd for Context {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        static ENDED: Throttle = Throttle::new();
        let (worker, context) = (worker.clone(), self.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            // Of a panic there is an entry in the log already.
            if let Ok(Err(end)) = contained("an NBD connection", serve(worker, &context, client)).await
                && let Some(left_out) = ENDED.permit()
            {
                tracing::info!(%end, left_out, "an NBD connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: &Context, client: Client) -> Result<(), End> {
    let Client { socket, admission } = client;
    let stream = Stream::Plain(socket.into_tokio()?);
    // On the heap, for the time that it takes: a connection is idle in its session.
    let negotiated = match admission
        .negotiate(&worker, Box::pin(negotiate(stream, context, MemoryAccount::new(worker.memory()))))
        .await
    {
        Err(Cut::Stopping) => return Ok(()),
        negotiated => negotiated??,
    };
    let Some(negotiated) = negotiated else { return Ok(()) };
    admission.keep()?;
    session(worker, negotiated).await
}

/// A client's bytes, in clear or under TLS.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Seat>>),
}

impl Stream {
    /// The descriptor, if it is a UNIX socket's.
    pub fn unix_fd(&self) -> Option<RawFd> {
        let socket = match self {
            Stream::Plain(socket) => Some(socket),
            Stream::Tls(tls) => tls.get_ref().0.socket(),
        };
        match socket {
            Some(Socket::Unix(s)) => Some(s.as_raw_fd()),
            Some(Socket::Tcp(_)) | None => None,
        }
    }
}

/// Calls a method of whichever stream it is.
macro_rules! either {
    ($self:expr, $method:ident($($arg:expr),*)) => {
        match $self.get_mut() {
            Stream::Plain(s) => Pin::new(s).$method($($arg),*),
            Stream::Tls(s) => Pin::new(s).$method($($arg),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(cx, buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write_vectored(cx, bufs))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(cx))
    }
}
