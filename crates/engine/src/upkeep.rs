//! The work behind: when a checkpoint is made, and when reclaiming begins by itself.
//!
//! Reclaiming begins when there is an image to be packed, or garbage is likely: something was deleted, or much was
//! appended or discarded since the last mark, or room is short. It does not begin again at once: what a mark costs
//! is spread over at least four times its duration, unless room is short. [`crate::governor`] decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{DiskId, SegmentId};
use hashbrown::HashSet;
use tokio::sync::Notify;

use crate::governor::{FreeingRate, Level, Outcome, PATIENCE, SPACE_CHECK, Situation, min_reclaim_bytes};
use crate::pool::Pool;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// Work behind: checkpoints and reclaiming.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// One checkpoint or reclaim at a time.
    pub lock: tokio::sync::Mutex<()>,
    pub wake: Notify,
    /// `Log::appended` at the last checkpoint.
    pub checkpointed: AtomicU64,
    /// Something was deleted, or an image is to be packed.
    pub reclaim_due: AtomicBool,
    /// `Log::appended` when the last mark began.
    marked_at: AtomicU64,
    /// The last batch that recovery found.
    pub opened_at: AtomicU64,
    /// Bytes on the store, as the last mark found, or recovery.
    pub stored: AtomicU64,
    /// Bytes that guests discarded, in commits since the last mark began.
    pub discarded: AtomicU64,
    /// The same, of what is not committed yet: a mark would find it live.
    pub discards: AtomicU64,
    /// Bytes that guests' data took in the log, of all time.
    pub written: AtomicU64,
    /// `written` when the last mark began.
    written_at_mark: AtomicU64,
    /// A reclaim is under way.
    cleaning: AtomicBool,
    /// The last reclaim.
    last: Mutex<Last>,
    /// How fast room is freed.
    rate: Mutex<FreeingRate>,
    /// Segments that are not cleaned since something in them is damaged.
    pub left_alone: Mutex<HashSet<SegmentId>>,
    /// Disks whose maps the last mark could not read whole.
    pub damaged: Mutex<BTreeSet<DiskId>>,
    pub stopped: AtomicBool,
}

/// What was known of garbage before a mark.
pub(crate) struct BeforeMark {
    due: bool,
    written: u64,
    discarded: u64,
}

/// The last reclaim.
struct Last {
    outcome: Outcome,
    patience: u32,
    /// When it ended, in the time of the host; when the pool was opened, before the first.
    ended: Duration,
    took: Duration,
}

impl Default for Last {
    fn default() -> Last {
        // Nothing is known of what is dead, so the first reclaim is worth waiting for.
        Last { outcome: Outcome::default(), patience: PATIENCE, ended: Duration::ZERO, took: Duration::ZERO }
    }
}

impl Upkeep {
    /// The checkpoint of a mark is about to be made: what happens from here on may be missing in it.
    pub fn before_mark(&self) -> BeforeMark {
        BeforeMark {
            due: self.reclaim_due.swap(false, Relaxed),
            written: self.written.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
        }
    }

    /// A mark begins, when so much was appended. Its checkpoint has all that was done `before`.
    pub fn mark_begins(&self, appended: u64, before: &BeforeMark) {
        self.marked_at.store(appended, Relaxed);
        self.written_at_mark.store(before.written, Relaxed);
        self.discarded.fetch_sub(before.discarded, Relaxed);
    }

    /// There is no checkpoint, and so no mark.
    pub fn no_mark(&self, before: &BeforeMark) {
        self.reclaim_due.fetch_or(before.due, Relaxed);
    }

    /// What the cleaner wrote itself is no sign of garbage.
    pub fn cleaner_wrote(&self, bytes: u64) {
        self.marked_at.fetch_add(bytes, Relaxed);
    }

    /// Something became garbage: another reclaim is worth waiting for.
    fn raise_hopes(&self) {
        let mut last = self.last.lock();
        last.patience = last.patience.max(1);
    }

    /// Has the upkeep look whether there is something to do.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

impl Pool {
    /// Notes work for the cleaner of which the log does not tell.
    pub(crate) fn reclaim_is_due(&self) {
        self.upkeep.reclaim_due.store(true, Relaxed);
        self.upkeep.raise_hopes();
        self.upkeep.wake();
    }

    /// Notes bytes that were discarded, in a commit that is done.
    pub(crate) fn note_discarded(&self, bytes: u64) {
        let before = self.upkeep.discarded.fetch_add(bytes, Relaxed);
        let enough = min_reclaim_bytes(self.segment_bytes);
        if before < enough && before + bytes >= enough {
            self.upkeep.raise_hopes();
        }
    }

