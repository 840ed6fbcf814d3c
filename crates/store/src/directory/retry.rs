//! Retries during a shortage of descriptors or memory in the system, or after an interruption.
//!
//! A pool that gets an error from an append latches, so an error must mean that the store cannot execute it,
//! not that the process had too many connections for a moment. An operation that has not begun, or that may
//! be repeated because it has the same effect each time (open, create, read, a write that no sync has
//! covered), is retried with increasing pauses, for a bounded time. A failed sync is never retried: the
//! kernel may have dropped the pages that it could not write.

use std::io;
use std::time::{Duration, Instant};

/// The first pause. Each later pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum duration of a shortage before it is reported. Guests report a disk as failed after 30 seconds or
/// more.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether an error reports a shortage of a resource, so that the same call may succeed later.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let Some(errno) = error.raw_os_error() else { return false };
    is_interruption(error) || [libc::EMFILE, libc::ENFILE, libc::ENOMEM].contains(&errno)
}

/// Whether a call was not executed and can be repeated immediately.
pub(super) fn is_interruption(error: &io::Error) -> bool {
    // A ring cancels the queued requests of a thread that ends; they were not started.
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

/// The waiting time of one operation.
#[derive(Debug, Default)]
pub(super) struct Retry {
    since: Option<Instant>,
    pause: Duration,
}

impl Retry {
    /// The pause before the next attempt; `None` if the shortage has lasted too long.
    pub(super) fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LIMIT {
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        Some(self.pause)
    }
}

/// Calls `attempt` until it does not fail for a shortage, or the shortage has lasted too long. Blocks.
pub(super) fn retry_shortage<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut retry = Retry::default();
    loop {
        let error = match attempt() {
            Err(e) if is_shortage(&e) => e,
            other => return other,
        };
        let Some(pause) = retry.next_pause() else { return Err(error) };
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_retried_and_another_error_is_not() {
        let mut left = vec![libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
        let done = retry_shortage(|| left.pop().map_or(Ok(7), |e| Err(io::Error::from_raw_os_error(e))));
        assert_eq!(done.unwrap(), 7);
        for errno in [libc::EIO, libc::ENOSPC, libc::ENOENT, libc::EROFS] {
            let mut calls = 0;
            let done: io::Result<()> = retry_shortage(|| {
                calls += 1;
                Err(io::Error::from_raw_os_error(errno))
            });
            assert_eq!((done.unwrap_err().raw_os_error(), calls), (Some(errno), 1));
        }
    }

    #[test]
    fn retries_end_after_the_time_limit() {
        let mut retry = Retry::default();
        assert_eq!(retry.next_pause(), Some(FIRST_PAUSE));
        for _ in 0..20 {
            let _ = retry.next_pause();
        }
        assert_eq!(retry.next_pause(), Some(LONGEST_PAUSE));
        retry.since = Instant::now().checked_sub(LIMIT);
        assert_eq!(retry.next_pause(), None);
    }
}
