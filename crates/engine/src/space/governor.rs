//! The owner of all numbers about room.
//!
//! Writers request admission, commits report free room and new garbage, and reclaims report the room that
//! they free. Each number is an atomic that is read without a lock, so a decision may use values of slightly
//! different moments. Each decision is made again at the next commit, at the latest after
//! [`SPACE_CHECK`](super::SPACE_CHECK).
//!
//! **Admission to the write buffers.** The buffers are shared fairly: [`crate::fair`] decides which request
//! is admitted, and states why no request starves and no wake-up is lost. A request that can complete without
//! waiting calls [`SpaceGovernor::may_buffer`] and writes at once; such requests exceed the budget by at most
//! one request for each thread. A request that can wait between admission and write holds an [`Admission`].
//! The bytes of the admission count as used, also while the request reads the blocks at its edges. Bytes are
//! moved from the admission to the buffers piece by piece: a piece is first subtracted from the admission and
//! then added to the buffers. So a byte is never counted twice, which could refuse a request that fits; for a
//! moment it is not counted at all.
//!
//! A request that waits is admitted when bytes are given back, or when the state of the store permits more.
//! Each of these events calls [`SpaceGovernor::admit_waiting`]: the end of a commit, which has written
//! buffers; the drop of a request that waits; an observation of the store; a refusal; the end of a reclaim.
//! Two further events call it if fewer bytes are used than at the last call: a write that replaces data in
//! the buffers, and the end of an admission. A waiting request needs a commit. The commit is requested when a
//! request begins to wait, when a commit ends and requests still wait, and when a buffer becomes dirty while
//! requests wait ([`crate::commit`]). When the pool stops, all waiting requests are refused.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::Capacity;
use tokio::sync::Notify;

use super::buffer_room::BufferRoom;
use super::garbage::Garbage;
use super::policy::{Level, Situation, min_reclaim_bytes};
use super::reclaims::{Began, Reclaims};
use super::reserve::Reserve;
use super::store_room::StoreRoom;
use crate::buffer::ZEROES_COST;
use crate::fair::{Budget, Flow, Gate, Waiting};
use crate::limits::{TURN_BYTES, zeroes_budget};
use crate::pacing::{Pacing, WritePace};
use crate::progress::CommitProgress;
use crate::sync::atomic::AtomicU64;
use crate::{Error, PoolConfig, Result};

/// Owns the numbers about room; see the module documentation.
pub(crate) struct SpaceGovernor {
    pub reserve: Reserve,
    reclaim_pause: Duration,
    progress: Arc<CommitProgress>,
    pacing: Arc<Pacing>,
    /// Admission to the write buffers; it counts dirty and admitted bytes.
    gate: Gate,
    pub buffers: BufferRoom,
    pace: WritePace,
    pub store: StoreRoom,
    pub garbage: Garbage,
    pub reclaims: Reclaims,
    /// Wakes the task that makes checkpoints and reclaims.
    pub wake: Notify,
}

impl SpaceGovernor {
    /// The governor of a pool whose segments are sealed at `segment_bytes`. `appended` is the log's counter.
    pub fn new(
        config: &PoolConfig,
        segment_bytes: u64,
        appended: Arc<AtomicU64>,
        progress: Arc<CommitProgress>,
        pacing: Arc<Pacing>,
    ) -> SpaceGovernor {
        let reserve = Reserve { segment_bytes, write_buffer: config.write_buffer };
        SpaceGovernor {
            reserve,
            reclaim_pause: config.reclaim_pause,
            progress,
            pacing,
            gate: Gate::default(),
            buffers: BufferRoom::new(config.write_buffer),
            pace: WritePace::default(),
            store: StoreRoom::new(reserve),
            garbage: Garbage::new(appended),
            reclaims: Reclaims::default(),
            wake: Notify::new(),
        }
    }
}