    /// What decisions about room depend on, as of now.
    pub(crate) fn situation(&self) -> Situation {
        let (upkeep, commit) = (&self.upkeep, &self.commit);
        let (outcome, patience) = {
            let last = upkeep.last.lock();
            (last.outcome, last.patience)
        };
        let total = commit.total.load(Relaxed);
        Situation {
            free: commit.free.load(Relaxed),
            total,
            reserve: self.reserve(total),
            full: commit.full.load(Relaxed),
            segment: self.segment_bytes,
            stored: upkeep.stored.load(Relaxed),
            appended: self.appended.load(Relaxed).saturating_sub(upkeep.marked_at.load(Relaxed)),
            written: upkeep.written.load(Relaxed).saturating_sub(upkeep.written_at_mark.load(Relaxed)),
            discarded: upkeep.discarded.load(Relaxed),
            due: upkeep.reclaim_due.load(Relaxed),
            cleaning: upkeep.cleaning.load(Relaxed),
            last: outcome,
            patience,
        }
    }

    /// Whether it is worth waiting for room in a full store.
    pub(crate) fn reclaim_may_help(&self) -> bool {
        self.situation().reclaim_may_help()
    }

    /// Bytes that guests may write per second now; `None` is no bound.
    pub(crate) fn write_rate(&self) -> Option<u64> {
        self.situation().write_rate(self.upkeep.rate.lock().per_second())
    }

    /// Bytes that checkpoints and the cleaner wrote.
    fn own_bytes(&self) -> u64 {
        self.appended.load(Relaxed).saturating_sub(self.upkeep.written.load(Relaxed))
    }

    /// A reclaim begins; gives the bytes that were freed before, and those that the pool wrote itself.
    pub(crate) fn reclaim_begins(&self) -> (u64, u64) {
        let so_far = (self.counters.freed.get().bytes, self.own_bytes());
        self.upkeep.rate.lock().begin(self.host.now(), so_far.0, so_far.1);
        self.upkeep.cleaning.store(true, Relaxed);
        so_far
    }

    /// Room was freed.
    pub(crate) fn note_freed(&self) {
        let (now, freed) = (self.host.now(), self.counters.freed.get().bytes);
        self.upkeep.rate.lock().sample(now, freed, self.own_bytes());
    }

    /// A reclaim that began at `begin` has ended; `before` is what [`Pool::reclaim_begins`] gave. Writers that wait for
    /// room look again.
    pub(crate) fn reclaim_ended(&self, begin: Duration, before: (u64, u64), exhausted: bool) {
        self.note_freed();
        let (freed, own) = (self.counters.freed.get().bytes - before.0, self.own_bytes() - before.1);
        let outcome = Outcome { gained: freed.saturating_sub(own), exhausted };
        let short = self.situation().level() >= Level::Short;
        {
            let mut last = self.upkeep.last.lock();
            last.outcome = outcome;
            last.ended = self.host.now();
            last.took = last.ended.saturating_sub(begin);
            last.patience = if !short || outcome.gained >= min_reclaim_bytes(self.segment_bytes) {
                PATIENCE
            } else {
                last.patience.saturating_sub(1)
            };
        }
        self.upkeep.cleaning.store(false, Relaxed);
        self.commit.progress.send_modify(|_| ());
    }

    /// Whether there is something to do after a commit.
    pub(crate) fn upkeep_due(&self) -> bool {
        self.checkpoint_due() || self.situation().wants_reclaim()
    }

    pub(crate) fn checkpoint_due(&self) -> bool {
        let since = self.appended.load(Relaxed) - self.upkeep.checkpointed.load(Relaxed);
        since >= self.config.checkpoint_bytes
    }

    /// How long until a reclaim that is wanted may begin; `None` if none is.
    fn reclaim_in(&self) -> Option<Duration> {
        let situation = self.situation();
        let last = self.upkeep.last.lock();
        let pause = situation.pause(self.config.reclaim_pause, last.took);
        let rested = self.host.now().saturating_sub(last.ended);
        situation.wants_reclaim().then_some(pause.saturating_sub(rested))
    }

    /// The task that makes checkpoints and reclaims space.
    pub(crate) async fn upkeep_loop(self: Arc<Pool>) {
        self.upkeep.last.lock().ended = self.host.now();
        while !self.upkeep.stopped.load(Relaxed) {
            let full = self.commit.full.load(Relaxed).then_some(SPACE_CHECK);
            let wait = self.reclaim_in().into_iter().chain(full).min();
            let idle = !self.checkpoint_due() && wait.is_none_or(|wait| wait > Duration::ZERO);
            if idle {
                self.wait_for_work(wait).await;
            }
            if full.is_some() {
                let _ = self.check_space().await;
            }
            if self.check_running().is_err() {
                if !idle {
                    self.wait_for_work(None).await;
                }
                continue;
            }
            let done = if self.reclaim_in() == Some(Duration::ZERO) {
                self.reclaim_as(false, &|_| ()).await.map(drop)
            } else if self.checkpoint_due() {
                self.checkpoint().await
            } else {
                Ok(())
            };
            if let Err(e) = done {
                tracing::warn!("upkeep: {e}");
                // What keeps it from being done now is not over at once.
                self.wait_for_work(Some(SPACE_CHECK)).await;
            }
        }
    }

    async fn wait_for_work(&self, most: Option<Duration>) {
        match most {
            None => self.upkeep.wake.notified().await,
            Some(most) => {
                let mut pause = self.host.sleep(most);
                tokio::select! {
                    biased;
                    () = self.upkeep.wake.notified() => {}
                    () = &mut pause => {}
                }
            }
        }
    }
}
