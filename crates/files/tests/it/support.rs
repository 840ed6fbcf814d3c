//! A host for pools in tests, and a pseudorandom generator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::{BoxFuture, Host, Pool, PoolConfig};
use forebay_files::Files;
use forebay_store::Store;
use tokio::time::Instant;

/// A host on the clock and the tasks of the present tokio runtime. What the write buffers hold is lost with
/// the pool, as in a loss of power.
pub struct TestHost {
    start: Instant,
    random: AtomicU64,
}

impl TestHost {
    pub fn new(seed: u64) -> Arc<TestHost> {
        Arc::new(TestHost { start: Instant::now(), random: AtomicU64::new(seed) })
    }
}

impl Host for TestHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
    fn unix_ms(&self) -> u64 {
        1_000_000 + self.start.elapsed().as_millis() as u64
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn random(&self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = next(self.random.fetch_add(1, Relaxed)) as u8;
        }
    }
}

/// A step of splitmix64.
fn next(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A pseudorandom generator.
pub struct Rng(pub u64);

impl Rng {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        next(self.0) % limit
    }
}

/// Runs a test on one thread, on a clock that passes only while everything waits.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test)
}

pub async fn open_pool(store: Arc<dyn Store>, seed: u64) -> forebay_engine::Result<Arc<Pool>> {
    let config = PoolConfig { read_cache: 4 << 20, write_buffer: 8 << 20, ..PoolConfig::default() };
    Pool::open(store, TestHost::new(seed), config).await
}

/// A pool on `store`, and its namespace.
pub async fn open(store: Arc<dyn Store>) -> (Arc<Pool>, Arc<Files>) {
    let pool = open_pool(store, 1).await.unwrap();
    let files = Files::open(pool.clone()).await.unwrap();
    (pool, files)
}
