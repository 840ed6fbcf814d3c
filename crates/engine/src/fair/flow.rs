//! One disk's use of a resource.

use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicI64, AtomicU64};

/// Default weight of a disk.
pub(crate) const DEFAULT_WEIGHT: u64 = 100;
/// Maximum weight of a disk.
pub(crate) const MAX_WEIGHT: u64 = 10_000;

/// One disk's use of a resource, in bytes.
#[derive(Debug)]
pub(crate) struct Flow {
    id: u64,
    weight: AtomicU64,
    used: AtomicI64,
    /// Virtual time at which the flow's last admission from the queue ends. Used under the lock of the queue.
    finish: AtomicU64,
    /// Weight with which the queue counts the flow as active. Used under the lock of the queue.
    counted: AtomicU64,
}

impl Flow {
    /// A flow that uses nothing. `id` differs from that of all other flows of the resource.
    pub fn new(id: u64) -> Flow {
        Flow {
            id,
            weight: AtomicU64::new(DEFAULT_WEIGHT),
            used: AtomicI64::new(0),
            finish: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn weight(&self) -> u64 {
        self.weight.load(Relaxed)
    }

    /// Sets the weight of the flow. It takes effect with the next change of the flow's use.
    pub fn set_weight(&self, weight: u64) {
        self.weight.store(weight.clamp(1, MAX_WEIGHT), Relaxed);
    }

    /// Bytes that the flow uses at present.
    pub fn used(&self) -> u64 {
        self.used.load(SeqCst).max(0) as u64
    }

    /// Changes the bytes that the flow uses; returns whether it began or ceased to use any.
    pub(super) fn add(&self, bytes: i64) -> bool {
        let before = self.used.fetch_add(bytes, SeqCst);
        (before > 0) != (before + bytes > 0)
    }

    pub(super) fn finish(&self) -> u64 {
        self.finish.load(Relaxed)
    }

    pub(super) fn set_finish(&self, finish: u64) {
        self.finish.store(finish, Relaxed);
    }

    /// Replaces the weight with which the flow is counted; returns the previous weight.
    pub(super) fn set_counted(&self, weight: u64) -> u64 {
        self.counted.swap(weight, Relaxed)
    }

    pub(super) fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }
}