/// Room in the write buffers.
impl SpaceGovernor {
    /// Whether a write of `len` bytes (0: a zeroed range) may be buffered now. False if it has to wait: for a
    /// commit, or for the cleaner if the store is full of garbage.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no reclaim is expected to make room.
    pub fn may_buffer(&self, flow: &Flow, len: u64) -> Result<bool> {
        self.check_room(len)?;
        Ok(!self.is_divided(flow, len)
            && self.gate.may(flow, cost(len), |flow, cost| self.budget_for(flow, cost)))
    }

    /// Whether a write of `len` bytes is admitted in pieces ([`Pacing::write_piece`]), so that a flush of
    /// another disk does not wait for all of it.
    pub fn is_divided(&self, flow: &Flow, len: u64) -> bool {
        len > TURN_BYTES && self.pacing.buffer_bound(flow.id()) < u64::MAX
    }

    /// Works like [`SpaceGovernor::may_buffer`], and reserves the room; `None` if the request has to wait.
    pub fn admit(&self, flow: &Arc<Flow>, len: u64) -> Result<Option<Admission<'_>>> {
        self.check_room(len)?;
        let taken = self.gate.take(flow, (cost(len), len), |flow, cost| self.budget_for(flow, cost));
        Ok(taken.then(|| Admission::new(self, flow, len)))
    }

    /// Queues a request for room for `len` bytes, and admits it if it need not wait.
    ///
    /// # Errors
    /// As [`SpaceGovernor::may_buffer`]; [`Error::Closed`].
    pub fn enqueue(&self, flow: &Arc<Flow>, len: u64) -> Result<Queued<'_>> {
        self.check_room(len)?;
        let waiting = self.gate.enqueue(flow, (cost(len), len))?;
        let queued = Queued { governor: self, flow: flow.clone(), len, waiting: Some(waiting) };
        self.admit_waiting();
        Ok(queued)
    }

    /// Whether requests wait for room in the write buffers.
    pub fn has_waiting(&self) -> bool {
        self.gate.has_waiting()
    }

    /// Admits requests that wait, as far as they fit, and refuses those for which no room is expected.
    pub fn admit_waiting(&self) {
        if !self.has_waiting() {
            return;
        }
        self.gate.drain(|flow, cost| self.budget_for(flow, cost));
        if self.store.is_full() && !self.reclaim_may_help() {
            self.gate.refuse(|cost| (!self.fits_zeroes(cost)).then_some(Error::NoSpace));
        }
    }

    /// Admits requests that wait, if less room is used than when they were last examined.
    fn admit_returned(&self) {
        self.gate.drain_returned(|flow, cost| self.budget_for(flow, cost));
    }

    /// Refuses the requests that wait, and all later requests that would have to wait: the pool has stopped.
    pub fn refuse_waiting(&self) {
        self.gate.close();
    }

    /// The budget for a request of a flow; `None` if it must wait for a reclaim.
    fn budget_for(&self, flow: &Flow, cost: u64) -> Option<Budget> {
        if self.store.is_full() {
            // The reserve is for all flows alike, including flows above their share.
            let all = zeroes_budget(self.reserve.write_buffer);
            return self.fits_zeroes(cost).then_some(Budget { all, open: u64::MAX });
        }
        let all = self.buffers.budget();
        Some(Budget { all, open: all.min(self.pacing.buffer_bound(flow.id())) })
    }

    /// Whether a request is a zeroed range that fits into the buffers while the store is full: it needs
    /// almost no room and may free some, so a part of the budget is reserved for them.
    fn fits_zeroes(&self, cost: u64) -> bool {
        let used = self.gate.used();
        cost == ZEROES_COST && (used == 0 || used + cost <= zeroes_budget(self.reserve.write_buffer))
    }

    fn check_room(&self, len: u64) -> Result<()> {
        match self.store.is_full() && !self.fits_zeroes(cost(len)) && !self.reclaim_may_help() {
            true => Err(Error::NoSpace),
            false => Ok(()),
        }
    }

    /// Records that the buffers of a flow grew by `bytes`, or shrank if negative. Returns whether they have
    /// become half full, by the budget, the memory there is, or the bound next to flushes: a commit should
    /// begin now so that writers need not wait.
    pub fn buffered(&self, flow: &Flow, bytes: i64) -> bool {
        let is_half_full = self.buffers.add(bytes, self.pacing.buffer_bound(flow.id()));
        self.gate.add(flow, bytes);
        if bytes < 0 {
            self.admit_returned();
        }
        is_half_full
    }

    /// Records that a commit has written `bytes` of the buffers of a flow. After the last flow of its group,
    /// the caller calls [`SpaceGovernor::group_written`] with the bytes of the whole group.
    pub fn written(&self, flow: &Flow, bytes: u64) {
        self.buffers.add(-(bytes as i64), u64::MAX);
        self.gate.give_back_later(flow, bytes);
    }

    /// Admits requests that wait into the room of buffers that a commit has written. Waiting requests are
    /// examined once for all flows.
    pub fn group_written(&self, bytes: u64) {
        self.gate.give_back(bytes);
        self.admit_waiting();
    }

    /// Whether writes of guests are slowed down because room is short.
    pub fn is_pacing(&self) -> bool {
        self.pace.is_limited()
    }

    /// Delay of a write of `len` bytes, so that all guests together write at the limited rate.
    pub fn pacing_delay(&self, len: u64, now: Duration) -> Duration {
        self.pace.delay(len, now)
    }
}

