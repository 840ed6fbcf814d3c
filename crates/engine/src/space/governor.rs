//! The owner of all numbers about room.
//!
//! Writers request admission, commits report free room and new garbage, and reclaims report the room that
//! they free. Each number is an atomic that is read without a lock: a decision may use values of slightly
//! different moments. It is made again at the next commit, at the latest [`SPACE_CHECK`](super::SPACE_CHECK)
//! later.
//!
//! **Admission to the write buffers.** The buffers are shared fairly: [`crate::fair`] decides which request
//! is admitted, and states why none starves and no wake-up is lost. A request that can complete without
//! waiting calls [`SpaceGovernor::may_buffer`] and writes at once; such requests exceed the budget by at most
//! one request for each thread. A request that can wait between admission and write holds an [`Admission`].
//! Its bytes count as used, also while it reads the blocks at its edges. Bytes move from the admission to the
//! buffers piece by piece, first out of the admission and then into the buffers: a byte on its way is counted
//! once or not at all, never twice, which could refuse a request that fits.
//!
//! A request that waits is admitted when bytes are given back, or when the state of the store permits more.
//! Each such event calls [`SpaceGovernor::admit_waiting`]: the end of a commit, which has written buffers; a
//! request that waits and is dropped; an observation of the store; a refusal; the end of a reclaim. So do a
//! write that replaces data in the buffers and the end of an admission, if less is used than when the
//! requests were looked at last. The commit that a waiting request needs is requested when it begins to wait,
//! when a commit ends and requests still wait, and when a buffer becomes dirty while requests wait
//! ([`crate::commit`]). When the pool stops, all are refused.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::Capacity;
use tokio::sync::Notify;

use super::policy::{Level, Outcome, PATIENCE, Situation, min_reclaim_bytes};
use crate::buffer::ZEROES_COST;
use crate::fair::{Budget, Flow, Gate, Waiting};
use crate::limits::{TURN_BYTES, zeroes_budget};
use crate::pacing::{FreeingRate, Pacing, WritePace};
use crate::progress::CommitProgress;
use crate::stats::Counter;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use crate::{Error, PoolConfig, Result, Room};

/// The memory is assumed to be unable to grow for this long after it could not: one commit in that time may
/// begin too late.
const SHORT_OF_MEMORY: Duration = Duration::from_secs(60);

/// A store is low on room if, in addition to the reserve, less than the total divided by this number is free.
const LOW_PART: u64 = 10;
/// It is no longer low when, in addition, that much divided by this number is free.
const SLACK_PART: u64 = 4;

/// The capacity is observed again when a part of the free room may have been used (one part in this number).
/// Since others may write to the store, also each time that this many bytes were written, or a part of the
/// reserve, ...
const OBSERVED_PART: u64 = 64;
const OBSERVED_MOST: u64 = 32 << 20;
const OBSERVED_RESERVE_PART: u64 = 4;
/// ... and by the first commit after this time.
const OBSERVED_EACH: Duration = Duration::from_millis(50);

/// Owns the numbers about room; see the module documentation.
pub(crate) struct SpaceGovernor {
    /// Limit on the bytes in the write buffers.
    write_buffer: u64,
    /// Size at which segments are sealed.
    segment_bytes: u64,
    reclaim_pause: Duration,
    progress: Arc<CommitProgress>,

    /// Bytes in the write buffers.
    dirty: AtomicI64,
    /// Bytes of retained memory if it could not grow of late; otherwise `u64::MAX`.
    memory: AtomicU64,
    /// Host time until which that is assumed.
    short_until: Mutex<Duration>,
    /// Admission to the write buffers; it counts dirty and admitted bytes.
    gate: Gate,
    pacing: Arc<Pacing>,

