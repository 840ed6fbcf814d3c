//! The process at the other end of a UNIX socket, and the identity of sockets.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::socket_option::socket_option;

/// The number of a socket in the kernel (`SO_COOKIE`), by which administrators name its connection: no other
/// socket of this host has it until the next start, and it stays when another process continues to serve the
/// socket. 0 if it is unknown.
pub(crate) fn cookie_of(socket: RawFd) -> u64 {
    socket_option(socket, libc::SOL_SOCKET, libc::SO_COOKIE).map_or(0, u64::from_ne_bytes)
}

/// The process that connected a UNIX socket, or made a socket pair; it may have ended since. `None` if the
/// process is unknown, or the descriptor is not a UNIX socket.
pub fn peer_of(socket: BorrowedFd<'_>) -> Option<i32> {
    let peer: [u8; size_of::<libc::ucred>()] =
        socket_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    // The process id is the first field (unix(7)).
    let pid = i32::from_ne_bytes(*peer.first_chunk()?);
    (pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn each_socket_has_a_number_which_its_duplicates_share() {
        let (a, b) = UnixStream::pair().unwrap();
        let (of_a, of_b) = (cookie_of(a.as_raw_fd()), cookie_of(b.as_raw_fd()));
        assert!(of_a != 0 && of_b != 0 && of_a != of_b);
        assert_eq!(cookie_of(a.try_clone().unwrap().as_raw_fd()), of_a);
        assert_eq!(cookie_of(-1), 0);
    }
}
