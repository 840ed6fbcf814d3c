//! The byte stream of a client, in plain text or over TLS.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use tokio_rustls::server::TlsStream;

use super::handshake::Seat;
use crate::plane::{PlainSocket, Socket, delegate_stream};

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

impl PlainSocket for Stream {
    fn plain(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Stream::Plain(socket) => Some(socket.as_fd()),
            // The keys of the session are in this process.
            Stream::Tls(_) => None,
        }
    }
}

delegate_stream!(Stream { Plain, Tls });
