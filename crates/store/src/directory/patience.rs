//! Waiting out a shortage of the system: of descriptors, of memory, or an interruption.
//!
//! A pool that gets an error from an append latches, so an error must mean that the store cannot do it, not that the
//! process had too many connections for a moment. An operation that has not begun, or that may be repeated because it
//! has the same effect each time (open, create, read, a write that no sync has covered), is repeated with growing
//! pauses, for a bounded time. A failed sync is never repeated: the kernel may have dropped what it could not write.

use std::io;
use std::time::{Duration, Instant};

/// The first pause; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a shortage may last before it is reported. Guests give up on a disk after 30 seconds or more.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether an error says that the system is short of something, so that the same call may succeed later.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let Some(errno) = error.raw_os_error() else { return false };
    is_interruption(error) || [libc::EMFILE, libc::ENFILE, libc::ENOMEM].contains(&errno)
}

/// Whether a call was not carried out and can be repeated at once.
pub(super) fn is_interruption(error: &io::Error) -> bool {
    // A ring cancels what a thread that ends had queued; it was not started.
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

/// How long one operation has been waiting.
#[derive(Debug, Default)]
pub(super) struct Patience {
    since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    /// The pause before the next try; `None` where the shortage has lasted too long.
    pub(super) fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LIMIT {
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        Some(self.pause)
    }
}

/// Calls `attempt` until it does not fail for a shortage, or one has lasted too long. Blocks.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut patience = Patience::default();
    loop {
        let error = match attempt() {
            Err(e) if is_shortage(&e) => e,
            other => return other,
        };
        let Some(pause) = patience.next_pause() else { return Err(error) };
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_waited_out_and_an_error_is_not() {
        let mut left = vec![libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
        let done = patiently(|| left.pop().map_or(Ok(7), |e| Err(io::Error::from_raw_os_error(e))));
        assert_eq!(done.unwrap(), 7);
        for errno in [libc::EIO, libc::ENOSPC, libc::ENOENT, libc::EROFS] {
            let mut calls = 0;
            let done: io::Result<()> = patiently(|| {
                calls += 1;
                Err(io::Error::from_raw_os_error(errno))
            });
            assert_eq!((done.unwrap_err().raw_os_error(), calls), (Some(errno), 1));
        }
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::default();
        assert_eq!(patience.next_pause(), Some(FIRST_PAUSE));
        for _ in 0..20 {
            let _ = patience.next_pause();
        }
        assert_eq!(patience.next_pause(), Some(LONGEST_PAUSE));
        patience.since = Instant::now().checked_sub(LIMIT);
        assert_eq!(patience.next_pause(), None);
    }
}
