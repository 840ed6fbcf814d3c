//! The write caches of desktops: their bytes in RAM, their budgets, and when they overflow.

use tokio::sync::Notify;

use crate::buffer::ZEROES_COST;
use crate::disk::Disk;
use crate::limits::zeroes_budget;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// The write caches of all desktops together.
pub(crate) struct WriteCaches {
    /// Bytes in the write caches.
    cached: AtomicI64,
    budget: AtomicU64,
    /// A writer waits for retained memory, so a desktop must overflow although the budgets are not spent.
    required: AtomicBool,
    /// Wakes the task that lets desktops overflow.
    pub wake: Notify,
    /// Wakes the task that resets desktops.
    pub resets: Notify,
}

/// Whether a desktop must begin to overflow: early enough that writers do not have to wait for it.
pub(crate) fn is_nearly_spent(used: u64, budget: u64) -> bool {
    used > budget - budget / 8
}

impl WriteCaches {
    pub fn new(budget: u64) -> WriteCaches {
        WriteCaches {
            cached: AtomicI64::new(0),
            budget: AtomicU64::new(budget),
            required: AtomicBool::new(false),
            wake: Notify::new(),
            resets: Notify::new(),
        }
    }

    /// Bytes in the write caches.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed).max(0) as u64
    }

    /// Maximum bytes that the write caches may hold.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes the budget of the write caches.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
        self.wake();
    }

    /// Wakes the task that lets desktops overflow.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Requires the largest desktop to overflow, even if the budgets are not spent.
    pub fn require_overflow(&self) {
        self.required.store(true, Relaxed);
        self.wake();
    }

    /// Whether an overflow was required since the last call.
    pub fn take_required(&self) -> bool {
        self.required.swap(false, Relaxed)
    }

    /// Wakes the task that resets desktops.
    pub fn wake_resets(&self) {
        self.resets.notify_one();
    }

    /// Whether a write of `len` bytes (0: a zeroed range) fits into the budget of its desktop and the common
    /// budget.
    pub fn fits(&self, desktop: &Disk, len: u64) -> bool {
        // Zeroes free pages more often than they take room, so they have a reserve.
        let fits = |used: u64, budget: u64| match len {
            0 => used == 0 || used + ZEROES_COST <= zeroes_budget(budget),
            _ => used == 0 || used + len <= budget,
        };
        fits(desktop.cached(), desktop.write_cache()) && fits(self.cached(), self.budget())
    }

    /// Records that a desktop's cache grew by `grown` bytes; negative if it shrank.
    pub fn add(&self, desktop: &Disk, grown: i64) {
        let cached = desktop.record_cached(grown);
        let all = self.cached.fetch_add(grown, Relaxed) + grown;
        if is_nearly_spent(cached.max(0) as u64, desktop.write_cache())
            || is_nearly_spent(all.max(0) as u64, self.budget())
        {
            self.wake();
        }
    }

    /// Discards the write buffer of a desktop. The caller holds the lock of the log.
    pub fn forget(&self, disk: &Disk) {
        if disk.is_desktop() {
            let freed = disk.buffers.lock().clear();
            self.add(disk, -freed);
        }
    }

    /// Counts `bytes` of a desktop's cache as write buffer of a persistent volume from now on. Negative
    /// `bytes` are counted back.
    pub fn move_to_volumes(&self, bytes: i64) {
        self.cached.fetch_sub(bytes, Relaxed);
    }

    /// Whether the cache of a desktop, or all caches together, are so full that writers wait or will wait
    /// soon.
    pub fn is_short(&self, desktop: &Disk) -> bool {
        let is_spent = |used: u64, budget: u64| used > budget - budget / 16;
        is_spent(desktop.cached(), desktop.write_cache()) || is_spent(self.cached(), self.budget())
    }

    /// Whether the common budget is nearly spent.
    pub fn is_nearly_spent(&self) -> bool {
        is_nearly_spent(self.cached(), self.budget())
    }
}
