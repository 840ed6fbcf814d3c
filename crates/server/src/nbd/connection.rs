//! One client, from accept to close.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use forebay_engine::Pool;
use forebay_wire::nbd::ProtocolError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::negotiate::negotiate;
use super::session::session;
use super::tls::Tls;
use crate::plane::{FrontEnd, RawSocket, Socket, Worker};

/// What every connection needs.
#[derive(Clone)]
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub tls: Tls,
}

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("bytes in clear after STARTTLS")]
    ClearAfterStartTls,
    #[error("no option in {0:?}")]
    NegotiationTimeout(Duration),
    #[error("export '{name}' was refused: {why}")]
    ExportName { name: String, why: String },
}

impl FrontEnd for Context {
    fn spawn(&self, worker: &Rc<Worker>, socket: RawSocket) {
        let (worker, context) = (worker.clone(), self.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            if let Err(end) = serve(worker, &context, socket).await {
                tracing::info!(%end, "an NBD connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: &Context, socket: RawSocket) -> Result<(), End> {
    let stream = Stream::Plain(socket.into_tokio()?);
    let negotiated = tokio::select! {
        biased;
        // Whoever has not chosen an export by now has nothing to lose.
        () = worker.stopping() => return Ok(()),
        // On the heap, for the time that it takes: a connection is idle in its session.
        negotiated = Box::pin(negotiate(stream, context)) => negotiated?,
    };
    match negotiated {
        Some(negotiated) => session(worker, negotiated).await,
        None => Ok(()),
    }
}

/// A client's bytes, in clear or under TLS.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    /// The descriptor, if it is a UNIX socket's.
    pub fn unix_fd(&self) -> Option<RawFd> {
        let socket = match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.get_ref().0,
        };
        match socket {
            Socket::Unix(s) => Some(s.as_raw_fd()),
            Socket::Tcp(_) => None,
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
