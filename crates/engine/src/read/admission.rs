//! Admission of guests' reads to the store: a disk whose client reads with a deep queue delays the misses of
//! other disks by a few milliseconds only.
//!
//! The bytes that guests read from the store at a time are limited, and are shared fairly ([`crate::fair`]).
//! A reader waits for its permit before it enters the table of misses. So every reader for which other
//! readers wait in this table has its permit already, and a reader with a permit never waits for something
//! that needs a second permit. Reads on which commits depend need no permit. While other disks flush, the
//! limit is lower ([`crate::pacing`]).
//!
//! Reading ahead has separate permits, which are shared fairly as well. It never waits for a permit: while
//! readers wait, or while its share is used up, nothing is read ahead. While clients of other disks read or
//! flush, only little is read ahead.

use std::sync::Arc;

use crate::Result;
use crate::context::Context;
use crate::disk::Disk;
use crate::fair::{Budget, Flow, Gate};
use crate::limits::{AHEAD_AT_ONCE, AHEAD_BESIDE_OTHERS, READS_AT_ONCE, READS_RESERVE};
use crate::pacing::Pacing;

/// The reads of guests at the store; see the module documentation.
pub(crate) struct ReadAdmission {
    cx: Arc<Context>,
    requested: Gate,
    ahead: Gate,
    pacing: Arc<Pacing>,
}

impl ReadAdmission {
    pub fn new(cx: Arc<Context>, pacing: Arc<Pacing>) -> ReadAdmission {
        ReadAdmission { cx, requested: Gate::default(), ahead: Gate::default(), pacing }
    }

    fn budget(&self, flow: &Flow) -> Budget {
        // Any disk may read something. Many disks with few reads each, as in a boot storm, therefore still
        // use the full rate of a disk array.
        let bound = self.bound_for(flow);
        Budget { all: READS_AT_ONCE + READS_RESERVE, open: bound.unwrap_or(READS_AT_ONCE) }
    }

    /// Whether a read waits for a permit.
    pub fn has_waiting(&self) -> bool {
        self.requested.has_waiting()
    }

    /// Maximum bytes of one permit, so that other readers are admitted in between.
    pub fn max_bytes(&self, flow: &Flow) -> u64 {
        self.bound_for(flow).map_or(u64::MAX, |bytes| bytes / 2)
    }

    fn bound_for(&self, flow: &Flow) -> Option<u64> {
        self.pacing.read_bound(flow.id(), self.cx.host.now())
    }

    /// Waits until a disk may read `bytes`.
    ///
    /// # Errors
    /// None: the gate is never closed.
    pub async fn admit(&self, flow: &Arc<Flow>, bytes: u64) -> Result<ReadPermit<'_>> {
        if !self.requested.take(flow, (bytes, bytes), |flow, _| Some(self.budget(flow))) {
            let waiting = self.requested.enqueue(flow, (bytes, bytes))?;
            let mut entered = Entered { admission: self, waiting: Some(waiting) };
            self.drain();
            if let Some(waiting) = &mut entered.waiting {
                waiting.admitted().await?;
            }
            entered.waiting = None;
        }
        Ok(ReadPermit { admission: self, flow: flow.clone(), bytes })
    }

    /// A permit to read `bytes` of a disk ahead, if that is possible now.
    pub fn try_ahead(self: &Arc<ReadAdmission>, disk: &Disk, bytes: u64) -> Option<AheadPermit> {
        if self.requested.has_waiting() {
            return None;
        }
        let others_read = self.requested.used() > disk.reads.used();
        let most = if others_read { AHEAD_BESIDE_OTHERS } else { AHEAD_AT_ONCE };
        let most = self.bound_for(&disk.reads).map_or(most, |bound| most.min(bound / 2));
        if bytes > most {
            return None;
        }
        let flow = disk.reads_ahead.clone();
        let budget = Budget { all: most, open: most };
        let taken = self.ahead.take(&flow, (bytes, bytes), |_, _| Some(budget));
        taken.then(|| AheadPermit { admission: self.clone(), flow, bytes })
    }

    fn drain(&self) {
        if self.requested.has_waiting() {
            self.requested.drain(|flow, _| Some(self.budget(flow)));
        }
    }
}

/// A read that waits in the queue. Dropping this guard removes the read from the queue.
struct Entered<'a> {
    admission: &'a ReadAdmission,
    /// The place in the queue; `None` once the read was admitted.
    waiting: Option<crate::fair::Waiting<'a>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            drop(waiting);
            self.admission.drain();
        }
    }
}

/// A permit to read ahead. Dropping it gives the bytes back.
pub(crate) struct AheadPermit {
    admission: Arc<ReadAdmission>,
    flow: Arc<Flow>,
    bytes: u64,
}

impl Drop for AheadPermit {
    fn drop(&mut self) {
        self.admission.ahead.add(&self.flow, -(self.bytes as i64));
    }
}

/// A permit to read from the store. Dropping it gives the bytes back.
pub(crate) struct ReadPermit<'a> {
    admission: &'a ReadAdmission,
    flow: Arc<Flow>,
    bytes: u64,
}

impl Drop for ReadPermit<'_> {
    fn drop(&mut self) {
        self.admission.requested.add(&self.flow, -(self.bytes as i64));
        self.admission.drain();
    }
}
