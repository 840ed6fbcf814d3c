//! Scattered writes whose map nodes and bases are not in memory: which requests wait for them, and for how
//! long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_engine::{DiskHandle, Pool, PoolConfig, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{Completion, IoBuf, MemoryStore, Store};
use futures_util::future::join_all;

/// Bytes covered by one leaf of a map.
const LEAF: u64 = 1 << 20;
const LEAVES: u64 = 1024;

/// A store of which each operation takes `latency`, regardless of the number of concurrent operations.
struct Far {
    inner: Arc<MemoryStore>,
    latency: Duration,
    reading: Arc<AtomicUsize>,
    /// Reads that began when no other was in flight: approximately the number of sequential reads.
    turns: Arc<AtomicUsize>,
}

impl Far {
    fn new(inner: Arc<MemoryStore>, latency: Duration) -> Arc<Far> {
        Arc::new(Far { inner, latency, reading: Arc::default(), turns: Arc::default() })
    }
}

impl Store for Far {
    forebay_store::forward_store!(inner; except append, sync, read);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let (inner, latency) = (self.inner.clone(), self.latency);
        Completion::of(async move {
            tokio::time::sleep(latency).await;
            inner.append(id, offset, data, expected).await
        })
    }
    fn sync(&self, id: SegmentId) -> Completion<()> {
        let (inner, latency) = (self.inner.clone(), self.latency);
        Completion::of(async move {
            tokio::time::sleep(latency).await;
            inner.sync(id).await
        })
    }
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        let (inner, latency) = (self.inner.clone(), self.latency);
        let (reading, turns) = (self.reading.clone(), self.turns.clone());
        Completion::of(async move {
            if reading.fetch_add(1, SeqCst) == 0 {
                turns.fetch_add(1, SeqCst);
            }
            tokio::time::sleep(latency).await;
            reading.fetch_sub(1, SeqCst);
            inner.read(id, offset, len).await
        })
    }
}

/// Offsets to which the guest with scattered writes writes: a block in each leaf, far apart on the store.
fn places() -> impl Iterator<Item = u64> + Clone {
    (0..LEAVES).map(|n| (n * 389 % LEAVES) * LEAF)
}

fn small() -> PoolConfig {
    PoolConfig { write_buffer: 32 << 20, ..config() }
}

/// A store with a closed pool: a disk with two blocks in each leaf of its map, and an empty one.
async fn prepared() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, small()).await;
    pool.create_volume("scattered", LEAVES * LEAF, SyncMode::Flush, 0).await.unwrap();
    pool.create_volume("near", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    let disk = pool.attach("scattered").unwrap();
    for at in places() {
        disk.write(at, &noise(at + 1, 8192), false).await.unwrap();
    }
    drop(disk);
    pool.close().await.unwrap();
    store
}

async fn open_far(store: &Arc<MemoryStore>, config: PoolConfig, latency: Duration) -> (Arc<Pool>, Arc<Far>) {
    let far = Far::new(store.clone(), latency);
    let pool = Pool::open(far.clone(), Arc::new(TestHost(Instant::now())), config).await.unwrap();
    (pool, far)
}

/// Median latency of flushes of a small write.
async fn flushes(near: &DiskHandle, count: u64) -> Duration {
    let mut took = Vec::new();
    for n in 0..count {
        near.write(n * 4096, &noise(7000 + n, 4096), false).await.unwrap();
        let begin = Instant::now();
        near.flush().await.unwrap();
        took.push(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took.sort_unstable();
    took[took.len() / 2]
}

/// One guest writes parts of blocks all over its disk, as fast as they are accepted; another flushes.
#[tokio::test]
async fn scattered_writes_of_one_guest_do_not_stall_the_flush_of_another() {
    let store = prepared().await;
    let (pool, _) = open_far(&store, small(), Duration::from_millis(10)).await;
    let (near, scattered) = (pool.attach("near").unwrap(), pool.attach("scattered").unwrap());
    let alone = flushes(&near, 9).await;
    let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let writers = join_all((0..32).map(|writer| {
        let (scattered, stop, written) = (&scattered, &stop, &written);
        async move {
            for at in places().skip(writer).step_by(32) {
                if stop.load(SeqCst) {
                    break;
                }
                scattered.write(at + 512, &noise(at + 2, 512), false).await.unwrap();
                written.fetch_add(1, SeqCst);
            }
        }
    }));
    let (_, with_writes) = tokio::join!(writers, async {
        let with_writes = flushes(&near, 15).await;
        stop.store(true, SeqCst);
        with_writes
    });
    let written = written.load(SeqCst);
    assert!(written >= 50, "{written} writes concurrent with the flushes");
    assert!(with_writes <= alone * 3, "{with_writes:?} with scattered writes, {alone:?} alone");
    // The data is correct.
    drop((near, pool.flush().await.unwrap()));
    for at in places().take(32) {
        let mut wanted = noise(at + 1, 8192);
        wanted[512..1024].copy_from_slice(&noise(at + 2, 512));
        let found = read(&scattered, at, 8192).await;
        assert!(found == wanted || found == noise(at + 1, 8192), "block at {at}");
    }
}

/// With almost no cache, nodes that were read ahead are evicted, so that the commit must read them again:
/// many at a time. Sequentially, it would be a node and a base for each block.
#[tokio::test]
async fn a_commit_reads_nodes_concurrently() {
    let store = prepared().await;
    let config = PoolConfig { read_cache: 0, map_cache: 0, ..small() };
    let (pool, far) = open_far(&store, config, Duration::from_millis(1)).await;
    let scattered = pool.attach("scattered").unwrap();
    let before = far.turns.load(SeqCst);
    for at in places() {
        scattered.write(at + 512, &noise(at + 2, 512), false).await.unwrap();
    }
    scattered.flush().await.unwrap();
    let turns = far.turns.load(SeqCst) - before;
    println!("{turns} sequential reads");
    assert!(turns < LEAVES as usize, "{turns} sequential reads for {LEAVES} blocks");
    for at in places() {
        let mut wanted = noise(at + 1, 8192);
        wanted[512..1024].copy_from_slice(&noise(at + 2, 512));
        assert!(read(&scattered, at, 8192).await == wanted, "block at {at}");
    }
    drop(scattered);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}