    /// The store accepts no data: according to its capacity, or because it refused data.
    full: AtomicBool,
    /// The store is low on room, and a warning was logged.
    low: AtomicBool,
    /// Capacity of the store when it was last observed.
    free: AtomicU64,
    total: AtomicU64,
    /// `appended` at that time.
    observed_at: AtomicU64,
    /// Host time at which other writers may have changed it; `None` before the first observation.
    next_observation: Mutex<Option<Duration>>,
    /// Bytes that the write buffers may hold now.
    buffer_budget: AtomicU64,
    pace: WritePace,
    /// Free bytes below which the store is full: it refused data with fewer, and has accepted none since. Its
    /// capacity does not reflect quotas and other writers. 0 if it did not refuse.
    refused_at: AtomicU64,

    /// Bytes appended to the log since the pool was created; shared with the log.
    appended: Arc<AtomicU64>,
    /// `appended` when the last mark began, plus the bytes that the cleaner has written since.
    marked_at: AtomicU64,
    /// Log bytes of guests' data, since the pool was opened.
    written: AtomicU64,
    /// `written` when the last mark began.
    written_at_mark: AtomicU64,
    /// Bytes on the store, as of the last mark or recovery.
    stored: AtomicU64,
    /// Bytes on the store that the last mark found dead.
    reclaimable: AtomicU64,
    /// Bytes that guests discarded, in commits since the last mark began.
    discarded: AtomicU64,
    /// Bytes that guests discarded in requests that are not committed yet: a mark would still find them live.
    uncommitted_discards: AtomicU64,
    /// A disk was deleted, or an image is due for packing.
    reclaim_due: AtomicBool,

    /// A reclaim is under way.
    cleaning: AtomicBool,
    last: Mutex<Last>,
    rate: Mutex<FreeingRate>,
    /// Bytes that reclaims freed.
    pub freed: Counter,
    /// Bytes that the cleaner wrote.
    pub moved: Counter,

    /// Wakes the task that makes checkpoints and reclaims.
    pub wake: Notify,
}

/// The last reclaim.
struct Last {
    outcome: Outcome,
    patience: u32,
    /// Host time at its end; before the first reclaim, the time at which the pool was opened.
    ended: Duration,
    took: Duration,
    /// The bytes that had been freed and written when the first of the reclaims began that have not gained
    /// enough since. A reclaim may free no more than what the one before it wrote: if each was judged alone,
    /// every second one would seem to gain, and writers would wait for ever.
    since: Option<(u64, u64)>,
}

impl Default for Last {
    fn default() -> Last {
        // The amount of garbage is not known yet, so writers wait for the first reclaim.
        Last {
            outcome: Outcome::default(),
            patience: PATIENCE,
            ended: Duration::ZERO,
            took: Duration::ZERO,
            since: None,
        }
    }
}

