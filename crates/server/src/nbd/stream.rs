//! The byte stream of a client, in plain text or over TLS.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::handshake::Seat;
use crate::plane::Socket;

/// The byte stream of a client.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Seat>>),
}

impl Stream {
    /// The file descriptor of a UNIX socket; `None` for TCP.
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

/// Calls a method of the stream of either kind.
macro_rules! either {
    ($self:expr, $method:ident($($arg:expr),*)) => {
        match $self.get_mut() {
            Stream::Plain(s) => Pin::new(s).$method($($arg),*),
            Stream::Tls(s) => Pin::new(s).$method($($arg),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(cx, buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write_vectored(cx, bufs))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(cx))
    }
}
