//! Helpers shared by the tests of the engine.
#![allow(dead_code, reason = "each test uses its part")]

pub mod machine;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use forebay_engine::{CloneRequest, DiskHandle, Host, Pool, PoolConfig, Result};
use forebay_store::{MemoryStore, Store};

/// The time since the field `$start`, a fixed date, and the tasks of the runtime of a test.
macro_rules! of_runtime {
    ($start:tt) => {
        fn now(&self) -> std::time::Duration {
            self.$start.elapsed()
        }
        fn unix_ms(&self) -> u64 {
            1_700_000_000_000
        }
        fn sleep(&self, duration: std::time::Duration) -> forebay_engine::BoxFuture<'static, ()> {
            Box::pin(tokio::time::sleep(duration))
        }
        fn spawn(&self, _: &'static str, task: forebay_engine::BoxFuture<'static, ()>) {
            tokio::spawn(task);
        }
    };
}
pub(crate) use of_runtime;

/// The real environment, with a fixed date and numbers that are not random.
pub struct TestHost(pub Instant);

impl Host for TestHost {
    of_runtime!(0);
    fn boot_id(&self) -> [u8; 16] {
        boot_of(self.0)
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    }
}

/// A host whose time is tokio's paused clock, which moves only while all tasks wait.
pub struct PausedHost(pub tokio::time::Instant);

impl Host for PausedHost {
    of_runtime!(0);
    fn random(&self, bytes: &mut [u8]) {
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    }
}

/// The boot of a host that was created then: each opening is in another boot, so the local clients of the one
/// before have died.
pub fn boot_of(created: Instant) -> [u8; 16] {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    created.saturating_duration_since(*FIRST).as_nanos().to_le_bytes()
}

/// Makes the mark that a disk gets before its first answer that is not durable: a commit.
pub async fn mark(disk: &DiskHandle) {
    disk.write(0, &[], false).await.unwrap();
}

/// Bytes that neither repeat nor compress; they depend on `number`.
pub fn noise(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len / 8 * 8];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes
}

/// Text: it compresses, and no two blocks are equal.
pub fn text(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for line in 0.. {
        if bytes.len() >= len {
            break;
        }
        bytes.extend_from_slice(format!("{number} wrote line {line} of its log\n").as_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn config() -> PoolConfig {
    PoolConfig {
        read_cache: 8 << 20,
        map_cache: 4 << 20,
        write_buffer: 1 << 20,
        segment_bytes: 1 << 20,
        checkpoint_bytes: 8 << 20,
        dedup_index: 1 << 20,
        compress: true,
        ..PoolConfig::default()
    }
}

pub async fn open(store: &Arc<MemoryStore>) -> Arc<Pool> {
    open_with(store, config()).await
}

pub async fn open_with(store: &Arc<impl Store + 'static>, config: PoolConfig) -> Arc<Pool> {
    try_open_with(store, config).await.unwrap()
}

pub async fn try_open_with(store: &Arc<impl Store + 'static>, config: PoolConfig) -> Result<Arc<Pool>> {
    Pool::open(store.clone(), Arc::new(TestHost(Instant::now())), config).await
}

/// No map stays in memory, and checkpoints are made only on request.
pub fn cold_config() -> PoolConfig {
    PoolConfig {
        map_cache: 0,
        read_cache: 0,
        checkpoint_bytes: 1 << 30,
        reclaim_pause: Duration::from_secs(3600),
        learn_classes: false,
        ..config()
    }
}

pub async fn read(disk: &DiskHandle, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    disk.read(offset, &mut out).await.unwrap();
    out
}

pub fn clone(name: &str) -> CloneRequest {
    CloneRequest { name: name.into(), ..CloneRequest::default() }
}

/// The problems that a check finds, one line each.
pub async fn check(store: &Arc<impl Store + 'static>) -> Vec<String> {
    let report =
        forebay_engine::check(store.clone(), Arc::new(TestHost(Instant::now())), |_| {}).await.unwrap();
    let line = |p: &forebay_engine::Problem| format!("{} at {}, of {:?}", p.what, p.place, p.disks);
    report.problems.iter().map(line).collect()
}

/// The store after a crash: a copy of everything written to it, not accessible to the pool that has it open.
pub async fn left_by_crash(store: &MemoryStore) -> Arc<MemoryStore> {
    let copy = Arc::new(MemoryStore::new());
    for (n, bytes) in store.read_superblock().await.unwrap().into_iter().enumerate() {
        copy.set_superblock(n, bytes);
    }
    for object in store.list().await.unwrap() {
        if object.len == 0 {
            // Created ahead of use.
            copy.prepare(object.id, 0).await.unwrap();
            continue;
        }
        let bytes = store.read(object.id, 0, object.len as usize).await.unwrap();
        copy.append(object.id, 0, bytes, object.len).await.unwrap();
        copy.sync(object.id).await.unwrap();
    }
    copy
}