/// The indications of garbage before a mark.
pub(crate) struct BeforeMark {
    due: bool,
    written: u64,
    discarded: u64,
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
        SpaceGovernor {
            write_buffer: config.write_buffer,
            segment_bytes,
            reclaim_pause: config.reclaim_pause,
            progress,
            dirty: AtomicI64::new(0),
            memory: AtomicU64::new(u64::MAX),
            short_until: Mutex::default(),
            gate: Gate::default(),
            pacing,
            full: AtomicBool::new(false),
            low: AtomicBool::new(false),
            free: AtomicU64::new(0),
            total: AtomicU64::new(0),
            observed_at: AtomicU64::new(0),
            next_observation: Mutex::default(),
            buffer_budget: AtomicU64::new(u64::MAX),
            pace: WritePace::default(),
            refused_at: AtomicU64::new(0),
            appended,
            marked_at: AtomicU64::new(0),
            written: AtomicU64::new(0),
            written_at_mark: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            reclaimable: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            uncommitted_discards: AtomicU64::new(0),
            reclaim_due: AtomicBool::new(false),
            cleaning: AtomicBool::new(false),
            last: Mutex::default(),
            rate: Mutex::default(),
            freed: Counter::default(),
            moved: Counter::default(),
            wake: Notify::new(),
        }
    }

    /// Size at which segments are sealed.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
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

    /// As [`SpaceGovernor::may_buffer`], and reserves the room; `None` if the request has to wait.
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

    /// Whether requests wait for admission.
    pub fn has_waiting(&self) -> bool {
        self.gate.has_waiting()
    }

    /// Admits requests that wait, as far as they fit, and refuses those for which no room is expected.
    pub fn admit_waiting(&self) {
        if !self.has_waiting() {
            return;
        }
        self.gate.drain(|flow, cost| self.budget_for(flow, cost));
        if self.is_full() && !self.reclaim_may_help() {
            self.gate.refuse(|cost| (!self.fits_zeroes(cost)).then_some(Error::NoSpace));
        }
    }

    /// Admits requests that wait, if less is used than when they were looked at last.
    fn admit_returned(&self) {
        self.gate.drain_returned(|flow, cost| self.budget_for(flow, cost));
    }

    /// Refuses the requests that wait, and all that would have to wait: the pool has stopped.
    pub fn refuse_waiting(&self) {
        self.gate.close();
    }

    /// The budget for a request of a flow; `None` if it must wait for a reclaim.
    fn budget_for(&self, flow: &Flow, cost: u64) -> Option<Budget> {
        if self.is_full() {
            // The reserve is for all flows alike, those above their share included.
            let all = zeroes_budget(self.write_buffer);
            return self.fits_zeroes(cost).then_some(Budget { all, open: u64::MAX });
        }
        let all = self.buffer_budget.load(Relaxed).min(self.write_buffer);
        Some(Budget { all, open: all.min(self.pacing.buffer_bound(flow.id())) })
    }

    /// Whether a request is a zeroed range that fits into the buffers while the store is full: it needs
    /// almost no room and may free some, so a part of the budget is reserved for them.
    fn fits_zeroes(&self, cost: u64) -> bool {
        let used = self.gate.used();
        cost == ZEROES_COST && (used == 0 || used + cost <= zeroes_budget(self.write_buffer))
    }

    fn check_room(&self, len: u64) -> Result<()> {
        match self.is_full() && !self.fits_zeroes(cost(len)) && !self.reclaim_may_help() {
            true => Err(Error::NoSpace),
            false => Ok(()),
        }
    }

    /// Bytes in the write buffers.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(SeqCst).max(0) as u64
    }

    /// Records that the retained memory cannot grow beyond `bytes` at the moment.
    pub fn record_short_memory(&self, bytes: u64, now: Duration) {
        self.memory.store(bytes, Relaxed);
        *self.short_until.lock() = now + SHORT_OF_MEMORY;
    }

    /// Records that the buffers of a flow grew by `bytes`, or shrank if negative. Returns whether they have
    /// become half full, by the budget, the memory there is, or the bound next to flushes: a commit should
    /// begin now so that writers need not wait.
    pub fn buffered(&self, flow: &Flow, bytes: i64) -> bool {
        let before = self.dirty.fetch_add(bytes, SeqCst);
        self.gate.add(flow, bytes);
        if bytes < 0 {
            self.admit_returned();
        }
        let budget = self.write_buffer.min(self.memory.load(Relaxed));
        let half = (budget.min(self.pacing.buffer_bound(flow.id())) / 2) as i64;
        before < half && before + bytes >= half
    }

    /// Records that a commit has written `bytes` of the buffers of a flow. After the last flow of its group,
    /// the caller calls [`SpaceGovernor::group_written`] with the bytes of all.
    pub fn written(&self, flow: &Flow, bytes: u64) {
        self.dirty.fetch_sub(bytes as i64, SeqCst);
        self.gate.give_back_later(flow, bytes);
    }

    /// Admits requests that wait into the room of buffers that a commit has written. They are looked at once
    /// for all flows.
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
    /// Room that is kept free for deletions, checkpoints, cleaning and the data that is already in the
    /// buffers.
    pub fn reserve(&self, total: u64) -> u64 {
        (2 * self.segment_bytes + 2 * self.write_buffer).min(total / 4)
    }

    /// A store of `total` bytes is low on room if less than this is free.
    pub fn low_threshold(&self, total: u64) -> u64 {
        self.reserve(total) + total / LOW_PART
    }

    /// The part of the reserve that the store is to own, so that it is there whatever the store reports as
    /// free. The rest is at least a segment: a store that reports the true free space is full by the numbers
    /// before a segment finds no room.
    pub fn owned(&self, total: u64) -> u64 {
        self.reserve(total) / 2
    }

    /// Bytes that the write buffers may hold in a store of this size, at most: when the store refuses room,
    /// they are written into two thirds of the room that it owns. The rest is for deletions and their
    /// checkpoints.
    fn bufferable(&self, total: u64) -> u64 {
        self.write_buffer.min((self.owned(total) / 3 * 2).max(min_reclaim_bytes(self.segment_bytes)))
    }

    /// Whether enough was written since the capacity was observed to matter: a request costs as much
    /// as a small commit.
    pub fn wants_capacity(&self, now: Duration) -> bool {
        let written = self.appended.load(Relaxed) - self.observed_at.load(Relaxed);
        let reserve = self.reserve(self.total.load(Relaxed));
        let free = self.free.load(Relaxed).saturating_sub(reserve);
        // A new segment is preallocated as a whole.
        let is_old = self.next_observation.lock().is_none_or(|next| now >= next);
        self.is_full()
            || is_old
            || written >= OBSERVED_MOST.min(reserve / OBSERVED_RESERVE_PART)
            || (written + self.segment_bytes).saturating_mul(OBSERVED_PART) >= free
    }

    /// Records the capacity of the store, and logs changes of its state. `idle` states that no write waits to
    /// be committed. Returns whether the store has become full, or has room again.
    pub fn observe(&self, capacity: Capacity, idle: bool, now: Duration) -> bool {
        let Capacity { free, total, is_short } = capacity;
        let reserve = self.reserve(total);
        self.free.store(free, Relaxed);
        self.total.store(total, Relaxed);
        self.observed_at.store(self.appended.load(Relaxed), Relaxed);
        *self.next_observation.lock() = Some(now + OBSERVED_EACH);
        if now >= *self.short_until.lock() {
            self.memory.store(u64::MAX, Relaxed);
        }
        if idle {
            // No commit is retrying, so the next write may be tried.
            self.refused_at.store(0, Relaxed);
        }
        let full = is_short || free < reserve.max(self.refused_at.load(Relaxed));
        let was_low = self.low.load(Relaxed);
        // Hysteresis, so that a store at the threshold does not log a warning at every commit.
        let slack = if was_low { total / (LOW_PART * SLACK_PART) } else { 0 };
        // Garbage that a reclaim would free counts as room: a log in use always contains some.
        let room = free + self.reclaimable.load(Relaxed);
        let low = full || room < self.low_threshold(total) + slack;
        self.low.store(low, Relaxed);
        let was_full = self.full.swap(full, Relaxed);
        let situation = self.situation();
        self.buffer_budget.store(situation.buffer_budget(self.bufferable(total)), Relaxed);
        self.pace.set(situation.write_rate(self.rate.lock().per_second()));
        match (was_full, full) {
            (false, true) => {
                tracing::warn!(free, total, "the store is full: writes wait for a reclaim, or are refused")
            }
            (true, false) => tracing::warn!(free, total, "the store has room again: writes are accepted"),
            _ if low && !was_low => tracing::warn!(free, total, "the store is low on room"),
            _ if was_low && !low => tracing::info!(free, total, "the store is no longer low on room"),
            _ => {}
        }
        self.admit_waiting();
        was_full != full
    }

    /// Records that the store refused data.
    pub fn refused(&self) {
        self.refused_at.store(self.free.load(Relaxed) + 1, Relaxed);
        self.full.store(true, Relaxed);
        self.admit_waiting();
    }

    /// Records that the store accepted a group.
    pub fn accepted(&self) {
        self.refused_at.store(0, Relaxed);
    }

    /// Records `bytes` of guests' data in the log, whether or not their group became durable.
    pub fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// The state of the store when it was last observed.
    pub fn room(&self) -> Room {
        match (self.is_full(), self.low.load(Relaxed)) {
            (true, _) => Room::Full,
            (false, true) => Room::Low,
            (false, false) => Room::Ok,
        }
    }

    /// Free bytes above the reserve when the store was last observed, and the reserve.
    pub fn above_reserve(&self) -> (u64, u64) {
        let reserve = self.reserve(self.total.load(Relaxed));
        (self.free.load(Relaxed).saturating_sub(reserve), reserve)
    }
}

