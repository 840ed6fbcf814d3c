//! Services that the engine receives from its environment: time, randomness, tasks. A server provides the
//! real ones; a simulation provides a clock and a scheduler that it drives itself, and replays a run from its
//! seed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::PoolId;
use forebay_retained::Memory;
pub use forebay_store::BoxFuture;

use crate::memory::heap;
use crate::workers::{Inline, Workers};

/// The environment of the engine.
pub trait Host: Send + Sync + 'static {
    /// Monotonic time since a fixed moment.
    fn now(&self) -> Duration;
    /// Wall-clock time in Unix milliseconds, for display.
    fn unix_ms(&self) -> u64;
    /// Returns a future that completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Runs a task of the engine to its end. `name` is for diagnosis.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Calls `step`, a step of an engine task, on this thread, unless the host is running an engine task.
    /// Returns whether `step` was called. Until `step` returns, the host runs no engine task.
    fn run_step(&self, step: &mut dyn FnMut()) -> bool {
        step();
        true
    }
    /// Threads among which CPU work is divided. By default, the thread that requests the work does all of it.
    fn workers(&self) -> &dyn Workers {
        &Inline
    }
    /// Fills `bytes` with unpredictable bytes.
    fn random(&self, bytes: &mut [u8]);
    /// Identity of the present boot of the host; each boot has a different identity.
    fn boot_id(&self) -> [u8; 16] {
        [0; 16]
    }
    /// Milliseconds since that boot, on the clock on which the start of processes is measured
    /// (`CLOCK_BOOTTIME`).
    fn boot_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }
    /// The memory for the write buffers of a pool, of at most `limit` bytes. What it holds is still there
    /// when the next process opens the same pool; the default holds nothing. `id` is that of the memory that
    /// the superblock names; 0 if the pool has had none.
    fn memory(&self, pool: PoolId, id: u64, limit: u64) -> io::Result<Arc<dyn Memory>> {
        let _ = (pool, id);
        Ok(Arc::new(heap(limit)))
    }
}
