//! Indications of garbage in the store: the bytes appended, overwritten and discarded since the last mark
//! began.
//!
//! The counters only grow. A mark records their values when its checkpoint is made, because the mark finds
//! the garbage of all earlier changes. A discard is counted when its commit is complete: until then, a mark
//! would still find the discarded data live.

use std::sync::Arc;

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// The indications of garbage; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Bytes appended to the log since the pool was created; shared with the log.
    appended: Arc<AtomicU64>,
    /// `appended` when the last mark began, plus the bytes that the cleaner has written since.
    marked_at: AtomicU64,
    /// Log bytes of guests' data, since the pool was opened.
    written: AtomicU64,
    /// Value of `written` when the last mark began.
    written_at_mark: AtomicU64,
    /// Bytes on the store, as of the last mark or recovery.
    stored: AtomicU64,
    /// Bytes on the store that the last mark found dead.
    reclaimable: AtomicU64,
    /// Bytes that guests discarded, in commits since the last mark began.
    discarded: AtomicU64,
    /// Bytes that guests discarded in requests that are not committed yet.
    uncommitted_discards: AtomicU64,
    /// A disk was deleted, or an image is due for packing.
    due: AtomicBool,
}

/// What indicated garbage before a mark.
pub(crate) struct BeforeMark {
    due: bool,
    written: u64,
    discarded: u64,
}

impl Garbage {
    pub fn new(appended: Arc<AtomicU64>) -> Garbage {
        Garbage { appended, ..Garbage::default() }
    }

    /// Bytes appended to the log since the pool was created.
    pub fn appended(&self) -> u64 {
        self.appended.load(Relaxed)
    }

    /// Bytes appended since the last mark began, without the bytes that the cleaner wrote.
    pub fn appended_since_mark(&self) -> u64 {
        self.appended().saturating_sub(self.marked_at.load(Relaxed))
    }

    /// Bytes that guests have written since the last mark began.
    pub fn written_since_mark(&self) -> u64 {
        self.written.load(Relaxed).saturating_sub(self.written_at_mark.load(Relaxed))
    }

    /// Bytes that guests have discarded since the last mark began.
    pub fn discarded_since_mark(&self) -> u64 {
        self.discarded.load(Relaxed)
    }

    /// Bytes that checkpoints and the cleaner have written.
    pub fn own_bytes(&self) -> u64 {
        self.appended().saturating_sub(self.written.load(Relaxed))
    }

    pub fn stored(&self) -> u64 {
        self.stored.load(Relaxed)
    }

    pub fn reclaimable(&self) -> u64 {
        self.reclaimable.load(Relaxed)
    }

    /// Whether there is garbage that is not visible in the log.
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Records that there is garbage that is not visible in the log.
    pub fn set_due(&self) {
        self.due.store(true, Relaxed);
    }

    /// Records the bytes in the store that recovery found.
    pub fn recovered(&self, stored: u64) {
        self.stored.store(stored, Relaxed);
    }

    /// Records `bytes` of guests' data in the log, whether or not their group became durable.
    pub fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Records that the cleaner wrote `bytes`, which do not indicate garbage.
    pub fn cleaner_wrote(&self, bytes: u64) {
        self.marked_at.fetch_add(bytes, Relaxed);
    }

    /// Records that guests discarded `bytes` in requests that are not committed yet.
    pub fn add_discards(&self, bytes: u64) {
        self.uncommitted_discards.fetch_add(bytes, Relaxed);
    }

    /// Takes the number of bytes that were discarded before a freeze.
    pub fn take_discards(&self) -> u64 {
        self.uncommitted_discards.swap(0, Relaxed)
    }

    /// Records a completed commit that discarded `bytes`. Returns whether the bytes discarded since the last
    /// mark have now reached `enough`.
    pub fn committed_discards(&self, bytes: u64, enough: u64) -> bool {
        let before = self.discarded.fetch_add(bytes, Relaxed);
        before < enough && before + bytes >= enough
    }

    /// Reads the indications before the checkpoint of a mark is made: the checkpoint may not contain later
    /// changes.
    pub fn before_mark(&self) -> BeforeMark {
        BeforeMark {
            due: self.due.swap(false, Relaxed),
            written: self.written.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
        }
    }

    /// Records that a mark begins, whose checkpoint covers all changes up to `before`.
    pub fn mark_begins(&self, before: &BeforeMark) {
        self.marked_at.store(self.appended(), Relaxed);
        self.written_at_mark.store(before.written, Relaxed);
        self.discarded.fetch_sub(before.discarded, Relaxed);
    }

    /// Records that the checkpoint failed, so no mark begins.
    pub fn mark_failed(&self, before: &BeforeMark) {
        self.due.fetch_or(before.due, Relaxed);
    }

    /// Records the result of a mark: the store holds `stored` bytes, of which `reclaimable` are dead.
    pub fn marked(&self, stored: u64, reclaimable: u64) {
        self.stored.store(stored, Relaxed);
        self.set_reclaimable(reclaimable);
    }

    /// Records that `reclaimable` dead bytes remain after a reclaim.
    pub fn set_reclaimable(&self, reclaimable: u64) {
        self.reclaimable.store(reclaimable, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn changes_before_a_mark_are_not_counted_after_it() {
        let garbage = Garbage::default();
        garbage.wrote(5 * MIB);
        garbage.committed_discards(3 * MIB, 0);
        let before = garbage.before_mark();
        garbage.wrote(MIB);
        garbage.committed_discards(2 * MIB, 0);
        garbage.mark_begins(&before);
        assert_eq!((garbage.written_since_mark(), garbage.discarded_since_mark()), (MIB, 2 * MIB));
    }

    #[test]
    fn a_mark_without_a_checkpoint_leaves_the_reclaim_due() {
        let garbage = Garbage::default();
        garbage.set_due();
        let before = garbage.before_mark();
        assert!(!garbage.is_due());
        garbage.mark_failed(&before);
        assert!(garbage.is_due());
    }
}
