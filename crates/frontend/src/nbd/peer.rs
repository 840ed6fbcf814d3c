//! The client at the other end of a connection. The process behind a UNIX socket is a client of this host,
//! which dies with it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use forebay_engine::Client;
use forebay_host::clock;

use super::stream::Stream;
use crate::peer::peer_of;
use crate::plane::{RawSocket, Socket};

/// The name of a client that has disconnected already.
const UNKNOWN: &str = "unknown";
/// Position of `starttime` among the fields after the name of the process (proc_pid_stat(5), field 22).
const START_TIME: usize = 19;

/// The client at the other end of a connection. A TCP client may be on another host even if its address
/// belongs to this host: a tunnel can end here.
pub(super) fn client(stream: &Stream) -> Client {
    let Stream::Plain(Socket::Unix(socket)) = stream else { return Client::Remote };
    local(socket.as_fd())
}

/// Works like [`client`], for a connection that another process handed over.
pub(super) fn client_of(socket: &RawSocket) -> Client {
    match socket {
        RawSocket::Unix(socket) => local(socket.as_fd()),
        RawSocket::Tcp(_) => Client::Remote,
    }
}

/// The client for administrators: its address, or its process.
pub(super) fn name(stream: &Stream) -> String {
    match stream.socket() {
        Some(Socket::Tcp(socket)) => name_of_address(socket.peer_addr()),
        Some(Socket::Unix(socket)) => name_of_process(socket.as_fd()),
        None => UNKNOWN.into(),
    }
}

/// Works like [`name`], for a connection that another process handed over.
pub(super) fn name_of(socket: &RawSocket) -> String {
    match socket {
        RawSocket::Tcp(socket) => name_of_address(socket.peer_addr()),
        RawSocket::Unix(socket) => name_of_process(socket.as_fd()),
    }
}

fn name_of_address(address: io::Result<SocketAddr>) -> String {
    address.map_or_else(|_| UNKNOWN.into(), |address| address.to_string())
}

fn name_of_process(socket: BorrowedFd<'_>) -> String {
    // A process of another PID namespace has no number in this one.
    peer_of(socket).map_or_else(|| "a process of this host".into(), |pid| format!("process {pid}"))
}

fn local(socket: BorrowedFd<'_>) -> Client {
    Client::Local { started_ms: peer_of(socket).and_then(started_ms) }
}

/// When a process started, in milliseconds since boot, rounded down; `None` if that is unknown. If the socket
/// was passed on, this is the start of the process that had connected it.
fn started_ms(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks_of(&stat)?.checked_mul(1000)?.checked_div(clock::ticks_per_second())
}

/// The start of a process in clock ticks since boot. The name of the process may contain spaces and
/// parentheses.
fn ticks_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(START_TIME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 2 184467 1";
        assert_eq!(ticks_of(stat), Some(12345));
        assert_eq!(ticks_of("77 (a) S 1 2"), None);
        assert_eq!(ticks_of(""), None);
    }

    #[test]
    fn this_process_started_before_now() {
        let started = started_ms(std::process::id() as i32).expect("/proc is mounted");
        assert!(started > 0 && started <= clock::boot_ms(), "{started} of {}", clock::boot_ms());
        assert_eq!(started_ms(i32::MAX), None);
    }

    #[tokio::test]
    async fn the_client_of_a_unix_socket_is_local() {
        let (one, _other) = tokio::net::UnixStream::pair().expect("a socket pair");
        let own = started_ms(std::process::id() as i32);
        let stream = Stream::Plain(Socket::Unix(one));
        assert_eq!(client(&stream), Client::Local { started_ms: own });
        assert_eq!(name(&stream), format!("process {}", std::process::id()));
    }
}
