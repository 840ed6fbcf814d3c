//! The three system calls of the generator: sending must not block while receiving may, on one socket, which
//! `std` cannot say.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::time::Duration;

/// Sends what the socket takes now; `None` if that is nothing.
pub(crate) fn send(fd: RawFd, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len();
    loop {
        // SAFETY: IoSlice is guaranteed to have the layout of iovec; the parts outlive the call, which only
        // reads them.
        let n = unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if n >= 0 {
            return Ok(Some(n as usize));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// Receives what is there; with `wait`, at least a byte or the end (0) or, as `None`, the socket's timeout.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    loop {
        // SAFETY: the buffer is writable for its whole length.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        if n >= 0 {
            return Ok(Some(n as usize));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// Waits until the socket can be read (or, with `write`, written), or `timeout` has passed. Tells whether
/// anything happened.
pub(crate) fn wait(fd: RawFd, write: bool, timeout: Duration) -> io::Result<bool> {
    let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    loop {
        // SAFETY: one valid pollfd and a valid timeout; no signal mask.
        let n = unsafe { libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) };
        if n >= 0 {
            return Ok(n > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
