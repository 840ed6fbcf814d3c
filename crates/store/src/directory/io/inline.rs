//! Short synced writes on the thread that requests them.
//!
//! A write that is durable when it completes blocks the thread that calls the kernel, so the ring gives it to
//! a kernel thread. The result then passes through two more threads. On a fast disk, these four switches cost
//! more than the write; on a slow one, the requesting thread has other work to do. The recent durations
//! of such writes decide.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Op;

/// Maximum size of a write that runs on the requesting thread. It suffices for the writes of several durable
/// requests, and for the zeroes after them.
const MOST_BYTES: usize = 1536 << 10;

/// Maximum mean duration of synced writes with which a thread waits for them.
const SHORT: Duration = Duration::from_millis(1);

/// Weight of the past in the mean: each duration counts as one part in this number. One slow write in this
/// many does not change the decision if it takes less than this many times [`SHORT`].
const MEMORY: u64 = 8;

/// The recent duration of synced writes.
#[derive(Default)]
pub(super) struct SyncedWrites {
    /// Weighted mean of the durations, in nanoseconds; 0 before the first write.
    mean: AtomicU64,
}

impl SyncedWrites {
    /// Whether a synced write of `len` bytes runs on the thread that requests it.
    pub(super) fn run_inline(&self, len: usize) -> bool {
        let mean = self.mean.load(Relaxed);
        len <= MOST_BYTES && mean > 0 && u128::from(mean) <= SHORT.as_nanos()
    }

    /// Measures the duration of a synced write that begins now.
    pub(super) fn timed(self: &Arc<Self>, mut op: Op) -> Op {
        let (writes, len, began, finish) = (self.clone(), op.len, Instant::now(), op.finish);
        op.finish = Box::new(move |buf, result| {
            writes.record(len, began.elapsed());
            finish(buf, result);
        });
        op
    }

    fn record(&self, len: usize, duration: Duration) {
        if len > MOST_BYTES {
            return;
        }
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2).max(1);
        // Concurrent updates may lose one of the durations.
        let mean = self.mean.load(Relaxed);
        let mean = if mean == 0 { ns } else { mean - mean / MEMORY + ns / MEMORY };
        self.mean.store(mean.max(1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_writes_run_inline_while_the_disk_is_fast() {
        let writes = SyncedWrites::default();
        assert!(!writes.run_inline(4096), "nothing is known yet");
        writes.record(4096, Duration::from_micros(100));
        assert!(writes.run_inline(4096) && !writes.run_inline(2 << 20));
        writes.record(2 << 20, Duration::from_secs(1));
        assert!(writes.run_inline(4096), "a large write says nothing about small ones");
        writes.record(4096, Duration::from_millis(5));
        assert!(writes.run_inline(4096), "one slow write is not a slow disk");
        (0..2).for_each(|_| writes.record(4096, Duration::from_millis(5)));
        assert!(!writes.run_inline(4096));
        (0..20).for_each(|_| writes.record(4096, Duration::from_micros(150)));
        assert!(writes.run_inline(4096));
    }
}
