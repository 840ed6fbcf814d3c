//! The byte stream of a client, in plain text or over TLS.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use tokio_rustls::server::TlsStream;

use super::attachments::Peer;
use super::handshake::Seat;
use crate::plane::{PlainSocket, Socket, delegate_stream};

/// The byte stream of a client.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Seat>>),
}

impl Stream {
    /// The client's socket.
    pub fn socket(&self) -> Option<&Socket> {
        match self {
            Stream::Plain(socket) => Some(socket),
            Stream::Tls(tls) => tls.get_ref().0.socket(),
        }
    }

    /// The peer, for other connections to the same disk; `None` if the socket is not available.
    pub fn peer(&self) -> Option<Peer> {
        self.socket().map(|socket| match socket {
            Socket::Unix(s) => Peer { fd: s.as_raw_fd(), is_tcp: false },
            Socket::Tcp(s) => Peer { fd: s.as_raw_fd(), is_tcp: true },
        })
    }
}

impl PlainSocket for Stream {
    fn plain(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Stream::Plain(socket) => Some(socket.as_fd()),
            // A TLS session cannot be handed over: its keys are in this process.
            Stream::Tls(_) => None,
        }
    }
}

delegate_stream!(Stream { Plain, Tls });
