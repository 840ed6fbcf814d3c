//! The quota of a tenant, and how much of it is used.

use serde::Serialize;

use forebay_format::BLOCK;

use crate::Room;
use crate::stats::Counter;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// No quota.
const UNLIMITED: u64 = u64::MAX;
/// A tenant is low on room when less than its quota divided by this number is left.
const LOW_PART: u64 = 10;
/// It is no longer low when this part of the quota is left in addition, so that a use that varies a little
/// is not a change each time.
const SLACK_PART: u64 = 100;

/// The use of a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TenantUsage {
    /// Bytes that its volumes occupy and their snapshots keep, as far as they were counted.
    pub used_bytes: u64,
    /// Number of volumes that are still being counted.
    pub counting: usize,
    /// Writes that were refused since the pool was opened.
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
    /// It is low on room.
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

    /// The quota in bytes, in whole blocks.
    pub fn quota(&self) -> u64 {
        self.quota.load(Relaxed).saturating_mul(BLOCK as u64)
    }

    /// Blocks in use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.get().ops
    }

    /// Whether `blocks` more are within the quota.
    pub fn fits(&self, blocks: u64) -> bool {
        self.used().saturating_add(blocks) <= self.quota.load(Relaxed)
    }

    /// Uses `blocks` more if that is within the quota.
    pub fn try_take(&self, blocks: u64) -> bool {
        let quota = self.quota.load(Relaxed);
        let take = |used: u64| used.checked_add(blocks).filter(|sum| *sum <= quota);
        blocks == 0 || self.used.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Uses `blocks` more, whatever the quota: they exist already.
    pub fn add(&self, blocks: u64) {
        self.used.fetch_add(blocks, Relaxed);
    }

    /// Uses `blocks` less.
    pub fn give_back(&self, blocks: u64) {
        self.used.fetch_sub(blocks, Relaxed);
        if self.is_full.load(Relaxed) && self.room() == Room::Ok {
            self.is_full.store(false, Relaxed);
        }
    }

    /// Counts a write that is refused; returns whether it is the first one since there was room.
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
