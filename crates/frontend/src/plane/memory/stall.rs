//! Detection of clients that hold memory and make no progress.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::MemoryAccount;

/// A client makes progress if it moves this number of bytes within [`MemoryLimits::stall`], or the
/// [`PROGRESS_PART`]th part of the memory that it holds if that is more.
const PROGRESS: usize = 64 << 10;
pub(super) const PROGRESS_PART: usize = 16;
/// Interval between checks for waiting connections once a client has stalled.
const STALL_CHECK: Duration = Duration::from_millis(500);

/// Checks that a client makes progress while the server waits for it. The server waits for the rest of a
/// message, or until the client receives its replies.
pub(crate) struct Stall {
    account: Rc<MemoryAccount>,
    /// Start of the current progress interval.
    since: Option<Instant>,
    /// Bytes that the client moved in the current progress interval.
    moved: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub fn new(account: &Rc<MemoryAccount>) -> Stall {
        Stall { account: account.clone(), since: None, moved: 0, timer: None }
    }

    /// Records bytes that the client sent or received.
    pub fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Returns whether the client must be cut; called at the end of a poll. If not, the task is woken when
    /// this may change.
    pub fn poll(&mut self, cx: &mut Context<'_>, awaits_client: bool) -> bool {
        let (held, base) = (self.account.held(), self.account.base.get());
        if !awaits_client || held <= base {
            self.since = None;
            // A running timer is kept: the next poll may need it again.
            self.timer.take_if(|timer| timer.is_elapsed());
            return false;
        }
        let now = Instant::now();
        if self.since.is_none() || self.moved >= PROGRESS.max(held / PROGRESS_PART) {
            (self.since, self.moved) = (Some(now), 0);
        }
        let mut due = self.since.unwrap_or(now) + self.account.memory.stall;
        if now >= due {
            if self.account.is_waited_for() {
                return true;
            }
            due = now + STALL_CHECK;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
        if timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(due.into());
            // The timer is pending, because the deadline is in the future; this call registers the waker.
            let _ = timer.as_mut().poll(cx);
        }
        false
    }
}
