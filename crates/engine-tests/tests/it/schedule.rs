//! When commits begin: concurrent flushes of several guests are coalesced, and commits without coalescing
//! begin at once. Time is tokio's paused clock, so that the load of the machine has no effect.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{BoxFuture, Coalesce, DiskHandle, Pool, PoolConfig, SyncMode};
use forebay_store::{DiskArray, MemoryStore, Slow, Store};

/// A pool on one disk on which a commit takes 20 ms.
async fn on_a_disk(coalesce: Coalesce) -> (Arc<Pool>, Vec<Arc<DiskHandle>>) {
    let array =
        DiskArray { spindles: 1, seek: Duration::from_millis(5), rpm: 6000, bytes_per_second: 1 << 30 };
    let sleep = |d| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(d)) };
    let begin = tokio::time::Instant::now();
    let (memory, clock) = (Arc::new(MemoryStore::new()), Arc::new(move || begin.elapsed()));
    let store: Arc<dyn Store> = Arc::new(Slow::new(memory, array, clock, Arc::new(sleep)));
    let config = PoolConfig { coalesce, ..config() };
    let pool = Pool::open(store, Arc::new(PausedHost(begin)), config).await.unwrap();
    let mut disks = Vec::new();
    for name in ["a", "b", "c", "d"] {
        pool.create_volume(name, 64 << 20, SyncMode::Flush, 0).await.unwrap();
        disks.push(pool.attach(name).unwrap());
    }
    (pool, disks)
}

/// Every guest writes a block and flushes, `times` times, with a guest-specific pause in between. Returns the
/// number of commits.
async fn flush_in_turns(pool: &Pool, disks: &[Arc<DiskHandle>], times: u64) -> u64 {
    let before = pool.stats().await.commits;
    let guest = async |n: usize, disk: &DiskHandle| {
        for i in 0..times {
            disk.write(i * 4096, &noise(i << 8 | n as u64, 4096), false).await.unwrap();
            disk.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1 + 2 * n as u64)).await;
        }
    };
    let all = disks.iter().enumerate().map(|(n, disk)| guest(n, disk));
    futures_util::future::join_all(all).await;
    pool.stats().await.commits - before
}

#[tokio::test(start_paused = true)]
async fn concurrent_flushes_are_coalesced() {
    let (pool, disks) = on_a_disk(Coalesce::Adaptive).await;
    let commits = flush_in_turns(&pool, &disks, 20).await;
    let stats = pool.stats().await.commit;
    assert!(commits <= 45, "{commits} commits for 80 flushes; {stats:?}");
    assert!(stats.delayed_us > 0 && stats.waiting > 1.5, "{stats:?}");
    assert!((10_000..60_000).contains(&stats.cost_us), "{stats:?}");
}

/// Clients that write durably in lockstep, each one write at a time, share their commits.
#[tokio::test(start_paused = true)]
async fn clients_in_lockstep_share_each_commit() {
    let (pool, disks) = on_a_disk(Coalesce::Adaptive).await;
    let before = pool.stats().await.commits;
    let client = async |n: usize, disk: &DiskHandle| {
        // They begin at different times of a commit, and take different times for an answer.
        tokio::time::sleep(Duration::from_millis(7 * n as u64)).await;
        for i in 0..50_u64 {
            disk.write(i * 4096, &noise(i << 8 | n as u64, 4096), true).await.unwrap();
            tokio::time::sleep(Duration::from_micros(300 * n as u64)).await;
        }
    };
    let all = disks.iter().enumerate().map(|(n, disk)| client(n, disk));
    futures_util::future::join_all(all).await;
    let commits = pool.stats().await.commits - before;
    assert!(commits <= 60, "{commits} commits for 200 writes");
}

#[tokio::test(start_paused = true)]
async fn a_single_guest_is_not_delayed() {
    let (pool, disks) = on_a_disk(Coalesce::Adaptive).await;
    mark(&disks[0]).await;
    assert_eq!(flush_in_turns(&pool, &disks[..1], 10).await, 10);
    assert_eq!(pool.stats().await.commit.delayed_us, 0);
}

#[tokio::test(start_paused = true)]
async fn without_coalescing_writes_are_durable_when_answered() {
    let (pool, disks) = on_a_disk(Coalesce::Off).await;
    let before = pool.stats().await.commits;
    for n in 0..5 {
        disks[0].write(n * 4096, &noise(n, 4096), false).await.unwrap();
        assert_eq!(pool.stats().await.dirty_bytes, 0);
    }
    assert!(disks[0].write_through());
    assert_eq!(pool.stats().await.commits - before, 5);
}