/// Garbage, and the reclaims that free it.
impl SpaceGovernor {
    /// Requests a reclaim for garbage that is not visible in the log: after a deletion, or for an image to be
    /// packed.
    pub fn reclaim_is_due(&self) {
        self.reclaim_due.store(true, Relaxed);
        self.allow_another_reclaim();
        self.wake.notify_one();
    }

    /// Records the bytes in the store that recovery found.
    pub fn recovered(&self, stored: u64) {
        self.stored.store(stored, Relaxed);
    }

    /// Records that guests discarded `bytes`, not committed yet.
    pub fn add_discards(&self, bytes: u64) {
        self.uncommitted_discards.fetch_add(bytes, Relaxed);
    }

    /// Takes the bytes that were discarded before a freeze.
    pub fn take_discards(&self) -> u64 {
        self.uncommitted_discards.swap(0, Relaxed)
    }

    /// Records a completed commit that discarded `bytes`.
    pub fn committed_discards(&self, bytes: u64) {
        let before = self.discarded.fetch_add(bytes, Relaxed);
        let enough = min_reclaim_bytes(self.segment_bytes);
        if before < enough && before + bytes >= enough {
            self.allow_another_reclaim();
        }
    }

    /// Lets writers wait for another reclaim, since there is new garbage.
    fn allow_another_reclaim(&self) {
        let mut last = self.last.lock();
        last.patience = last.patience.max(1);
        last.since = None;
    }

