//! The process at the other end of a UNIX socket.

use std::os::fd::{AsRawFd, BorrowedFd};

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
