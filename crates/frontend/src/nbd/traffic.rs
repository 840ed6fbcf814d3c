//! The figures of the kernel about the bytes that a socket received and sent.

#[cfg(test)]
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::time::Duration;

use crate::socket_option::socket_option;

/// Bytes of input of an open socket that were not read.
pub(super) fn unread_input(fd: RawFd) -> u64 {
    let mut unread: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the given address.
    let done = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut unread) };
    if done == 0 { u64::try_from(unread).unwrap_or(0) } else { 0 }
}

/// The output of a TCP connection, in bytes since an origin that stays the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub written: u64,
    /// Number of bytes that the peer has acknowledged.
    pub received: u64,
}

impl Output {
    /// Reads the output of a connection; `None` if the kernel does not report it.
    pub fn of(fd: RawFd) -> Option<Output> {
        let mut pending: libc::c_int = 0;
        // SAFETY: TIOCOUTQ (SIOCOUTQ of sockets, tcp(7)) writes one int to the given address.
        let done = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut pending) };
        let pending = u64::try_from(pending).ok().filter(|_| done == 0)?;
        // Read after `pending`: an acknowledgement between both reads makes `written` too large, which proves
        // less.
        let received = acknowledged(fd)?;
        Some(Output { written: received + pending, received })
    }
}

/// `tcpi_bytes_acked` of the TCP connection of an open socket (Linux 4.1 and later).
fn acknowledged(fd: RawFd) -> Option<u64> {
    // Offset in `struct tcp_info` of linux/tcp.h: 8 bytes, 24 fields of 32 bits, and two of 64 bits precede
    // the field.
    const OFFSET: usize = 8 + 24 * 4 + 2 * 8;
    let info: [u8; OFFSET + 8] = socket_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
    info.last_chunk().map(|acknowledged| u64::from_ne_bytes(*acknowledged))
}

/// Time since the last segment with an acknowledgement arrived over the TCP connection of an open socket; at
/// most 20 ms too long, and not too short. `None` if the kernel does not report it.
pub fn since_acknowledgement(fd: RawFd) -> Option<Duration> {
    // `tcpi_last_ack_recv` in `struct tcp_info` of linux/tcp.h, in milliseconds of a clock that has steps of
    // up to 10 ms: 8 bytes and 12 fields of 32 bits precede the field.
    const OFFSET: usize = 8 + 12 * 4;
    const STEPS: Duration = Duration::from_millis(20);
    let info: [u8; OFFSET + 4] = socket_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
    let ms = info.last_chunk().map(|ms| u32::from_ne_bytes(*ms))?;
    Some(Duration::from_millis(ms.into()) + STEPS)
}

/// The two ends of a TCP connection.
#[cfg(test)]
pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::plane::has_hung_up;

    /// Writes until the peer, which does not read, has closed its window.
    fn fill(mut socket: &TcpStream) {
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 4096]).is_ok() {}
    }

    fn until(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the condition does not hold");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn only_output_that_the_peer_received_counts_as_received() {
        let (mut client, mut server) = tcp_pair();
        fill(&server);
        let output = || Output::of(server.as_raw_fd()).unwrap();
        until(|| output().received > 0 && output().written > output().received);
        client.set_nonblocking(true).unwrap();
        let mut buffer = vec![0; 1 << 20];
        until(|| {
            while client.read(&mut buffer).is_ok() {}
            let now = output();
            now.written == now.received
        });
        let before = output();
        let fd = server.as_raw_fd();
        server.write_all(&[0]).unwrap();
        until(|| Output::of(fd).unwrap().received > before.written);
    }

    /// The server cannot see that the peer is gone, since it has not read the input before the end of the
    /// stream.
    #[test]
    fn a_peer_that_closed_its_socket_receives_nothing() {
        let (client, mut server) = tcp_pair();
        fill(&client);
        drop(client);
        let fd = server.as_raw_fd();
        assert!(!has_hung_up(fd) && unread_input(fd) > 0);
        let before = Output::of(fd).unwrap();
        server.write_all(&[0]).unwrap();
        until(|| has_hung_up(fd));
        assert!(Output::of(fd).is_none_or(|after| after.received <= before.written));
    }
}
