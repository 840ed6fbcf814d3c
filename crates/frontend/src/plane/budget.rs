//! The time for which one connection may occupy its thread, so that no request of one connection delays other
//! connections by more than a fraction of a millisecond.
//!
//! **Rounds.** Between two polls of the sockets of a thread, every connection may use [`ROUND`] of the
//! thread's time, in its own loop and in the tasks of its requests together. The rest of its work waits for
//! the next round: a client with hundreds of long requests gets as much of a round as one with a single
//! request. A round ends when the thread sleeps; or, while work is left, by a waker that the runtime calls
//! after it has polled the sockets.
//!
//! **Turns.** The clock is read once for each poll, after the poll has run. So a single poll has to be short:
//! the loop of a connection serves requests worth [`TURN`] in one poll, and a long request is done in pieces
//! of some hundred microseconds, between which its task yields. The engine does the same (`limits.rs` there).

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Time that a connection may use in one round.
const ROUND: Duration = Duration::from_micros(250);
/// Maximum bytes that one poll of a connection moves.
pub(crate) const TURN: usize = 512 << 10;
/// Fixed cost of a request, expressed as bytes that could be moved in the same time: one to two microseconds.
const REQUEST_COST: usize = 4 << 10;
/// Additional cost of a request for which the server has to scan many items.
pub(crate) const COSTLY_REQUEST: usize = 64 << 10;

thread_local! {
    static ROUNDS: Rounds = const {
        Rounds { number: Cell::new(0), is_ending: Cell::new(false), waiting: RefCell::new(Vec::new()) }
    };
}

/// The state of the rounds of a thread.
struct Rounds {
    number: Cell<u64>,
    /// Whether the runtime is going to call [`NextRound`].
    is_ending: Cell<bool>,
    /// Wakers of connections and tasks that wait for the next round.
    waiting: RefCell<Vec<Waker>>,
}

/// Starts the next round of this thread; also called when the thread goes to sleep.
pub(crate) fn next_round() {
    let waiting = ROUNDS.with(|rounds| {
        rounds.number.set(rounds.number.get() + 1);
        rounds.waiting.take()
    });
    waiting.into_iter().for_each(Waker::wake);
}

/// A waker that starts the next round.
struct NextRound;

impl Wake for NextRound {
    fn wake(self: Arc<Self>) {
        ROUNDS.with(|rounds| rounds.is_ending.set(false));
        next_round();
    }
}

/// Wakes a task in the next round.
fn wait_for_next_round(cx: &Context<'_>) {
    let is_ending = ROUNDS.with(|rounds| {
        rounds.waiting.borrow_mut().push(cx.waker().clone());
        rounds.is_ending.replace(true)
    });
    if !is_ending {
        // The runtime wakes a task that yields only after it has polled the sockets.
        let waker = Waker::from(Arc::new(NextRound));
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
    }
}

/// The use that a connection has made of its thread.
#[derive(Default)]
pub(crate) struct Budget {
    round: Cell<u64>,
    used: Cell<Duration>,
    /// Bytes that were moved in this turn of the connection.
    moved: Cell<usize>,
}

impl Budget {
    /// Counts a request that moves `bytes`.
    pub fn count(&self, bytes: usize) {
        self.moved.set(self.moved.get().saturating_add(REQUEST_COST + bytes));
    }

    /// Whether the connection has used up its turn in this poll.
    pub fn turn_is_over(&self) -> bool {
        self.moved.get() >= TURN
    }

    /// Starts a poll of the connection's loop.
    pub fn begin_turn(&self) {
        self.moved.set(0);
    }

    /// Resumes the connection in the next round.
    pub fn yield_turn(&self, cx: &Context<'_>) {
        wait_for_next_round(cx);
    }

    /// Runs one poll. If the connection has used its share of this round, waits for the next round instead.
    pub fn poll<T>(&self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let round = ROUNDS.with(|rounds| rounds.number.get());
        if self.round.replace(round) != round {
            self.used.set(Duration::ZERO);
        }
        if self.used.get() >= ROUND {
            wait_for_next_round(cx);
            return Poll::Pending;
        }
        let begun = Instant::now();
        let polled = poll(cx);
        self.used.set(self.used.get() + begun.elapsed());
        polled
    }

    /// Runs a future within the budget.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| self.poll(cx, |cx| future.as_mut().poll(cx))).await
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    /// The current round of this thread.
    fn round() -> u64 {
        ROUNDS.with(|rounds| rounds.number.get())
    }

    #[test]
    fn a_turn_is_a_bounded_number_of_requests_and_bytes() {
        let budget = Budget::default();
        for (bytes, most) in [(0, 128), (4096, 64), (256 << 10, 2)] {
            budget.begin_turn();
            let served = (0..10_000).take_while(|_| {
                let continues = !budget.turn_is_over();
                budget.count(bytes);
                continues
            });
            assert_eq!(served.count(), most);
        }
    }

    #[test]
    fn the_tasks_of_a_connection_share_one_round() {
        run(async {
            let budget = Rc::new(Budget::default());
            // The round of each poll of the connection.
            let polls = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    let (budget, polls) = (budget.clone(), polls.clone());
                    spawn_local(async move {
                        let work = async {
                            for _ in 0..4 {
                                polls.borrow_mut().push(round());
                                std::thread::sleep(ROUND);
                                yield_now().await;
                            }
                        };
                        budget.run(work).await;
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let polls = polls.take();
            assert_eq!(polls.len(), 200);
            assert!(polls.windows(2).all(|pair| pair[0] < pair[1]), "two polls in one round: {polls:?}");
        });
    }

    #[test]
    fn a_busy_connection_leaves_time_of_each_round_to_others() {
        run(async {
            let (budget, other) = (Rc::new(Budget::default()), Rc::new(Budget::default()));
            let busy = spawn_local(async move {
                let work = async {
                    for _ in 0..20 {
                        std::thread::sleep(ROUND);
                        // A task that wakes itself is limited too.
                        let mut polled = false;
                        poll_fn(|cx| {
                            cx.waker().wake_by_ref();
                            if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
                        })
                        .await;
                    }
                };
                budget.run(work).await;
                round()
            });
            let first = round();
            let mut rounds = vec![first];
            while !busy.is_finished() {
                other.run(yield_now()).await;
                rounds.push(round());
            }
            assert!(busy.await.unwrap() - first >= 19, "the busy connection used several shares of a round");
            assert!(
                rounds.windows(2).all(|pair| pair[1] - pair[0] <= 1),
                "a round in which the other connection did not run: {rounds:?}"
            );
        });
    }
}
