//! Sleeps that are shorter than a tick of the runtime's timer, which is a millisecond.
//!
//! A commit on a fast disk takes a fifth of that, so a wait that is to save commits must be precise to some
//! microseconds. Each sleep uses a timer of the kernel (`timerfd`), which is kept for later sleeps.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;

/// Maximum number of timers that are kept; seldom more than one is in use.
const MOST_KEPT: usize = 4;

/// Maximum number of concurrent sleeps, since each takes a descriptor. Others use the runtime's timer.
const MOST_SLEEPS: usize = 16;

/// Kernel timers that are not in use, on the runtime in which they were created.
#[derive(Default)]
pub(super) struct Timers(Mutex<Vec<Timer>>);

type Timer = AsyncFd<File>;

impl Timers {
    /// Sleeps for `duration`. To be called in the context of the runtime of these timers.
    ///
    /// # Errors
    /// The system has no timer, or no descriptor for one, or too many sleeps are under way.
    pub(super) fn start(self: &Arc<Self>, duration: Duration) -> io::Result<PreciseSleep> {
        // Each sleep holds a reference.
        if Arc::strong_count(self) > MOST_SLEEPS {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let kept = self.0.lock().pop();
        let timer = match kept {
            Some(timer) => timer,
            // SAFETY: a `File` keeps its descriptor open and never changes it.
            None => unsafe { AsyncFd::register(create()?)? },
        };
        // An expiry that was not read is discarded when the timer is set.
        set(timer.get_ref(), duration.max(Duration::from_nanos(1)))?;
        Ok(PreciseSleep { timers: self.clone(), timer: Some(timer) })
    }
}

/// A sleep that has begun; its timer is kept when it is dropped.
pub(super) struct PreciseSleep {
    timers: Arc<Timers>,
    timer: Option<Timer>,
}

impl PreciseSleep {
    /// Completes when the time has passed.
    pub(super) async fn end(self) {
        let Some(timer) = &self.timer else { return };
        loop {
            // An error means that the runtime ends; nothing waits for the sleep then.
            let Ok(mut ready) = timer.readable().await else { return };
            let mut count = [0; 8];
            if ready.try_io(|timer| timer.get_ref().read(&mut count)).is_ok() {
                return;
            }
        }
    }
}

impl Drop for PreciseSleep {
    fn drop(&mut self) {
        let Some(timer) = self.timer.take() else { return };
        let mut kept = self.timers.0.lock();
        if kept.len() < MOST_KEPT && set(timer.get_ref(), Duration::ZERO).is_ok() {
            kept.push(timer);
        }
    }
}

fn create() -> io::Result<File> {
    // SAFETY: the call accesses no memory of this process.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Lets a timer expire once after `duration`; never for zero.
fn set(timer: &File, duration: Duration) -> io::Result<()> {
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let tv_sec = libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX);
    let it_value = libc::timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() };
    let time = libc::itimerspec { it_interval: never, it_value };
    // SAFETY: the descriptor is open, and `time` is valid during the call.
    let answer =
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const time, std::ptr::null_mut()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn sleeps_last_as_long_as_requested() {
        let timers = Arc::new(Timers::default());
        let mut shortest = Duration::MAX;
        for _ in 0..20 {
            let began = Instant::now();
            timers.start(Duration::from_micros(200)).unwrap().end().await;
            shortest = shortest.min(began.elapsed());
        }
        assert!((Duration::from_micros(200)..Duration::from_micros(900)).contains(&shortest), "{shortest:?}");
    }

    #[tokio::test]
    async fn a_sleep_of_no_time_ends() {
        Arc::new(Timers::default()).start(Duration::ZERO).unwrap().end().await;
    }

    #[tokio::test]
    async fn sleeps_are_bounded() {
        let timers = Arc::new(Timers::default());
        let sleeps: Vec<_> = (0..20).map_while(|_| timers.start(Duration::from_secs(1)).ok()).collect();
        assert_eq!(sleeps.len(), MOST_SLEEPS);
        drop(sleeps);
        assert!(timers.start(Duration::from_secs(1)).is_ok());
    }

    #[tokio::test]
    async fn a_kept_timer_does_not_end_the_next_sleep() {
        let timers = Arc::new(Timers::default());
        for pause in [0, 300] {
            let first = timers.start(Duration::from_micros(100)).unwrap();
            std::thread::sleep(Duration::from_micros(pause));
            drop(first);
            assert_eq!(timers.0.lock().len(), 1);
            let began = Instant::now();
            timers.start(Duration::from_millis(5)).unwrap().end().await;
            assert!(began.elapsed() >= Duration::from_millis(5));
        }
    }
}
