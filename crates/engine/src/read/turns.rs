//! Turns of guests' reads at the store: a disk whose client reads with a deep queue delays the misses of
//! other disks by a few milliseconds only.
//!
//! The bytes that guests read from the store at a time are limited, and are shared fairly ([`crate::fair`]).
//! A reader waits for its turn before it enters the table of misses, so every reader for which others wait
//! there has its turn already, and nothing that a reader waits for during its turn needs one. Reads on which
//! commits depend need no turn.

use std::sync::Arc;

use crate::Result;
use crate::fair::{Budget, Flow, Gate};
use crate::limits::{READS_AT_ONCE, READS_RESERVE};

const BUDGET: Budget = Budget { all: READS_AT_ONCE + READS_RESERVE, open: READS_AT_ONCE };

/// The reads of guests at the store; see the module documentation.
#[derive(Default)]
pub(crate) struct ReadTurns(Gate);

impl ReadTurns {
    /// Waits until a disk may read `bytes`.
    ///
    /// # Errors
    /// None: the gate is never closed.
    pub async fn turn(&self, flow: &Arc<Flow>, bytes: u64) -> Result<ReadTurn<'_>> {
        if !self.0.take(flow, (bytes, bytes), |_, _| Some(BUDGET)) {
            let mut entered = Entered { turns: self, waiting: Some(self.0.enqueue(flow, (bytes, bytes))?) };
            self.drain();
            if let Some(waiting) = &mut entered.waiting {
                waiting.admitted().await?;
            }
            entered.waiting = None;
        }
        Ok(ReadTurn { turns: self, flow: flow.clone(), bytes })
    }

    fn drain(&self) {
        if self.0.has_waiting() {
            self.0.drain(|_, _| Some(BUDGET));
        }
    }
}

/// A read that waits. Dropping it leaves the queue.
struct Entered<'a> {
    turns: &'a ReadTurns,
    /// `None` once it was admitted.
    waiting: Option<crate::fair::Waiting<'a>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            drop(waiting);
            self.turns.drain();
        }
    }
}

/// A turn, which ends when this is dropped.
pub(crate) struct ReadTurn<'a> {
    turns: &'a ReadTurns,
    flow: Arc<Flow>,
    bytes: u64,
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        self.turns.0.add(&self.flow, -(self.bytes as i64));
        self.turns.drain();
    }
}
