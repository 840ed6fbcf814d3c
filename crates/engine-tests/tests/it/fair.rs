//! Limits and fair shares of an open pool, with a clock that moves only while all tasks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{PausedHost, config, noise};
use forebay_engine::{
    BoxFuture, DiskHandle, DiskLimits, Fast, Limits, Pool, PoolConfig, Rate, RateLimits, SyncMode,
};
use forebay_store::{DiskArray, MemoryStore, Slow};
use tokio::time::{Instant, sleep, timeout};

const BLOCK: u64 = 4096;

/// A pool with volumes of 4 MiB, opened by one client each. Their first write, which makes their mark, is
/// done.
async fn open(names: &[&str], config: PoolConfig) -> (Arc<Pool>, Vec<Arc<DiskHandle>>) {
    let store = Arc::new(MemoryStore::new());
    let pool = Pool::open(store, Arc::new(PausedHost(Instant::now())), config).await.unwrap();
    let mut disks = Vec::new();
    for name in names {
        pool.create_volume(name, 4 << 20, SyncMode::Flush, 0).await.unwrap();
        let disk = pool.attach(name).unwrap();
        disk.write(0, &[1; BLOCK as usize], false).await.unwrap();
        disks.push(disk);
    }
    (pool, disks)
}

fn rate(per_second: u64, burst: Option<u64>) -> RateLimits {
    RateLimits { total: Some(Rate { per_second, burst }), ..RateLimits::default() }
}

fn iops(per_second: u64, burst: Option<u64>) -> Limits {
    Limits { iops: rate(per_second, burst), ..Limits::default() }
}

fn own(limits: Limits) -> DiskLimits {
    DiskLimits { tenant: None, limits }
}

