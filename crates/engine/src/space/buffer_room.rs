//! The bytes in the write buffers, and the limits on them that do not depend on the disk.
//!
//! A commit is requested when the buffers become half full, so that writers need not wait for its end. The
//! size at which the buffers are full depends on the configuration, on the memory that tmpfs could provide,
//! and on the bound on dirty data while clients wait for flushes. The free room of the store limits
//! admission, but does not cause a commit, because a commit does not free room in the store.

use std::time::Duration;

use crate::sync::Mutex;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicI64, AtomicU64};

/// How long the memory is assumed to be unable to grow after it could not grow: one commit in that time may
/// begin too late.
const SHORT_OF_MEMORY: Duration = Duration::from_secs(60);

/// The dirty bytes and their limits; see the module documentation.
#[derive(Debug)]
pub(crate) struct BufferRoom {
    /// Configured limit on dirty bytes.
    configured: u64,
    /// Bytes in the write buffers.
    dirty: AtomicI64,
    /// Bytes of retained memory if it recently could not grow; otherwise `u64::MAX`.
    memory: AtomicU64,
    /// Host time until which the memory is assumed to be unable to grow.
    short_until: Mutex<Duration>,
    /// Bytes for which there is room in the store.
    storable: AtomicU64,
}

impl BufferRoom {
    pub fn new(configured: u64) -> BufferRoom {
        BufferRoom {
            configured,
            dirty: AtomicI64::new(0),
            memory: AtomicU64::new(u64::MAX),
            short_until: Mutex::default(),
            storable: AtomicU64::new(u64::MAX),
        }
    }

    /// Bytes in the write buffers.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(SeqCst).max(0) as u64
    }

    /// Records that the buffers grew by `bytes`, or shrank if negative. Returns whether this has made them
    /// half full, where `bound` is an additional limit on their bytes.
    pub fn add(&self, bytes: i64, bound: u64) -> bool {
        let before = self.dirty.fetch_add(bytes, SeqCst);
        let half = (self.configured.min(self.memory.load(Relaxed)).min(bound) / 2) as i64;
        before < half && before + bytes >= half
    }

    /// Records that the retained memory cannot grow beyond `bytes` at the moment.
    pub fn record_short_memory(&self, bytes: u64, now: Duration) {
        self.memory.store(bytes, Relaxed);
        *self.short_until.lock() = now + SHORT_OF_MEMORY;
    }

    /// Records that the store has room for `bytes` of the buffers.
    pub fn record_storable(&self, bytes: u64, now: Duration) {
        self.storable.store(bytes, Relaxed);
        if now >= *self.short_until.lock() {
            self.memory.store(u64::MAX, Relaxed);
        }
    }

    /// Bytes that may be admitted to the buffers.
    pub fn budget(&self) -> u64 {
        self.storable.load(Relaxed).min(self.configured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The writes, of eight writes of one MiB each, at which a commit is requested.
    fn half_of(room: &BufferRoom, bound: u64) -> Vec<u64> {
        let at = (1..=8).filter(|_| room.add(MIB as i64, bound)).collect();
        assert_eq!(room.dirty(), 8 * MIB);
        room.add(-(8 * MIB as i64), bound);
        at
    }

    #[test]
    fn a_commit_begins_when_half_of_the_least_limit_is_used() {
        let room = BufferRoom::new(8 * MIB);
        assert_eq!((half_of(&room, u64::MAX), half_of(&room, 6 * MIB)), (vec![4], vec![3]));
        room.record_short_memory(4 * MIB, Duration::ZERO);
        room.record_storable(MIB, SHORT_OF_MEMORY / 2);
        assert_eq!((half_of(&room, u64::MAX), room.budget()), (vec![2], MIB));
        room.record_storable(u64::MAX, SHORT_OF_MEMORY);
        assert_eq!((half_of(&room, u64::MAX), room.budget()), (vec![4], 8 * MIB));
    }
}