    /// The current inputs of all decisions.
    pub fn situation(&self) -> Situation {
        let (outcome, patience) = {
            let last = self.last.lock();
            (last.outcome, last.patience)
        };
        let total = self.total.load(Relaxed);
        Situation {
            free: self.free.load(Relaxed),
            total,
            reserve: self.reserve(total),
            full: self.is_full(),
            segment: self.segment_bytes,
            stored: self.stored.load(Relaxed),
            appended: self.appended.load(Relaxed).saturating_sub(self.marked_at.load(Relaxed)),
            written: self.written.load(Relaxed).saturating_sub(self.written_at_mark.load(Relaxed)),
            discarded: self.discarded.load(Relaxed),
            due: self.reclaim_due.load(Relaxed),
            cleaning: self.cleaning.load(Relaxed),
            last: outcome,
            patience,
        }
    }

    /// Whether a writer to a full store should wait for room.
    pub fn reclaim_may_help(&self) -> bool {
        self.situation().reclaim_may_help()
    }

    /// Time until a reclaim that is wanted may begin; `None` if none is wanted.
    pub fn reclaim_in(&self, now: Duration) -> Option<Duration> {
        let situation = self.situation();
        let last = self.last.lock();
        let pause = situation.pause(self.reclaim_pause, last.took);
        let rested = now.saturating_sub(last.ended);
        situation.wants_reclaim().then_some(pause.saturating_sub(rested))
    }

    /// Records that the pool was opened at `now`: the pause before the first reclaim begins.
    pub fn opened(&self, now: Duration) {
        self.last.lock().ended = now;
    }

    /// Called before the checkpoint of a mark is made: it may not contain later changes.
    pub fn before_mark(&self) -> BeforeMark {
        BeforeMark {
            due: self.reclaim_due.swap(false, Relaxed),
            written: self.written.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
        }
    }

    /// Records that a mark begins, whose checkpoint covers all changes up to `before`.
    pub fn mark_begins(&self, before: &BeforeMark) {
        self.marked_at.store(self.appended.load(Relaxed), Relaxed);
        self.written_at_mark.store(before.written, Relaxed);
        self.discarded.fetch_sub(before.discarded, Relaxed);
    }

