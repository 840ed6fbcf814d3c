//! When a data-plane thread sleeps: immediately, or after a pause in which several requests arrive.
//!
//! A client with many requests in flight sends the next one for each reply that it receives. A server that is
//! faster than the client is then woken for every single request: a wake-up, a receive, a send and the
//! client's wake-up for each, which costs several times as much as the request. Network cards avoid the same
//! problem with interrupt moderation, and so does this module: after it has sent replies, the thread sleeps
//! for a short time that only the clock ends, and then serves all requests that have arrived.
//!
//! The pause costs nothing as long as the client is busy with replies that it has received. This is checked
//! at the end of the pause: replies that the client has not read yet are still in the socket (`SIOCOUTQ`). So
//! the pause grows while every client that was served has unread replies, and shrinks as soon as one has
//! none; a client that waits for each reply before its next request never has any, and is not paused for,
//! except for a short probe at long intervals. Only UNIX sockets report unread replies; clients of other
//! sockets are not paused for.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::commit_here;
use parking_lot::Mutex;

use super::spin::{ClientNumber, Spin};

/// Minimum and maximum pause of a thread.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(120);
/// Number of sleeps without a pause before the next probe: initially, and at most.
const FIRST_SKIP: u32 = 16;
const LONGEST_SKIP: u32 = 1024;
/// Number of sleeps without a pause from which on pauses count as useless: several probes in succession have
/// failed.
const USELESS_SKIP: u32 = 4 * FIRST_SKIP;
/// Maximum number of clients served since the last sleep that are checked. If there are more, requests
/// coalesce without a pause.
const MAX_CLIENTS: usize = 4;

/// The pauses of one thread.
#[derive(Default)]
pub(crate) struct Pace {
    state: Mutex<State>,
    /// Number of requests that were received and that [`Spin`] has not counted. Only the thread of this pace
    /// uses it.
    requests: AtomicU32,
    /// Number of clients that the thread serves or was given.
    clients: Arc<AtomicUsize>,
    /// Whether the thread may make commits ([`commit_here`]).
    may_commit: bool,
}

#[derive(Default)]
struct State {
    /// Sockets to which replies were sent since the last sleep. They are open: a session removes its socket
    /// before closing it.
    served: [RawFd; MAX_CLIENTS],
    count: usize,
    /// A client was served whose socket does not report unread replies, or there were too many clients.
    has_unknown: bool,
    control: Control,
    spin: Spin,
}

/// Computes the length of the pause; separate from sockets and clocks, so that it can be tested.
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
    /// The length of the next pause.
    fn pause(&mut self) -> Duration {
        if self.skip > 0 {
            self.skip -= 1;
            return Duration::ZERO;
        }
        self.pause.max(SHORTEST)
    }

    /// Whether all recent pauses were useless: each client waits for its reply before its next request.
    fn is_useless(&self) -> bool {
        self.next_skip >= USELESS_SKIP
    }

    /// Adjusts the pause to the result of the last pause: whether every client was still busy with its
    /// replies.
    fn adjust(&mut self, paused: Duration, all_busy: bool) {
        if all_busy {
            // Small steps, because the client waits while a pause is too long.
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
    /// Makes the pace of a thread. `clients` counts the clients that the thread serves or was given. The
    /// thread makes commits only if `may_commit`.
    pub fn new(clients: Arc<AtomicUsize>, may_commit: bool) -> Pace {
        Pace { clients, may_commit, ..Pace::default() }
    }

    /// Records that the thread serves a client.
    pub fn entered(&self) {
        self.clients.fetch_add(1, Relaxed);
    }

    /// Records that a client is not served any more.
    pub fn left(&self) {
        self.clients.fetch_sub(1, Relaxed);
    }

    /// Records that a request was received. The second request since the last sleep does not wait for a
    /// commit by this thread, which may not sleep for long.
    pub fn requested(&self) {
        let requests = self.requests.load(Relaxed).wrapping_add(1);
        self.requests.store(requests, Relaxed);
        if requests != 1 {
            commit_here(false);
        }
    }

    /// Records that replies were sent to a client; `socket` is its descriptor if it reports unread replies.
    pub fn served(&self, client: ClientNumber, socket: Option<RawFd>) {
        let mut state = self.state.lock();
        state.spin.served(client, socket);
        if !state.spin.has_one_client() {
            commit_here(false);
        }
        let count = state.count;
        match socket {
            Some(fd) if state.served[..count].contains(&fd) => {}
            Some(fd) if count < MAX_CLIENTS => {
                state.served[count] = fd;
                state.count += 1;
            }
            _ => state.has_unknown = true,
        }
    }

    /// Removes the socket of a client before it is closed.
    pub fn forget(&self, socket: RawFd) {
        let mut state = self.state.lock();
        state.spin.forget(socket);
        if let Some(at) = state.served[..state.count].iter().position(|fd| *fd == socket) {
            state.count -= 1;
            let last = state.count;
            state.served.swap(at, last);
        }
    }

    /// Pauses if that is useful, or waits for a request without sleeping. Called when the thread is idle and
    /// about to sleep. Also decides whether the thread makes the commits of the next request.
    pub fn before_sleep(&self) {
        // The lock is not contended: it exists because the runtime's hook must be `Sync`.
        let mut state = self.state.lock();
        let may_look = !state.pause() && state.control.is_useless();
        state.spin.before_sleep(may_look, &self.requests, has_unread);
        let is_alone = self.clients.load(Relaxed) == 1 && state.spin.has_one_client();
        commit_here(self.may_commit && is_alone && self.requests.load(Relaxed) == 0);
    }
}

impl State {
    /// Pauses if that is useful; returns whether it paused.
    fn pause(&mut self) -> bool {
        let (count, has_unknown) = (std::mem::take(&mut self.count), std::mem::take(&mut self.has_unknown));
        if count == 0 || has_unknown {
            return false;
        }
        let pause = self.control.pause();
        if pause.is_zero() {
            return false;
        }
        std::thread::sleep(pause);
        let all_busy = self.served[..count].iter().all(|fd| has_unread(*fd));
        self.control.adjust(pause, all_busy);
        true
    }
}

/// Whether the peer of a UNIX socket has not read all data that was sent to it.
fn has_unread(socket: RawFd) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int to the given address.
    let done = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut unread) };
    done == 0 && unread > 0
}

