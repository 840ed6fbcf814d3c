//! The quota of a tenant, and how much of it is used.

use serde::Serialize;

use forebay_format::BLOCK;

use crate::Room;
use crate::stats::Counter;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// The limit of a tenant without a quota.
const UNLIMITED: u64 = u64::MAX;
/// A tenant is low on room when less than its quota divided by this number is left.
const LOW_PART: u64 = 10;
/// A tenant is no longer low on room when a further part of its quota is left, the quota divided by this
/// number. Small variations of the use then do not change the state each time.
const SLACK_PART: u64 = 100;

/// What a tenant uses of its quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TenantUsage {
    /// Bytes that volumes of the tenant occupy and their snapshots keep, as far as they were counted.
    pub used_bytes: u64,
    /// Number of the tenant's volumes that are still being counted.
    pub counting: usize,
    /// Number of writes that were refused since the pool was opened.
    pub refused: u64,
}

/// The quota of a tenant and its use, in blocks.
#[derive(Debug)]
pub(crate) struct Usage {
    quota: AtomicU64,
    used: AtomicU64,
    refused: Counter,
    /// Writes are refused, and a warning was logged.
    is_full: AtomicBool,
    /// Whether the tenant is low on room.
    is_low: AtomicBool,
}

impl Default for Usage {
    fn default() -> Usage {
        Usage {
            quota: AtomicU64::new(UNLIMITED),
            used: AtomicU64::new(0),
            refused: Counter::default(),
            is_full: AtomicBool::new(false),
            is_low: AtomicBool::new(false),
        }
    }
}

impl Usage {
    /// Replaces the quota, in bytes.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.quota.store(bytes.map_or(UNLIMITED, |bytes| bytes / BLOCK as u64), Relaxed);
        self.is_full.store(false, Relaxed);
    }

    pub fn has_quota(&self) -> bool {
        self.quota.load(Relaxed) != UNLIMITED
    }

    /// The quota in bytes, rounded to whole blocks.
    pub fn quota(&self) -> u64 {
        self.quota.load(Relaxed).saturating_mul(BLOCK as u64)
    }

    /// Number of blocks that the tenant uses.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.get().ops
    }

    /// Whether the quota has room for `blocks` more.
    pub fn fits(&self, blocks: u64) -> bool {
        self.used().saturating_add(blocks) <= self.quota.load(Relaxed)
    }

    /// Adds `blocks` to the use if the quota has room for them.
    pub fn try_take(&self, blocks: u64) -> bool {
        let quota = self.quota.load(Relaxed);
        let take = |used: u64| used.checked_add(blocks).filter(|sum| *sum <= quota);
        blocks == 0 || self.used.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Adds `blocks` to the use even beyond the quota: these blocks exist already.
    pub fn add(&self, blocks: u64) {
        self.used.fetch_add(blocks, Relaxed);
    }

    /// Subtracts `blocks` from the use.
    pub fn give_back(&self, blocks: u64) {
        self.used.fetch_sub(blocks, Relaxed);
        if self.is_full.load(Relaxed) && self.room() == Room::Ok {
            self.is_full.store(false, Relaxed);
        }
    }

    /// Counts a write that is refused; returns whether it is the first refused write since there was room.
    pub fn refuse(&self) -> bool {
        self.refused.add(0);
        !self.is_full.swap(true, Relaxed)
    }

    /// The state of the room within the quota.
    pub fn room(&self) -> Room {
        let quota = self.quota.load(Relaxed);
        let slack = if self.is_low.load(Relaxed) { quota / SLACK_PART } else { 0 };
        let room = match quota.saturating_sub(self.used()) {
            _ if quota == UNLIMITED => Room::Ok,
            0 => Room::Full,
            left if left < quota / LOW_PART + slack => Room::Low,
            _ => Room::Ok,
        };
        self.is_low.store(room != Room::Ok, Relaxed);
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_that_varies_a_little_changes_the_room_once() {
        let usage = Usage::default();
        usage.set_quota(Some(1000 * BLOCK as u64));
        usage.add(900);
        assert_eq!(usage.room(), Room::Ok);
        usage.add(1);
        assert_eq!(usage.room(), Room::Low);
        usage.give_back(10);
        assert_eq!(usage.room(), Room::Low);
        usage.give_back(1);
        assert_eq!(usage.room(), Room::Ok);
        usage.add(110);
        assert_eq!(usage.room(), Room::Full);
    }
}
