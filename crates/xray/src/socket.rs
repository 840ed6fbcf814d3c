//! The system calls of the load generators. Sending must not block while receiving is possible on the same
//! socket; `std` has no such call.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::time::Duration;

/// Maximum number of messages that one call sends: more messages in one call gain nothing.
const MESSAGES_PER_SEND: usize = 64;

/// Sends as much as the socket accepts now; `None` if it accepts nothing.
pub(crate) fn send(fd: RawFd, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len();
    unless_blocked(|| {
        // SAFETY: IoSlice is guaranteed to have the layout of iovec; the parts outlive the call, which only
        // reads them.
        unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    })
}

/// Passes queued messages, each a header and its data, to `send`, which returns the number of bytes it
/// accepted.
///
/// `sent_of_first` is the number of bytes of the first message that were sent before; it is updated. Returns
/// the number of messages that are complete now, or `None` if nothing was accepted.
pub(crate) fn send_messages<'a>(
    messages: impl Iterator<Item = [&'a [u8]; 2]>,
    sent_of_first: &mut usize,
    send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<Option<usize>>,
) -> io::Result<Option<usize>> {
    let mut parts = [IoSlice::new(&[]); 2 * MESSAGES_PER_SEND];
    let mut lengths = [0; MESSAGES_PER_SEND];
    let (mut count, mut n, mut skip) = (0, 0, *sent_of_first);
    for (length, message) in lengths.iter_mut().zip(messages) {
        count += 1;
        for part in message {
            *length += part.len();
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                parts[n] = IoSlice::new(&part[skipped..]);
                n += 1;
            }
        }
    }
    let Some(sent) = send(&parts[..n])? else { return Ok(None) };
    *sent_of_first += sent;
    let mut complete = 0;
    while complete < count && *sent_of_first >= lengths[complete] {
        *sent_of_first -= lengths[complete];
        complete += 1;
    }
    Ok(Some(complete))
}

/// Receives the bytes that have arrived. With `wait`, blocks until at least one byte or the end of the stream
/// (0) arrives; `None` if nothing arrived, with `wait` within the socket's timeout.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    unless_blocked(|| {
        // SAFETY: the buffer is writable for its whole length.
        unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) }
    })
}

/// Repeats `call` while a signal interrupts it; `None` if it would block.
fn unless_blocked(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        let n = call();
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

/// The entry for [`wait`] of a socket that is to become readable or, with `write`, writable.
pub(crate) fn poll(fd: RawFd, write: bool) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN | if write { libc::POLLOUT } else { 0 }, revents: 0 }
}

/// Waits until one of the sockets is ready or `timeout` has passed. Returns whether one is ready.
pub(crate) fn wait(polls: &mut [libc::pollfd], timeout: Duration) -> io::Result<bool> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let count = polls.len() as libc::nfds_t;
    loop {
        // SAFETY: `count` valid pollfds and a valid timeout; no signal mask.
        let n = unsafe { libc::ppoll(polls.as_mut_ptr(), count, &timeout, std::ptr::null()) };
        if n >= 0 {
            return Ok(n > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
