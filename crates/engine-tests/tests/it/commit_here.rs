//! Threads that make the commits they wait for ([`commit_here`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::common::*;
use forebay_engine::{BoxFuture, DiskHandle, Fast, Host, Pool, PoolConfig, SyncMode, commit_here};
use forebay_format::SegmentId;
use forebay_store::{Completion, IoBuf, MemoryStore, Store};

/// Withdraws the permission at the end of a test.
struct Permission;

impl Permission {
    fn given() -> Permission {
        commit_here(true);
        Permission
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        commit_here(false);
    }
}

/// A volume `v` whose writes are answered when they are durable, and one other.
async fn with_volumes(pool: &Arc<Pool>) -> [Arc<DiskHandle>; 2] {
    pool.create_volume("v", 1 << 20, SyncMode::Always, 0).await.unwrap();
    pool.create_volume("other", 1 << 20, SyncMode::Always, 0).await.unwrap();
    let disks = [pool.attach("v").unwrap(), pool.attach("other").unwrap()];
    for disk in &disks {
        disk.write(0, &noise(1, 4096), true).await.unwrap();
    }
    disks
}

/// Commits until now. No other task runs until this returns.
fn commits(pool: &Pool) -> u64 {
    pool.stats().now_or_never().expect("figures in memory").commits
}

fn write_durably(disk: &DiskHandle, at: u64, number: u64) {
    assert_eq!(disk.try_write_durably(at, &noise(number, 4096)).unwrap(), Fast::Done);
}

#[tokio::test]
async fn a_durable_write_is_committed_by_the_thread_that_may() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let [disk, _] = with_volumes(&pool).await;
    let before = commits(&pool);
    write_durably(&disk, 0, 2);
    assert_eq!(commits(&pool), before, "without permission");
    let mut finished = Box::pin(disk.finish(true));
    assert!(finished.as_mut().now_or_never().is_none());
    finished.await.unwrap();

    let permission = Permission::given();
    let before = commits(&pool);
    for n in 0..10 {
        write_durably(&disk, n * 4096, n + 3);
        assert_eq!(commits(&pool), before + n + 1);
        disk.finish(true).now_or_never().expect("it is durable").unwrap();
    }
    // A flush of what was not written durably.
    disk.write_part(4096, &noise(20, 4096)).await.unwrap();
    let before = commits(&pool);
    disk.flush().now_or_never().expect("a commit by this thread").unwrap();
    assert_eq!(commits(&pool), before + 1);
    drop(permission);

    drop((disk, pool));
    let again = open(&store).await;
    let mut found = vec![0; 4096];
    again.attach("v").unwrap().read(4096, &mut found).await.unwrap();
    assert_eq!(found, noise(20, 4096));
}

#[tokio::test]
async fn a_large_group_is_left_to_the_engine() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    let [disk, other] = with_volumes(&pool).await;
    other.write_part(0, &noise(5, 512 << 10)).await.unwrap();
    let _permission = Permission::given();
    let before = commits(&pool);
    write_durably(&disk, 0, 2);
    assert_eq!(commits(&pool), before);
    disk.finish(true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_write_is_not_committed_piece_by_piece() {
    let config = PoolConfig { write_buffer: 16 << 20, ..config() };
    // On this clock, the store is fast.
    let host = Arc::new(PausedHost(tokio::time::Instant::now()));
    let pool = Pool::open(Arc::new(MemoryStore::new()), host, config).await.unwrap();
    let [disk, _] = with_volumes(&pool).await;
    let _permission = Permission::given();
    for (n, len) in [(1, 64), (2, 256), (3, 1024)] {
        let before = commits(&pool);
        disk.write(0, &noise(n, len << 10), true).await.unwrap();
        assert_eq!(commits(&pool), before + 1, "{len} KiB");
    }
}

/// A host of which another task is always being run.
struct BusyHost(TestHost, AtomicU64);

impl Host for BusyHost {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.0.spawn(name, task);
    }
    fn run_step(&self, _: &mut dyn FnMut()) -> bool {
        self.1.fetch_add(1, SeqCst);
        false
    }
    fn random(&self, bytes: &mut [u8]) {
        self.0.random(bytes);
    }
}

#[tokio::test]
async fn the_engine_commits_what_the_thread_cannot() {
    let host = Arc::new(BusyHost(TestHost(Instant::now()), AtomicU64::new(0)));
    let pool = Pool::open(Arc::new(MemoryStore::new()), host.clone(), config()).await.unwrap();
    let [disk, _] = with_volumes(&pool).await;
    let _permission = Permission::given();
    for n in 0..5 {
        let steps = host.1.load(SeqCst);
        write_durably(&disk, 0, n);
        assert!(host.1.load(SeqCst) > steps, "it tried");
        let finished = tokio::time::timeout(Duration::from_secs(20), disk.finish(true)).await;
        finished.expect("the engine was woken").unwrap();
    }
    let waiting = pool.stats().now_or_never().unwrap().commit.waiting;
    assert!(waiting <= 1.0, "one request counts as {waiting}");
}

/// A store that writes to a disk while it appends, once.
struct Meddling {
    inner: MemoryStore,
    disk: OnceLock<Arc<DiskHandle>>,
    is_due: AtomicBool,
}

impl Store for Meddling {
    forebay_store::forward_store!(inner; except append);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        if self.is_due.swap(false, SeqCst) {
            write_durably(self.disk.get().unwrap(), 0, 77);
        }
        self.inner.append(id, offset, data, expected)
    }
}

#[tokio::test]
async fn a_thread_makes_one_commit_and_leaves_the_next_to_the_engine() {
    let store = Arc::new(Meddling {
        inner: MemoryStore::new(),
        disk: OnceLock::new(),
        is_due: AtomicBool::new(false),
    });
    let pool = open_with(&store, config()).await;
    let [disk, other] = with_volumes(&pool).await;
    let _ = store.disk.set(other.clone());
    let _permission = Permission::given();
    let before = commits(&pool);
    store.is_due.store(true, SeqCst);
    write_durably(&disk, 0, 2);
    assert_eq!(commits(&pool), before + 1, "that of the other disk is not this thread's");
    disk.finish(true).now_or_never().expect("it is durable").unwrap();
    let finished = tokio::time::timeout(Duration::from_secs(20), other.finish(true)).await;
    finished.expect("the engine was woken").unwrap();
    assert_eq!(commits(&pool), before + 2);
    // The store, to which the handle refers, and the disk refer to each other.
    store.is_due.store(false, SeqCst);
}
