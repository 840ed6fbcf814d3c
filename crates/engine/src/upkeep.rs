//! The work behind: when a checkpoint is made, and when reclaiming begins by itself.
//!
//! Reclaiming begins when there is an image to be packed, or garbage is likely: something was deleted, or much was
//! appended or discarded since the last mark, or room is short. It does not begin again at once: what a mark costs
//! is spread over at least four times its duration, unless room is short.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use forebay_format::{DiskId, SegmentId};
use hashbrown::HashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::RECLAIM_SHARE;
use crate::pool::Pool;

/// While the store is short of room, it is asked this often.
const SPACE_CHECK: Duration = Duration::from_secs(1);

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
    /// Bytes that guests discarded since the last mark began.
    pub discarded: AtomicU64,
    /// Room is so short that the cleaner has to see to it.
    pub room_short: AtomicBool,
    /// The last reclaim made room: the next may, too.
    fruitful: AtomicBool,
    /// A reclaim is under way.
    cleaning: AtomicBool,
    /// The last reclaim left a full store full. Nobody waits for another, unless there is new garbage.
    hopeless: AtomicBool,
    /// When reclaiming may begin by itself, in the time of the host.
    not_before: Mutex<Duration>,
    /// Segments that are not cleaned since something in them is damaged.
    pub left_alone: Mutex<HashSet<SegmentId>>,
    /// Disks whose maps the last mark could not read whole.
    pub damaged: Mutex<BTreeSet<DiskId>>,
    pub stopped: AtomicBool,
}

impl Upkeep {
    /// A reclaim begins.
    pub fn reclaim_begins(&self) {
        self.cleaning.store(true, Relaxed);
    }

    /// A mark begins, when so much was appended.
    pub fn mark_begins(&self, appended: u64) {
        self.reclaim_due.store(false, Relaxed);
        self.marked_at.store(appended, Relaxed);
        self.discarded.store(0, Relaxed);
    }

    /// What the cleaner wrote itself is no sign of garbage.
    pub fn cleaner_wrote(&self, bytes: u64) {
        self.marked_at.fetch_add(bytes, Relaxed);
    }

    /// The next reclaim is not to begin by itself before then.
    pub fn rest_until(&self, then: Duration) {
        *self.not_before.lock() = then;
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
        self.upkeep.hopeless.store(false, Relaxed);
        self.upkeep.wake();
    }

    /// Notes that a guest discarded so many bytes.
    pub(crate) fn note_discarded(&self, bytes: u64) {
        let before = self.upkeep.discarded.fetch_add(bytes, Relaxed);
        if before < self.little() && before + bytes >= self.little() {
            self.upkeep.hopeless.store(false, Relaxed);
        }
    }

    /// What is worth a reclaim where the store is full.
    fn little(&self) -> u64 {
        u64::from(self.config.segment_bytes) / 4
    }

    /// Whether it is worth waiting for room in a full store.
    pub(crate) fn room_may_come(&self) -> bool {
        let upkeep = &self.upkeep;
        !upkeep.hopeless.load(Relaxed) && (upkeep.cleaning.load(Relaxed) || self.reclaim_wanted())
    }

    /// A reclaim that began at `begin` has ended, and made so much room; none if it failed. Whoever waits for room
    /// looks again.
    pub(crate) fn reclaim_ended(&self, begin: Duration, gained: u64) {
        let fruitful = gained >= self.little();
        self.upkeep.fruitful.store(fruitful, Relaxed);
        self.upkeep.hopeless.store(!fruitful && self.commit.full.load(Relaxed), Relaxed);
        self.upkeep.cleaning.store(false, Relaxed);
        self.commit.progress.send_modify(|_| ());
        let now = self.host.now();
        let took = now.saturating_sub(begin);
        let short = self.upkeep.room_short.load(Relaxed);
        let pause = if short {
            self.config.reclaim_pause.min(SPACE_CHECK).max(took)
        } else {
            self.config.reclaim_pause.max(took * 4)
        };
        self.upkeep.rest_until(now + pause);
    }

    /// Whether garbage is likely.
    fn reclaim_wanted(&self) -> bool {
        let upkeep = &self.upkeep;
        let appended = self.appended.load(Relaxed).saturating_sub(upkeep.marked_at.load(Relaxed));
        let discarded = upkeep.discarded.load(Relaxed);
        let few = 4 * u64::from(self.config.segment_bytes);
        let much = (upkeep.stored.load(Relaxed) / RECLAIM_SHARE).max(few);
        let short = upkeep.room_short.load(Relaxed);
        upkeep.reclaim_due.load(Relaxed)
            || appended >= much
            || discarded >= much
            || (short && (appended >= few || discarded >= few || upkeep.fruitful.load(Relaxed)))
            // Nobody can append much any more, so that less has to be reason enough.
            || (self.commit.full.load(Relaxed) && appended + discarded >= self.little())
    }

    /// Whether there is something to do after a commit.
    pub(crate) fn upkeep_due(&self) -> bool {
        self.checkpoint_due() || self.reclaim_wanted()
    }

    pub(crate) fn checkpoint_due(&self) -> bool {
        let since = self.appended.load(Relaxed) - self.upkeep.checkpointed.load(Relaxed);
        since >= self.config.checkpoint_bytes
    }

    /// How long until a reclaim that is wanted may begin; `None` if none is.
    fn reclaim_in(&self) -> Option<Duration> {
        let pause = self.upkeep.not_before.lock().saturating_sub(self.host.now());
        // Where the store is full, guests wait.
        let pause =
            if self.room_may_come() && self.commit.full.load(Relaxed) { Duration::ZERO } else { pause };
        self.reclaim_wanted().then_some(pause)
    }

    /// The task that makes checkpoints and reclaims space.
    pub(crate) async fn upkeep_loop(self: Arc<Pool>) {
        self.upkeep.rest_until(self.host.now() + self.config.reclaim_pause);
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