/// Room in the store.
impl SpaceGovernor {
    /// Whether enough was written since the last observation of the capacity for it to be observed again.
    pub fn wants_capacity(&self, now: Duration) -> bool {
        self.store.wants_observation(self.garbage.appended(), now)
    }

    /// Records the capacity of the store. `idle` states that no write waits to be committed. Returns whether
    /// the store has become full, or has room again.
    pub fn observe(&self, capacity: Capacity, idle: bool, now: Duration) -> bool {
        let log = (self.garbage.appended(), self.garbage.reclaimable());
        let is_changed = self.store.observe(capacity, log, idle, now);
        let situation = self.situation();
        let bufferable = self.reserve.bufferable(capacity.total);
        self.buffers.record_storable(situation.buffer_budget(bufferable), now);
        self.pace.set(situation.write_rate(self.reclaims.per_second()));
        self.admit_waiting();
        is_changed
    }

    /// Records that the store refused data.
    pub fn refused(&self) {
        self.store.refused();
        self.admit_waiting();
    }
}

/// Garbage, and the reclaims that free it.
impl SpaceGovernor {
    /// Requests a reclaim for garbage that is not visible in the log: after a deletion, or for an image to be
    /// packed.
    pub fn reclaim_is_due(&self) {
        self.garbage.set_due();
        self.reclaims.allow_another();
        self.wake.notify_one();
    }

    /// Records a completed commit that discarded `bytes`.
    pub fn committed_discards(&self, bytes: u64) {
        if self.garbage.committed_discards(bytes, min_reclaim_bytes(self.reserve.segment_bytes)) {
            self.reclaims.allow_another();
        }
    }

    /// Returns the values on which all decisions are based.
    pub fn situation(&self) -> Situation {
        let (last, patience) = self.reclaims.outcome();
        let total = self.store.total();
        Situation {
            free: self.store.free(),
            total,
            reserve: self.reserve.bytes(total),
            full: self.store.is_full(),
            segment: self.reserve.segment_bytes,
            stored: self.garbage.stored(),
            appended: self.garbage.appended_since_mark(),
            written: self.garbage.written_since_mark(),
            discarded: self.garbage.discarded_since_mark(),
            due: self.garbage.is_due(),
            cleaning: self.reclaims.is_under_way(),
            last,
            patience,
        }
    }

    /// Whether a writer to a full store should wait for room.
    pub fn reclaim_may_help(&self) -> bool {
        self.situation().reclaim_may_help()
    }