/// Reduces the timer slack of this thread: otherwise the kernel may end a short sleep 50 microseconds late.
pub(crate) fn precise_timers() {
    const SLACK_NS: libc::c_ulong = 1000;
    // SAFETY: PR_SET_TIMERSLACK takes a number and accesses no memory of the process.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

#[cfg(test)]
mod tests {
    use forebay_engine::may_commit_here;

    use super::*;

    /// Sleeps `sleeps` times; `busy(pause)` states whether a client is still busy after such a pause. Returns
    /// the time spent in pauses.
    fn run(control: &mut Control, sleeps: u32, busy: impl Fn(Duration) -> bool) -> Duration {
        let mut paused = Duration::ZERO;
        for _ in 0..sleeps {
            let pause = control.pause();
            if !pause.is_zero() {
                paused += pause;
                control.adjust(pause, busy(pause));
            }
        }
        paused
    }

    #[test]
    fn a_client_that_waits_for_each_reply_is_rarely_paused_for() {
        let paused = run(&mut Control::default(), 1_000_000, |_| false);
        assert!(paused < Duration::from_micros(1_000_000 / 40), "{paused:?} in a million sleeps");
    }

    #[test]
    fn a_client_with_a_deep_queue_gets_a_pause_shorter_than_its_own_work() {
        let mut control = Control::default();
        let depth = |limit_us| move |pause| pause < Duration::from_micros(limit_us);
        run(&mut control, 1000, depth(80));
        let pauses: Vec<_> = (0..100)
            .map(|_| {
                let pause = control.pause();
                control.adjust(pause, depth(80)(pause));
                pause
            })
            .collect();
        assert!(pauses.iter().all(|p| (20..=100).contains(&p.as_micros())), "{pauses:?}");
        // The pause ends when the behaviour of the client changes.
        run(&mut control, 10, |_| false);
        assert!(control.pause().is_zero());
    }

    #[test]
    fn unread_bytes_of_the_peer_are_detected() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let (mut a, mut b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!has_unread(a.as_raw_fd()));
        a.write_all(b"reply").unwrap();
        assert!(has_unread(a.as_raw_fd()));
        b.read_exact(&mut [0; 5]).unwrap();
        assert!(!has_unread(a.as_raw_fd()));
    }

    /// Serves requests of clients without a socket, with a sleep after each request.
    fn serve(pace: &Pace, clients: &[ClientNumber], times: usize) {
        for client in clients.iter().cycle().take(times) {
            pace.requested();
            pace.served(*client, None);
            pace.before_sleep();
        }
    }

    #[test]
    fn a_thread_makes_commits_only_for_a_client_that_waits_for_each_reply() {
        let pace = Pace::new(Arc::new(AtomicUsize::new(1)), true);
        serve(&pace, &[1], 100);
        assert!(may_commit_here());
        pace.requested();
        assert!(may_commit_here());
        pace.requested();
        assert!(!may_commit_here(), "a second request before the thread sleeps");
        pace.before_sleep();
        assert!(!may_commit_here(), "it sleeps before it has answered them");
        pace.served(1, None);
        pace.before_sleep();
        assert!(!may_commit_here());

        serve(&pace, &[1], 100);
        assert!(may_commit_here());
        pace.requested();
        pace.served(2, None);
        assert!(!may_commit_here(), "another client");
        pace.before_sleep();
        serve(&pace, &[1, 2], 200);
        assert!(!may_commit_here(), "two clients in turn");
        pace.entered();
        serve(&pace, &[1], 100);
        assert!(!may_commit_here(), "another client, which is idle");
        pace.left();
        serve(&pace, &[1], 1);
        assert!(may_commit_here());

        let accepts = Pace::new(Arc::new(AtomicUsize::new(1)), false);
        serve(&accepts, &[1], 100);
        assert!(!may_commit_here(), "the thread that accepts clients");
    }
}
