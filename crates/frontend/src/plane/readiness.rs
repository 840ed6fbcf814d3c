//! The state of a socket as the kernel has it now. The reactor reports changes later.

use std::os::fd::RawFd;

/// The events of poll(2) that an open descriptor has now: those of `events`, POLLHUP and POLLERR.
pub(crate) fn events_now(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the pointer is valid for the one element that the call reads and writes.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    if found > 0 { poll.revents } else { 0 }
}
