//! The process at the other end of a UNIX socket, and the identity of sockets.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The number of a socket in the kernel (`SO_COOKIE`), by which administrators name its connection: no other
/// socket of this host has it until the next start, and it stays when another process continues to serve the
/// socket. 0 if it is unknown.
pub(crate) fn cookie_of(socket: RawFd) -> u64 {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_COOKIE);
    // SAFETY: value and length are valid for the call to write; a descriptor that is not open is an error.
    let done = unsafe { libc::getsockopt(socket, level, name, (&raw mut cookie).cast(), &raw mut len) };
    if done == 0 { cookie } else { 0 }
}

/// The process that connected a UNIX socket, or made a socket pair; it may have ended since. `None` if that
/// is unknown, or the descriptor is of something else.
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> Option<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the descriptor is open, and value and length are valid for the call to write.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len) };
    (done == 0 && peer.pid > 0).then_some(peer.pid)
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
