//! When a data-plane thread goes to sleep: at once, or after a pause in which more requests come together.
//!
//! A client with many requests in flight sends the next one for each reply that it takes. A server that is
//! quicker than the client is then woken for every single request: a wake-up, a receive, a send and the
//! client's wake-up for each, which costs several times what the request itself does. A network card meets
//! the same with interrupt moderation, and so does this: after it has sent replies, the thread sleeps for a
//! moment that nothing but the clock ends, and then serves all that has come.
//!
//! The pause costs nothing as long as the client is busy with replies that it has. Whether it is shows at the
//! end of the pause: replies that it has not taken yet are still in the socket (`SIOCOUTQ`). So the pause
//! grows while every client that was served has some left, and shrinks as soon as one has none; a client that
//! waits for each reply before it asks again always has none, and is never paused for, but for a short probe
//! once in a while. Only UNIX sockets tell; other clients are not paused for.

use std::os::fd::RawFd;
use std::time::Duration;

use parking_lot::Mutex;

/// The pause that is tried, and below which there is none.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(120);
/// Sleeps without a pause before one is tried again: at first, and at most.
const FIRST_SKIP: u32 = 16;
const LONGEST_SKIP: u32 = 1024;
/// Clients served since the last sleep that are looked at; if there are more, requests come together anyway.
const MAX_CLIENTS: usize = 4;

/// The pace of one thread.
#[derive(Default)]
pub(crate) struct Pace {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sockets to which replies were sent since the last sleep. They are open: a session forgets its own.
    served: [RawFd; MAX_CLIENTS],
    count: usize,
    /// Some client was served whose socket does not tell, or there were too many.
    blind: bool,
    control: Control,
}

/// What decides on the pause; apart from sockets and clocks, so that it can be tested.
#[derive(Debug, Clone, Copy)]
struct Control {
    pause: Duration,
    skip: u32,
    next_skip: u32,
}

impl Default for Control {
    fn default() -> Control {
        Control { pause: Duration::ZERO, skip: FIRST_SKIP, next_skip: FIRST_SKIP }
    }
}

impl Control {
    /// The pause to make now.
    fn pause(&mut self) -> Duration {
        if self.skip > 0 {
            self.skip -= 1;
            return Duration::ZERO;
        }
        self.pause.max(SHORTEST)
    }

    /// What came of a pause: whether every client was still busy with its replies.
    fn learn(&mut self, paused: Duration, all_busy: bool) {
        if all_busy {
            // In small steps: every one too many is time that the client spends waiting.
            self.pause = (paused + paused / 16).min(LONGEST);
            self.next_skip = FIRST_SKIP;
        } else if paused > SHORTEST {
            self.pause = (paused / 2).max(SHORTEST);
        } else {
            self.pause = Duration::ZERO;
            self.skip = self.next_skip;
            self.next_skip = (self.next_skip * 2).min(LONGEST_SKIP);
        }
    }
}

impl Pace {
    /// Replies were sent to a client; `socket` if it is one that tells what the client has not taken yet.
    pub fn served(&self, socket: Option<RawFd>) {
        let mut state = self.state.lock();
        let count = state.count;
        match socket {
            Some(fd) if state.served[..count].contains(&fd) => {}
            Some(fd) if count < MAX_CLIENTS => {
                state.served[count] = fd;
                state.count += 1;
            }
            _ => state.blind = true,
        }
    }

    /// A client leaves, and its socket is going to be closed.
    pub fn forget(&self, socket: RawFd) {
        let mut state = self.state.lock();
        if let Some(at) = state.served[..state.count].iter().position(|fd| *fd == socket) {
            state.count -= 1;
            let last = state.count;
            state.served.swap(at, last);
        }
    }

    /// The thread has nothing to do and is about to sleep.
    pub fn before_sleep(&self) {
        let mut state = self.state.lock();
        let (count, blind) = (std::mem::take(&mut state.count), std::mem::take(&mut state.blind));
        if count == 0 || blind {
            return;
        }
        let pause = state.control.pause();
        if !pause.is_zero() {
            // Nobody waits for the lock: it is there because the runtime's hook has to be `Sync`.
            std::thread::sleep(pause);
            let all_busy = state.served[..count].iter().all(|fd| has_unread(*fd));
            state.control.learn(pause, all_busy);
        }
    }
}

/// Whether the peer of a UNIX socket has not read all that was sent to it.
fn has_unread(socket: RawFd) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int to where it points.
    let done = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut unread) };
    done == 0 && unread > 0
}

/// Has the kernel end this thread's short sleeps in time: it may be 50 microseconds late otherwise.
pub(crate) fn precise_timers() {
    const SLACK_NS: libc::c_ulong = 1000;
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps `sleeps` times; `busy(pause)` says whether a client is still busy after such a pause. Returns
    /// the time spent in pauses.
    fn run(control: &mut Control, sleeps: u32, busy: impl Fn(Duration) -> bool) -> Duration {
        let mut paused = Duration::ZERO;
        for _ in 0..sleeps {
            let pause = control.pause();
            if !pause.is_zero() {
                paused += pause;
                control.learn(pause, busy(pause));
            }
        }
        paused
    }

    #[test]
    fn a_client_that_waits_for_each_reply_is_hardly_ever_paused_for() {
        let paused = run(&mut Control::default(), 1_000_000, |_| false);
        assert!(paused < Duration::from_micros(1_000_000 / 40), "{paused:?} in a million sleeps");
    }

    #[test]
    fn a_client_with_a_deep_queue_gets_a_pause_that_it_does_not_notice() {
        let mut control = Control::default();
        let depth = |limit_us| move |pause| pause < Duration::from_micros(limit_us);
        run(&mut control, 1000, depth(80));
        let pauses: Vec<_> = (0..100)
            .map(|_| {
                let pause = control.pause();
                control.learn(pause, depth(80)(pause));
                pause
            })
            .collect();
        assert!(pauses.iter().all(|p| (20..=100).contains(&p.as_micros())), "{pauses:?}");
        // When it becomes another client, the pause goes away.
        run(&mut control, 10, |_| false);
        assert!(control.pause().is_zero());
    }

    #[test]
    fn what_the_peer_has_not_read_is_seen() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let (mut a, mut b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!has_unread(a.as_raw_fd()));
        a.write_all(b"reply").unwrap();
        assert!(has_unread(a.as_raw_fd()));
        b.read_exact(&mut [0; 5]).unwrap();
        assert!(!has_unread(a.as_raw_fd()));
    }
}
