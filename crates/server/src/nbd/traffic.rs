//! What the kernel knows of the bytes that a socket received and sent.

use std::os::fd::RawFd;

use crate::plane::events_now;

/// Whether the peer of an open socket has closed it, or its connection is lost. True also while there is
/// input that was not read.
pub(super) fn has_hung_up(fd: RawFd) -> bool {
    events_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

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
    /// What the peer acknowledged.
    pub received: u64,
}

impl Output {
    /// `None` if the kernel does not tell.
    pub fn of(fd: RawFd) -> Option<Output> {
        let mut pending: libc::c_int = 0;
        // SAFETY: TIOCOUTQ (SIOCOUTQ of sockets, tcp(7)) writes one int to the given address.
        let done = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut pending) };
        let pending = u64::try_from(pending).ok().filter(|_| done == 0)?;
        // After `pending`: an acknowledgement in between makes `written` too large, which proves less.
        let received = acknowledged(fd)?;
        Some(Output { written: received + pending, received })
    }
}

/// `tcpi_bytes_acked` of the TCP connection of an open socket (Linux 4.1 and later).
fn acknowledged(fd: RawFd) -> Option<u64> {
    // `struct tcp_info` of linux/tcp.h: 8 bytes, 24 fields of 32 bits, two of 64, and this one.
    const OFFSET: usize = 8 + 24 * 4 + 2 * 8;
    let mut info = [0_u8; OFFSET + 8];
    let mut len = info.len() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `len` bytes to `info`, and their number to `len`.
    let done = unsafe { libc::getsockopt(fd, level, name, info.as_mut_ptr().cast(), &raw mut len) };
    let (_, acknowledged) = info.split_last_chunk()?;
    (done == 0 && len as usize == info.len()).then(|| u64::from_ne_bytes(*acknowledged))
}
