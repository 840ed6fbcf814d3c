//! Waiting for a client's next request without sleeping: for a client that sends it within a few microseconds
//! after each reply.
//!
//! A thread that sleeps is woken by an interrupt, often on a core that has gone to sleep as well: on a
//! virtual machine this takes longer than a request. So a thread that has just sent replies to its only
//! client looks for the next request for a short time, [`LONGEST`] at most, before it sleeps.
//!
//! **Bounds.** It looks only while that succeeds almost always. Otherwise it sleeps immediately many times
//! before it tries again, twice as many after each further failure; so a slow client costs one part in some
//! hundred. It does not look after a sleep without replies: an idle thread sleeps. It offers its core to
//! other threads before each look ([`std::thread::yield_now`]); a look that takes long shows that there is no
//! idle core, and counts as a failure. So does a request that comes at once, or from a client that has not
//! read its replies: such a client has several requests in progress, and is served with less CPU if these
//! coalesce. A thread for which this is so ([`super::pace`]) does not look at all.
//!
//! **Other clients.** While it looks, the thread serves no other wake-up, and its core serves no other
//! thread. So a thread that serves several clients does not look. A thread does not look either while half of
//! the cores are occupied by threads that look ([`Looking`]). In both cases, several clients that wait for
//! each reply keep the threads awake in any case.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum time for which a thread looks before it sleeps.
const LONGEST: Duration = Duration::from_micros(40);
/// Minimum time from a reply to the next request of a client that waits for each reply: the client has to
/// wake up.
const LEAST_TURN: Duration = Duration::from_micros(4);
/// Duration from which on a look counts as interrupted: another thread waited for the core.
const LONG_LOOK: Duration = Duration::from_micros(4);
/// Number of successive single requests of one client after which the client counts as the only client, and
/// as a client that waits for each reply.
const ALONE: u32 = 64;
/// Number of successful looks that make up for a failed look: fewer are not worth it.
const FAILURE: u32 = 8;
/// Maximum number of successes that are counted.
const MOST_CREDIT: u32 = 4 * FAILURE;
/// Number of sleeps without a look after failures that successes do not make up for: at first, and at most.
const FIRST_SKIP: u32 = 16;
const LONGEST_SKIP: u32 = 4096;

/// Number that distinguishes the clients of a thread.
pub(super) type ClientNumber = usize;

/// How a look for a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The look found a request of a client that waits for each reply.
    Found,
    /// The look found no request, or should not have been made.
    Failed,
}

/// Decides whether to look for a request; separate from sockets and clocks, so that it can be tested.
#[derive(Debug)]
struct Control {
    skip: u32,
    next_skip: u32,
    /// Number of successful looks that no failure has used up.
    credit: u32,
}

impl Default for Control {
    fn default() -> Control {
        Control { skip: FIRST_SKIP, next_skip: FIRST_SKIP, credit: 0 }
    }
}

impl Control {
    fn may_look(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        true
    }

    fn record(&mut self, outcome: Outcome) {
        match (outcome, self.credit.checked_sub(FAILURE)) {
            (Outcome::Found, _) => {
                self.credit = (self.credit + 1).min(MOST_CREDIT);
                if self.credit == MOST_CREDIT {
                    self.next_skip = FIRST_SKIP;
                }
            }
            (Outcome::Failed, Some(credit)) => self.credit = credit,
            (Outcome::Failed, None) => {
                self.credit = 0;
                self.skip = self.next_skip;
                self.next_skip = (self.next_skip * 2).min(LONGEST_SKIP);
            }
        }
    }
}

/// Number of threads of the process that look.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// A thread that looks. The thread counts until this guard is dropped.
struct Looking;

impl Looking {
    /// Begins a look; `None` if enough threads look.
    fn begin() -> Option<Looking> {
        static MOST: OnceLock<usize> = OnceLock::new();
        let most = *MOST.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from) / 2);
        let looking = Looking;
        // The count is raised before the comparison: of two threads that begin at once, both may give up.
        (LOOKING.fetch_add(1, Relaxed) < most).then_some(looking)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Relaxed);
    }
}

/// How one thread looks for requests before it sleeps.
#[derive(Default)]
pub(super) struct Spin {
    control: Control,
    /// The client that was served last.
    client: Option<ClientNumber>,
    /// Socket of the client, if it reports unread replies. It is open: a session removes its socket before
    /// closing it.
    socket: Option<RawFd>,
    /// Number of successive sleeps before each of which this client, and no other client, was served a single
    /// request.
    turns: u32,
    /// Whether replies were sent since the last sleep.
    has_served: bool,
}

impl Spin {
    /// Records that replies were sent to a client; `None` if its socket does not report unread replies.
    pub fn served(&mut self, client: ClientNumber, socket: Option<RawFd>) {
        self.has_served = true;
        if self.client != Some(client) {
            (self.client, self.turns) = (Some(client), 0);
        }
        self.socket = socket;
    }

    /// Removes the socket of a client before it is closed.
    pub fn forget(&mut self, socket: RawFd) {
        self.socket = self.socket.filter(|fd| *fd != socket);
    }

    /// Whether only one client was served recently, and it waits for each reply before its next request.
    pub fn has_one_client(&self) -> bool {
        self.turns > ALONE
    }