    /// Records that the checkpoint failed, so there is no mark.
    pub fn mark_failed(&self, before: &BeforeMark) {
        self.reclaim_due.fetch_or(before.due, Relaxed);
    }

    /// Records the result of a mark: `stored` bytes in the store, of which `reclaimable` are dead.
    pub fn marked(&self, stored: u64, reclaimable: u64) {
        self.stored.store(stored, Relaxed);
        self.reclaimable.store(reclaimable, Relaxed);
    }

    /// Records that `reclaimable` dead bytes remain after a reclaim.
    pub fn set_reclaimable(&self, reclaimable: u64) {
        self.reclaimable.store(reclaimable, Relaxed);
    }

    /// Records that the cleaner wrote `bytes`, which do not indicate garbage.
    pub fn cleaner_wrote(&self, bytes: u64) {
        self.moved.add(bytes);
        self.marked_at.fetch_add(bytes, Relaxed);
    }

    /// Bytes that checkpoints and the cleaner wrote.
    fn own_bytes(&self) -> u64 {
        self.appended.load(Relaxed).saturating_sub(self.written.load(Relaxed))
    }

    /// Records that a reclaim begins.
    pub fn begin_reclaim(&self, now: Duration) -> ReclaimGuard<'_> {
        let (freed, own) = (self.freed.get().bytes, self.own_bytes());
        self.rate.lock().begin(now, freed, own);
        self.cleaning.store(true, Relaxed);
        self.last.lock().since.get_or_insert((freed, own));
        ReclaimGuard { governor: self, began: now, freed, own }
    }

    /// Updates the rate of freeing after a reclaim has freed room.
    pub fn sample_freed(&self, now: Duration) {
        self.rate.lock().sample(now, self.freed.get().bytes, self.own_bytes());
    }
}

/// A reclaim that is under way. If it is dropped without [`ReclaimGuard::end`], the reclaim counts as
/// cancelled.
pub(crate) struct ReclaimGuard<'a> {
    governor: &'a SpaceGovernor,
    began: Duration,
    freed: u64,
    own: u64,
}

impl ReclaimGuard<'_> {
    /// Ends the reclaim; `exhausted` states that it cleaned everything worthwhile. Waiting writers check for
    /// room again.
    pub fn end(self, now: Duration, exhausted: bool) {
        let governor = self.governor;
        governor.sample_freed(now);
        let (freed, own) = (governor.freed.get().bytes, governor.own_bytes());
        let short = governor.situation().level() >= Level::Short;
        let mut last = governor.last.lock();
        // There is none if garbage became known while this reclaim was under way.
        let since = last.since.unwrap_or((self.freed, self.own));
        let gained = freed.saturating_sub(since.0).saturating_sub(own.saturating_sub(since.1));
        last.outcome = Outcome { gained, exhausted };
        last.ended = now;
        last.took = now.saturating_sub(self.began);
        if !short || gained >= min_reclaim_bytes(governor.segment_bytes) {
            (last.patience, last.since) = (PATIENCE, None);
        } else {
            last.patience = last.patience.saturating_sub(1);
        }
    }
}

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.governor.cleaning.store(false, Relaxed);
        self.governor.admit_waiting();
        self.governor.progress.wake_waiters();
    }
}

/// A request in the queue for admission. Dropping it leaves the queue.
pub(crate) struct Queued<'a> {
    governor: &'a SpaceGovernor,
    flow: Arc<Flow>,
    len: u64,
    /// `None` only while it is dropped, and once it was admitted.
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

    /// An admission without a reservation.
    pub fn unbounded(governor: &'a SpaceGovernor, flow: &Arc<Flow>) -> Admission<'a> {
        Admission::new(governor, flow, 0)
    }

    /// Releases `bytes` of the reservation, directly before they are written to the buffers and counted
    /// there.
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
        // Also for bytes that were spent and did not become dirty.
        self.governor.admit_returned();
    }
}

/// What a request of `len` bytes (0: a zeroed range) costs.
fn cost(len: u64) -> u64 {
    if len == 0 { ZEROES_COST } else { len.max(ZEROES_COST + 1) }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
