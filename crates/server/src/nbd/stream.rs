//! The byte stream of a client, in plain text or over TLS.

use std::os::fd::{AsRawFd, RawFd};

use tokio_rustls::server::TlsStream;

use super::handshake::Seat;
use crate::plane::{Socket, delegate_stream};

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

delegate_stream!(Stream { Plain, Tls });
