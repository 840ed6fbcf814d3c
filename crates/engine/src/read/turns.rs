//! Turns of guests' reads at the store: a disk whose client reads with a deep queue delays the misses of
//! other disks by a few milliseconds only.
//!
//! The bytes that guests read from the store at a time are limited, and are shared fairly ([`crate::fair`]).
//! A reader waits for its turn before it enters the table of misses, so every reader for which others wait
//! there has its turn already, and nothing that a reader waits for during its turn needs one. Reads on which
//! commits depend need no turn.
//!
//! Reading ahead has separate turns, which are shared fairly as well. It never waits for one: while readers
//! wait, or its share is used up, nothing is read ahead; and only a little while clients of other disks read.

use std::sync::Arc;

use crate::Result;
use crate::disk::Disk;
use crate::fair::{Budget, Flow, Gate};
use crate::limits::{AHEAD_AT_ONCE, AHEAD_BESIDE_OTHERS, READS_AT_ONCE, READS_RESERVE};

const BUDGET: Budget = Budget { all: READS_AT_ONCE + READS_RESERVE, open: READS_AT_ONCE };

/// The reads of guests at the store; see the module documentation.
#[derive(Default)]
pub(crate) struct ReadTurns {
    requested: Gate,
    ahead: Gate,
}

impl ReadTurns {
    /// Waits until a disk may read `bytes`.
    ///
    /// # Errors
    /// None: the gate is never closed.
    pub async fn turn(&self, flow: &Arc<Flow>, bytes: u64) -> Result<ReadTurn<'_>> {
        if !self.requested.take(flow, (bytes, bytes), |_, _| Some(BUDGET)) {
            let waiting = self.requested.enqueue(flow, (bytes, bytes))?;
            let mut entered = Entered { turns: self, waiting: Some(waiting) };
            self.drain();
            if let Some(waiting) = &mut entered.waiting {
                waiting.admitted().await?;
            }
            entered.waiting = None;
        }
        Ok(ReadTurn { turns: self, flow: flow.clone(), bytes })
    }

    /// A turn in which `bytes` of a disk are read ahead, if that is possible now.
    pub fn try_ahead(self: &Arc<ReadTurns>, disk: &Disk, bytes: u64) -> Option<AheadTurn> {
        if self.requested.has_waiting() {
            return None;
        }
        let others_read = self.requested.used() > disk.reads.used();
        let most = if others_read { AHEAD_BESIDE_OTHERS } else { AHEAD_AT_ONCE };
        let flow = disk.reads_ahead.clone();
        let budget = Budget { all: most, open: most };
        let taken = self.ahead.take(&flow, (bytes, bytes), |_, _| Some(budget));
        taken.then(|| AheadTurn { turns: self.clone(), flow, bytes })
    }

    fn drain(&self) {
        if self.requested.has_waiting() {
            self.requested.drain(|_, _| Some(BUDGET));
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

/// A turn of reading ahead, which ends when this is dropped.
pub(crate) struct AheadTurn {
    turns: Arc<ReadTurns>,
    flow: Arc<Flow>,
    bytes: u64,
}

impl Drop for AheadTurn {
    fn drop(&mut self) {
        self.turns.ahead.add(&self.flow, -(self.bytes as i64));
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
        self.turns.requested.add(&self.flow, -(self.bytes as i64));
        self.turns.drain();
    }
}
