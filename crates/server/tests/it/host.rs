//! The engine's host in tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::{BoxFuture, Host};

/// A host with real time and deterministic random numbers.
pub struct TestHost {
    start: Instant,
    handle: tokio::runtime::Handle,
    next: AtomicU64,
}

impl Host for TestHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let _entered = self.handle.enter();
        Box::pin(tokio::time::sleep(duration))
    }
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }
    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let n = self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&n.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Creates a host whose tasks run in the runtime of `handle`.
pub fn host(handle: tokio::runtime::Handle) -> TestHost {
    TestHost { start: Instant::now(), handle, next: AtomicU64::new(1) }
}
