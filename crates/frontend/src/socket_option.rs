//! Reading the options of sockets.

use std::io;
use std::os::fd::RawFd;

/// Reads an option (getsockopt(2)). Its value, or the beginning of it, has `N` bytes.
///
/// # Errors
/// Those of the call, also if the descriptor is not open, or of something else; `InvalidData` if the value
/// is shorter.
pub(crate) fn socket_option<const N: usize>(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u8; N]> {
    let mut value = [0; N];
    let mut len = N as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and their number to `len`.
    let done = unsafe { libc::getsockopt(socket, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    match done {
        0 if len as usize == N => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