    /// Looks for a request if that is useful. Called when the thread is about to sleep. `may_look` is false
    /// if the thread has paused already, or pauses are useful. `requests` counts the requests received.
    pub fn before_sleep(&mut self, may_look: bool, requests: &AtomicU32, has_unread: impl Fn(RawFd) -> bool) {
        if !std::mem::take(&mut self.has_served) {
            return;
        }
        self.turns = match requests.swap(0, Relaxed) {
            // The message is a further part of a request that takes several messages.
            0 => self.turns,
            1 => self.turns.saturating_add(1),
            _ => 0,
        };
        let Some(socket) = self.socket.filter(|_| may_look && self.has_one_client()) else { return };
        if self.control.may_look() {
            let looking = Looking::begin();
            self.control.record(looking.map_or(Outcome::Failed, |_looking| look(socket, has_unread)));
        }
    }
}

/// Looks for a request of this client until there is a request.
fn look(client: RawFd, has_unread: impl Fn(RawFd) -> bool) -> Outcome {
    let mut poll = libc::pollfd { fd: client, events: libc::POLLIN, revents: 0 };
    let begun = Instant::now();
    let mut last = begun;
    loop {
        std::thread::yield_now();
        // SAFETY: the pointer is to one entry, which the call reads and writes.
        let found = unsafe { libc::poll(&mut poll, 1, 0) };
        let now = Instant::now();
        let was_interrupted = now - last > LONG_LOOK;
        if found != 0 {
            let is_deep = now - begun < LEAST_TURN || has_unread(client);
            return if was_interrupted || is_deep { Outcome::Failed } else { Outcome::Found };
        }
        if was_interrupted || now - begun > LONGEST {
            return Outcome::Failed;
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Number of looks in a million sleeps, if all looks except each `every`th succeed.
    fn looks(every: u32) -> u32 {
        let mut control = Control::default();
        let mut looks = 0u32;
        for _ in 0..1_000_000 {
            if control.may_look() {
                looks += 1;
                let is_found = !looks.is_multiple_of(every);
                control.record(if is_found { Outcome::Found } else { Outcome::Failed });
            }
        }
        looks
    }

    #[test]
    fn a_client_for_which_looks_fail_is_rarely_looked_for() {
        assert!(looks(1) < 300, "{}", looks(1));
        assert!(looks(6) < 3000, "{}", looks(6));
        assert!(looks(10) > 999_000, "{}", looks(10));
        assert!(looks(u32::MAX) > 999_900);
    }

    #[test]
    fn a_thread_looks_only_for_an_only_client_that_waits_for_each_reply() {
        let requests = AtomicU32::new(0);
        let (client, other) = UnixStream::pair().unwrap();
        let (client, other) = (Some(client.as_raw_fd()), Some(other.as_raw_fd()));
        // Whether the thread looks after these numbers of requests, each of which was followed by a sleep.
        let looked = |spin: &mut Spin, sockets: [Option<RawFd>; 2], counts: [u32; 2]| {
            spin.control = Control { skip: 0, next_skip: 1, credit: 0 };
            for n in 0..2 * ALONE as usize {
                requests.store(counts[n % 2], Relaxed);
                let socket = sockets[n % 2];
                spin.served(socket.map_or(7, |fd| fd as ClientNumber), socket);
                spin.before_sleep(true, &requests, |_| false);
            }
            spin.control.skip > 0 || spin.control.next_skip > 1
        };
        let mut spin = Spin::default();
        assert!(looked(&mut spin, [client; 2], [1; 2]), "the client sends nothing");
        assert!(
            !looked(&mut Spin::default(), [client; 2], [1, 2]),
            "the client has several requests in progress"
        );
        assert!(!looked(&mut Spin::default(), [client, other], [1; 2]), "there are two clients");
        assert!(!looked(&mut Spin::default(), [None; 2], [1; 2]), "another kind of socket");
        client.iter().for_each(|fd| spin.forget(*fd));
        spin.control = Control { skip: 0, next_skip: 1, credit: 0 };
        spin.has_served = true;
        spin.before_sleep(true, &requests, |_| false);
        assert_eq!(spin.control.skip, 0, "the client has gone");
        spin.socket = client;
        spin.before_sleep(true, &requests, |_| false);
        assert_eq!(spin.control.skip, 0, "nothing was served since the last sleep");
    }

    #[test]
    fn one_client_that_waits_for_each_reply_is_recognised_on_any_socket() {
        let requests = AtomicU32::new(0);
        // Whether clients that are served in turn count as one client; each makes some requests before each
        // reply.
        let has_one = |clients: [ClientNumber; 2], counts: [u32; 2]| {
            let mut spin = Spin::default();
            for n in 0..4 * ALONE as usize {
                requests.store(counts[n % 2], Relaxed);
                spin.served(clients[n % 2], None);
                spin.before_sleep(false, &requests, |_| false);
            }
            spin.has_one_client()
        };
        assert!(has_one([1, 1], [1, 1]));
        assert!(has_one([1, 1], [1, 0]), "requests of several messages");
        assert!(!has_one([1, 1], [1, 2]), "several requests in progress");
        assert!(!has_one([1, 2], [1, 1]), "two clients");
    }

    #[test]
    fn a_request_of_a_client_with_unread_replies_counts_as_a_failure() {
        let (client, mut peer) = UnixStream::pair().unwrap();
        let fd = client.as_raw_fd();
        assert_eq!(look(fd, |_| false), Outcome::Failed, "there is no request");
        peer.write_all(b"request").unwrap();
        assert_eq!(look(fd, |_| true), Outcome::Failed);
    }

    #[test]
    fn at_most_half_of_the_cores_look() {
        let looking: Vec<_> = std::iter::repeat_with(Looking::begin).take(10_000).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(looking.iter().flatten().count() <= cores / 2);
        drop(looking);
        assert!(LOOKING.load(Relaxed) <= 1, "another test may look");
    }
}
