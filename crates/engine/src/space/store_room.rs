//! The free room of the store, as last observed, and whether the store accepts data.
//!
//! A query of the capacity costs as much as a small commit. It is therefore repeated only after
//! [`OBSERVED_EACH`], or when the data written since the last query could change a decision. The reported
//! capacity does not include quotas and other writers. So after the store has refused data, it counts as full
//! until it accepts a group, reports more room than at the refusal, or no write waits.

use std::time::Duration;

use forebay_store::Capacity;

use super::reserve::Reserve;
use crate::Room;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// The capacity is observed again when a part of the free room may have been used (one part in this number).
/// Since other programs may write to the store, it is also observed after this many written bytes, or after a
/// part of the reserve was written, ...
const OBSERVED_PART: u64 = 64;
const OBSERVED_MOST: u64 = 32 << 20;
const OBSERVED_RESERVE_PART: u64 = 4;
/// ... and is observed by the first commit after this time.
const OBSERVED_EACH: Duration = Duration::from_millis(50);

/// The free room of the store; see the module documentation.
#[derive(Debug)]
pub(crate) struct StoreRoom {
    reserve: Reserve,
    /// The store accepts no data: according to its capacity, or because it refused data.
    full: AtomicBool,
    /// The store is low on room, and a warning was logged.
    low: AtomicBool,
    /// Capacity of the store when it was last observed.
    free: AtomicU64,
    total: AtomicU64,
    /// Bytes that had been appended to the log when the capacity was last observed.
    observed_at: AtomicU64,
    /// Host time from which on other writers may have changed the free room; `None` before the first
    /// observation.
    next_observation: Mutex<Option<Duration>>,
    /// Free bytes below which the store is full: it refused data when this much was free, and has accepted
    /// none since. 0 if it did not refuse data.
    refused_at: AtomicU64,
}

impl StoreRoom {
    pub fn new(reserve: Reserve) -> StoreRoom {
        StoreRoom {
            reserve,
            full: AtomicBool::new(false),
            low: AtomicBool::new(false),
            free: AtomicU64::new(0),
            total: AtomicU64::new(0),
            observed_at: AtomicU64::new(0),
            next_observation: Mutex::default(),
            refused_at: AtomicU64::new(0),
        }
    }

    /// Whether the capacity should be observed again, after `appended` bytes in all.
    pub fn wants_observation(&self, appended: u64, now: Duration) -> bool {
        let written = appended - self.observed_at.load(Relaxed);
        let (free, reserve) = self.above_reserve();
        // A new segment is preallocated as a whole.
        let is_old = self.next_observation.lock().is_none_or(|next| now >= next);
        self.is_full()
            || is_old
            || written >= OBSERVED_MOST.min(reserve / OBSERVED_RESERVE_PART)
            || (written + self.reserve.segment_bytes).saturating_mul(OBSERVED_PART) >= free
    }

    /// Records the capacity of the store after `appended` bytes, and logs changes of its state. `idle` states
    /// that no write waits to be committed. `reclaimable` bytes would be freed by a reclaim. Returns whether
    /// the store has become full, or has room again.
    pub fn observe(
        &self,
        capacity: Capacity,
        (appended, reclaimable): (u64, u64),
        idle: bool,
        now: Duration,
    ) -> bool {
        let Capacity { free, total, is_short } = capacity;
        self.free.store(free, Relaxed);
        self.total.store(total, Relaxed);
        self.observed_at.store(appended, Relaxed);
        *self.next_observation.lock() = Some(now + OBSERVED_EACH);
        if idle {
            // No commit is retrying, so the next write may be tried.
            self.refused_at.store(0, Relaxed);
        }
        let full = is_short || free < self.reserve.bytes(total).max(self.refused_at.load(Relaxed));
        let was_low = self.low.load(Relaxed);
        let slack = if was_low { Reserve::low_slack(total) } else { 0 };
        // Garbage that a reclaim would free counts as room: a log in use always contains some.
        let low = full || free + reclaimable < self.reserve.low_threshold(total) + slack;
        self.low.store(low, Relaxed);
        let was_full = self.full.swap(full, Relaxed);
        let room = format_args!("{} MiB of {} MiB are free", free >> 20, total >> 20);
        match (was_full, full) {
            (false, true) => {
                tracing::warn!("the store is full, with {room}: writes wait for a reclaim, or are refused")
            }
            (true, false) => tracing::warn!("the store has room again, {room}: writes are accepted"),
            _ if low && !was_low => tracing::warn!("the store is low on room: {room}"),
            _ if was_low && !low => tracing::info!("the store is no longer low on room: {room}"),
            _ => {}
        }
        was_full != full
    }

    /// Records that the store refused data.
    pub fn refused(&self) {
        self.refused_at.store(self.free() + 1, Relaxed);
        self.full.store(true, Relaxed);
    }

    /// Records that the store accepted a group.
    pub fn accepted(&self) {
        self.refused_at.store(0, Relaxed);
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Free bytes when the store was last observed.
    pub fn free(&self) -> u64 {
        self.free.load(Relaxed)
    }

    /// Size of the store when it was last observed.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// State of the store when it was last observed.
    pub fn state(&self) -> Room {
        match (self.is_full(), self.low.load(Relaxed)) {
            (true, _) => Room::Full,
            (false, true) => Room::Low,
            (false, false) => Room::Ok,
        }
    }

    /// Free bytes above the reserve when the store was last observed, and the reserve.
    pub fn above_reserve(&self) -> (u64, u64) {
        let reserve = self.reserve.bytes(self.total());
        (self.free().saturating_sub(reserve), reserve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The store may have shrunk since it was observed; then the reserve must suffice for what was written.
    #[test]
    fn capacity_is_observed_before_the_reserve_is_used_up() {
        let room = StoreRoom::new(Reserve { segment_bytes: 4 * MIB, write_buffer: 8 * MIB });
        assert!(room.wants_observation(0, Duration::ZERO), "it was never observed");
        room.observe(Capacity::new(1 << 30, 1 << 40), (MIB, 0), false, Duration::ZERO);
        assert!(!room.wants_observation(6 * MIB, OBSERVED_EACH - Duration::from_millis(1)));
        assert!(room.wants_observation(7 * MIB, Duration::ZERO), "a quarter of the reserve was written");
        assert!(room.wants_observation(MIB, OBSERVED_EACH), "others may have written");
        room.refused();
        assert!(room.wants_observation(MIB, Duration::ZERO), "it may have room again");
    }
}
