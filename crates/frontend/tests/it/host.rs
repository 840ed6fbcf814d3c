//! The engine's host in tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::{BoxFuture, Client, Host, Pool, PoolConfig, RemoteAnswers, SyncMode};
use forebay_store::MemoryStore;

/// A host with real time and deterministic random numbers.
pub struct TestHost {
    start: Instant,
    handle: tokio::runtime::Handle,
    next: AtomicU64,
    /// Milliseconds since boot; the time since the creation of the host if not set.
    pub boot_ms: Option<u64>,
}

impl Host for TestHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
    fn boot_ms(&self) -> u64 {
        self.boot_ms.unwrap_or(self.start.elapsed().as_millis() as u64)
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
    TestHost { start: Instant::now(), handle, next: AtomicU64::new(1), boot_ms: None }
}

/// Volumes to which a remote client has just written, in a pool whose memory of answered writes is lost.
pub fn store_with_lost_writes(volumes: &[&str]) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let host = Arc::new(host(runtime.handle().clone()));
    runtime.block_on(async {
        let config = PoolConfig { remote_answers: RemoteAnswers::Memory, ..PoolConfig::default() };
        let pool = Pool::open(store.clone(), host, config).await.unwrap();
        for name in volumes {
            pool.create_volume(name, 8 << 20, SyncMode::Flush, 0).await.unwrap();
            let disk = pool.attach_as(name, Client::Remote).unwrap();
            disk.write(0, &[1; 4096], false).await.unwrap();
        }
    });
    store
}
