//! The present state of a socket in the kernel. The reactor reports changes of this state later.

use std::os::fd::RawFd;

/// The events of poll(2) that an open descriptor has now, out of `events`, POLLHUP and POLLERR.
pub(crate) fn events_now(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the pointer is valid for the one element that the call reads and writes.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    if found > 0 { poll.revents } else { 0 }
}

/// Whether the peer of an open socket has closed it, or the connection is lost. This is true even while there
/// is input that was not read.
pub fn has_hung_up(fd: RawFd) -> bool {
    events_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}