/// Reads and writes blocks with 16 requests at a time; returns the number that completed in 2 seconds.
async fn load(disks: &[Arc<DiskHandle>], len: usize) -> u64 {
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(2);
    let tasks: Vec<_> = (0..16)
        .map(|n: u64| {
            let (disk, done) = (disks[n as usize % disks.len()].clone(), done.clone());
            tokio::spawn(async move {
                let mut data = vec![n as u8; len];
                loop {
                    match n % 3 {
                        0 => disk.read(n * BLOCK, &mut data).await.unwrap(),
                        _ => disk.write(n * BLOCK, &data, false).await.unwrap(),
                    }
                    if Instant::now() >= until {
                        break;
                    }
                    done.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    done.load(Relaxed)
}

fn assert_about(found: u64, expected: u64) {
    let off = found.abs_diff(expected) as f64 / expected as f64;
    assert!(off <= 0.05, "{found} instead of {expected}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_holds_within_five_percent_over_two_seconds() {
    let (pool, disks) = open(&["v"], config()).await;
    pool.set_limits("v", &own(iops(500, None))).unwrap();
    assert_about(load(&disks, 4096).await, 1000);
    // A burst is granted once.
    pool.set_limits("v", &own(iops(500, Some(400)))).unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_about(load(&disks, 4096).await, 1400);
    let bandwidth = Limits { bandwidth: rate(8 << 20, None), ..Limits::default() };
    pool.set_limits("v", &own(bandwidth)).unwrap();
    assert_about(load(&disks, 64 << 10).await, 256);
    assert!(pool.disk_stats("v").unwrap().limited.ops > 0);
}

#[tokio::test(start_paused = true)]
async fn the_volumes_of_a_tenant_share_its_limit() {
    let (pool, disks) = open(&["a", "b", "free"], config()).await;
    for name in ["a", "b"] {
        pool.set_limits(name, &DiskLimits { tenant: Some("t".into()), limits: Limits::default() }).unwrap();
    }
    pool.set_tenant_limits("t", iops(500, None));
    assert_about(load(&disks[..2], 4096).await, 1000);
    let tenants = pool.tenants();
    assert_eq!((tenants.len(), tenants[0].limits, tenants[0].disks), (1, iops(500, None), 2));
    // The volume of no tenant is not limited.
    let begun = Instant::now();
    for _ in 0..2000 {
        disks[2].read(0, &mut [0; 512]).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_volume_does_not_delay_the_others_of_its_tenant() {
    let (pool, disks) = open(&["slow", "quick"], config()).await;
    let of_tenant = |limits| DiskLimits { tenant: Some("t".into()), limits };
    pool.set_limits("slow", &of_tenant(iops(1, None))).unwrap();
    pool.set_limits("quick", &of_tenant(Limits::default())).unwrap();
    pool.set_tenant_limits("t", iops(1000, None));
    let slow: Vec<_> = (0..10)
        .map(|n: u64| {
            let disk = disks[0].clone();
            tokio::spawn(async move { disk.read(n * BLOCK, &mut [0; 4096]).await })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    for _ in 0..100 {
        disks[1].read(0, &mut [0; 4096]).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn reads_and_writes_have_separate_limits() {
    let (pool, disks) = open(&["v"], config()).await;
    let slow = Some(Rate { per_second: 1, burst: None });
    let limits = Limits { iops: RateLimits { write: slow, ..RateLimits::default() }, ..Limits::default() };
    pool.set_limits("v", &own(limits)).unwrap();
    let v = &disks[0];
    v.write(0, &[2; 4096], false).await.unwrap();
    assert_eq!(v.try_write(0, &[2; 4096]).unwrap(), Fast::Wait);
    for _ in 0..100 {
        assert_eq!(v.try_read(0, &mut [0; 4096]).unwrap(), Fast::Done);
    }
    let begun = Instant::now();
    v.discard(0, 4096, false).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(900), "a discard counts as a write");
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_applies_to_requests_that_wait() {
    let (pool, disks) = open(&["v"], config()).await;
    pool.set_limits("v", &own(iops(1, None))).unwrap();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let disk = disks[0].clone();
            tokio::spawn(async move { disk.read(0, &mut [0; 512]).await.unwrap() })
        })
        .collect();
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(waiting.iter().filter(|task| task.is_finished()).count(), 3);
    pool.set_limits("v", &own(Limits::default())).unwrap();
    for task in waiting {
        timeout(Duration::from_millis(100), task).await.unwrap().unwrap();
    }
}

/// Also those that wait in the queue of their tenant.
#[tokio::test(start_paused = true)]
async fn lifted_limits_admit_all_requests_that_wait() {
    let (pool, disks) = open(&["v", "w"], config()).await;
    let of_tenant = DiskLimits { tenant: Some("t".into()), limits: Limits::default() };
    pool.set_limits("v", &own(iops(1, None))).unwrap();
    pool.set_limits("w", &of_tenant).unwrap();
    pool.set_tenant_limits("t", iops(1, None));
    for lifted in [true, false] {
        let read = |n: usize| {
            let disk = disks[n % 2].clone();
            tokio::spawn(async move { disk.read(0, &mut [0; 512]).await.unwrap() })
        };
        let waiting: Vec<_> = (0..100).map(read).collect();
        sleep(Duration::from_millis(1500)).await;
        assert!(waiting.iter().filter(|task| task.is_finished()).count() < 10);
        pool.lift_limits(lifted);
        let ended = timeout(Duration::from_millis(100), futures_util::future::join_all(waiting)).await;
        assert_eq!(ended.is_ok(), lifted);
        pool.lift_limits(false);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_order_and_leave_when_they_are_dropped() {
    let (pool, disks) = open(&["v"], config()).await;
    pool.set_limits("v", &own(iops(10, Some(1)))).unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..6 {
        let (disk, order) = (disks[0].clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            disk.write(0, &[3; 4096], false).await.unwrap();
            order.lock().unwrap().push((n, Instant::now()));
        }));
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    for n in [1, 3] {
        tasks[n].abort();
    }
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_ok(), n != 1 && n != 3);
    }
    let order = order.lock().unwrap();
    assert_eq!(order.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 2, 4, 5]);
    let took = order[3].1 - begun;
    assert!(took < Duration::from_millis(320), "requests that were dropped took tokens: {took:?}");
}

/// Every write completes although all together exceed the buffer many times, and some are dropped while they
/// wait.
#[tokio::test(start_paused = true)]
async fn all_writers_of_a_small_buffer_make_progress() {
    let (pool, disks) =
        open(&["hog", "other", "victim"], PoolConfig { write_buffer: 256 << 10, ..config() }).await;
    let mut tasks = Vec::new();
    for n in 0..192u64 {
        let disk = disks[n as usize % 2].clone();
        tasks.push(tokio::spawn(async move {
            let data = noise(n, 128 << 10);
            disk.write(n % 16 * (128 << 10), &data, n % 5 == 0).await.unwrap();
        }));
    }
    tokio::task::yield_now().await;
    tasks.iter().step_by(7).for_each(tokio::task::JoinHandle::abort);
    for n in 0..50 {
        disks[2].write(n * BLOCK, &noise(n, 4096), true).await.unwrap();
    }
    for task in tasks {
        let _ = timeout(Duration::from_secs(60), task).await.expect("a writer starves");
    }
    pool.flush().await.unwrap();
    assert_eq!(pool.stats().await.dirty_bytes, 0);
    drop(disks);
    pool.close().await.unwrap();
}

/// Durable writes of 4 KiB, one at a time; returns their 95th percentile.
async fn durable_writes(disk: &DiskHandle) -> Duration {
    let mut took = Vec::new();
    for n in 0..400 {
        let began = Instant::now();
        disk.write(n % 64 * BLOCK, &noise(n, BLOCK as usize), true).await.unwrap();
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[took.len() * 95 / 100]
}

#[tokio::test(start_paused = true)]
async fn durable_writes_do_not_wait_for_a_deep_queue_of_reads() {
    durable_writes_next_to_reads(async |pool| {
        let scanned = pool.attach("scanned").unwrap();
        let read_at: ReadAt = Arc::new(move |offset, mut data: Vec<u8>| -> BoxFuture<'static, Vec<u8>> {
            let scanned = scanned.clone();
            Box::pin(async move {
                scanned.read(offset, &mut data).await.unwrap();
                data
            })
        });
        read_at
    })
    .await;
}

/// Exports read the store with the permits of guests.
#[tokio::test(start_paused = true)]
async fn durable_writes_do_not_wait_for_exports() {
    durable_writes_next_to_reads(async |pool| {
        let export = Arc::new(pool.begin_export("scanned").await.unwrap());
        let read_at: ReadAt = Arc::new(move |offset, mut data: Vec<u8>| -> BoxFuture<'static, Vec<u8>> {
            let export = export.clone();
            Box::pin(async move {
                export.read(offset, &mut data).await.unwrap();
                data
            })
        });
        read_at
    })
    .await;
}

/// Reads at an offset, into a buffer that is returned.
type ReadAt = Arc<dyn Fn(u64, Vec<u8>) -> BoxFuture<'static, Vec<u8>> + Send + Sync>;

/// On a disk that serves requests in order, 1 GiB per second, with a deep queue of reads of another volume.
async fn durable_writes_next_to_reads(reader: impl AsyncFnOnce(&Arc<Pool>) -> ReadAt) {
    const MIB: usize = 1 << 20;
    let us = Duration::from_micros;
    let array = DiskArray { spindles: 1, seek: us(20), rpm: 1_000_000, bytes_per_second: 1 << 30 };
    let begin = Instant::now();
    let sleep = |d| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(d)) };
    let clock = Arc::new(move || begin.elapsed());
    let store = Slow::new(Arc::new(MemoryStore::new()), array, clock, Arc::new(sleep));
    let config = PoolConfig { read_cache: 4 << 20, ..config() };
    let pool = Pool::open(Arc::new(store), Arc::new(PausedHost(begin)), config).await.unwrap();
    for name in ["scanned", "victim"] {
        pool.create_volume(name, 64 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    let (scanned, victim) = (pool.attach("scanned").unwrap(), pool.attach("victim").unwrap());
    for n in 0..64 {
        scanned.write(n * MIB as u64, &noise(n, MIB), false).await.unwrap();
    }
    scanned.flush().await.unwrap();
    let alone = durable_writes(&victim).await;
    let (read, read_at) = (Arc::new(AtomicU64::new(0)), reader(&pool).await);
    for n in 0..32 {
        let (read_at, read) = (read_at.clone(), read.clone());
        tokio::spawn(async move {
            let mut data = vec![0; MIB];
            for i in n.. {
                data = read_at(i * 37 % 64 * MIB as u64, data).await;
                read.fetch_add(MIB as u64, Relaxed);
            }
        });
    }
    let (began, before) = (Instant::now(), read.load(Relaxed));
    let next_to_reads = durable_writes(&victim).await;
    let rate = (read.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    println!("{alone:?} alone, {next_to_reads:?} next to reads of {:.0} MiB/s", rate / MIB as f64);
    assert!(next_to_reads < 5 * alone, "{next_to_reads:?}, {alone:?} alone");
    assert!(rate > 200e6, "the reads do not starve: {rate} bytes per second");
}

/// Each volume has a share of the read cache: one that reads rarely keeps what it uses.
#[tokio::test(start_paused = true)]
async fn a_busy_reader_does_not_displace_what_another_volume_uses() {
    const USED: u64 = 50;
    let (pool, disks) = open(&["used", "busy"], PoolConfig { read_cache: 2 << 20, ..config() }).await;
    for (disk, seed) in disks.iter().zip(1..) {
        disk.write(0, &noise(seed, 4 << 20), true).await.unwrap();
    }
    let read =
        async |disk: &DiskHandle, n: u64| disk.read(n * BLOCK, &mut [0; BLOCK as usize]).await.unwrap();
    let misses = async || pool.stats().await.read_cache.misses;
    let (mut random, mut missed) = (1_u64, 0);
    for round in 0..1600 {
        for _ in 0..40 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Twice as much as the cache holds; in no order that is read ahead.
            read(&disks[1], (random >> 33) % 1024).await;
        }
        let before = misses().await;
        read(&disks[0], round * 7 % USED).await;
        missed += if round < 800 { 0 } else { misses().await - before };
    }
    println!("{missed} of 800 reads missed");
    assert!(missed < 200, "{missed} of 800 reads missed");
}