    /// Time until a reclaim that is wanted may begin; `None` if no reclaim is wanted.
    pub fn reclaim_in(&self, now: Duration) -> Option<Duration> {
        let situation = self.situation();
        let (took, rested) = self.reclaims.took_and_rested(now);
        let pause = situation.pause(self.reclaim_pause, took);
        situation.wants_reclaim().then_some(pause.saturating_sub(rested))
    }

    /// Records that the cleaner wrote `bytes`.
    pub fn cleaner_wrote(&self, bytes: u64) {
        self.reclaims.moved.add(bytes);
        self.garbage.cleaner_wrote(bytes);
    }

    /// Records that a reclaim begins.
    pub fn begin_reclaim(&self, now: Duration) -> ReclaimGuard<'_> {
        ReclaimGuard { governor: self, began: self.reclaims.begin(self.garbage.own_bytes(), now) }
    }

    /// Updates the rate of freeing after a reclaim has freed room.
    pub fn sample_freed(&self, now: Duration) {
        self.reclaims.sample(self.garbage.own_bytes(), now);
    }
}

/// A reclaim that is under way. If it is dropped without [`ReclaimGuard::end`], the reclaim counts as
/// cancelled.
pub(crate) struct ReclaimGuard<'a> {
    governor: &'a SpaceGovernor,
    began: Began,
}

impl ReclaimGuard<'_> {
    /// Ends the reclaim; `exhausted` states that it cleaned everything worthwhile. Waiting writers check for
    /// room again.
    pub fn end(self, now: Duration, exhausted: bool) {
        let governor = self.governor;
        governor.sample_freed(now);
        let is_short = governor.situation().level() >= Level::Short;
        let enough = is_short.then(|| min_reclaim_bytes(governor.reserve.segment_bytes));
        governor.reclaims.end(&self.began, governor.garbage.own_bytes(), now, enough, exhausted);
    }
}

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.governor.reclaims.stopped();
        self.governor.admit_waiting();
        self.governor.progress.wake_waiters();
    }
}

/// A request in the queue for admission. Dropping this guard removes the request from the queue.
pub(crate) struct Queued<'a> {
    governor: &'a SpaceGovernor,
    flow: Arc<Flow>,
    len: u64,
    /// The place in the queue; `None` only while the guard is dropped, and once the request was admitted.
    waiting: Option<Waiting<'a>>,
}

impl<'a> Queued<'a> {
    /// Waits until the request is admitted.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no reclaim is expected to make room; [`Error::Closed`].
    pub async fn admitted(mut self) -> Result<Admission<'a>> {
        if let Some(waiting) = &mut self.waiting {
            waiting.admitted().await?;
        }
        self.waiting = None;
        Ok(Admission::new(self.governor, &self.flow, self.len))
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            drop(waiting);
            self.governor.admit_waiting();
        }
    }
}

/// Room in the write buffers that is reserved for one request. Dropping it returns the unused part.
pub(crate) struct Admission<'a> {
    governor: &'a SpaceGovernor,
    flow: Arc<Flow>,
    left: u64,
}

impl<'a> Admission<'a> {
    fn new(governor: &'a SpaceGovernor, flow: &Arc<Flow>, left: u64) -> Admission<'a> {
        Admission { governor, flow: flow.clone(), left }
    }

    /// Returns an admission without a reservation.
    pub fn unbounded(governor: &'a SpaceGovernor, flow: &Arc<Flow>) -> Admission<'a> {
        Admission::new(governor, flow, 0)
    }

    /// Releases `bytes` of the reservation. Called directly before they are written to the buffers and
    /// counted there.
    pub fn spend(&mut self, bytes: u64) {
        let spent = bytes.min(self.left);
        self.left -= spent;
        self.governor.gate.add(&self.flow, -(spent as i64));
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.spend(self.left);
        }
        // Waiting requests are also admitted for bytes that were spent and did not become dirty.
        self.governor.admit_returned();
    }
}

/// Cost of a request of `len` bytes (0: a zeroed range) in bytes.
fn cost(len: u64) -> u64 {
    if len == 0 { ZEROES_COST } else { len.max(ZEROES_COST + 1) }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
