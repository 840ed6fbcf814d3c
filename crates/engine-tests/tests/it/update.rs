//! Atomic updates: no write is lost between reading and writing, whatever is written concurrently.

use std::future::poll_fn;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::Poll;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, PoolConfig, SyncMode};
use forebay_store::MemoryStore;

/// With no read cache, reads after a commit access the store, so that they take time.
fn config() -> PoolConfig {
    PoolConfig { read_cache: 0, ..crate::common::config() }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Increments the number at the start of each block or sector in `bytes`.
fn increment(bytes: &mut [u8], unit: usize) -> ControlFlow<()> {
    let now = number(bytes);
    for part in bytes.chunks_mut(unit) {
        assert_eq!(number(part), now, "an update saw a part of another one");
        part[..8].copy_from_slice(&(now + 1).to_le_bytes());
    }
    Continue(())
}

const TASKS: u64 = 6;
const TIMES: u64 = 60;
/// Offsets and lengths of the counters: a sector, the next sector, a block, three blocks that begin in the
/// middle of one, and bytes that are not whole sectors.
const COUNTERS: [(u64, u64, usize); 5] =
    [(1024, 512, 512), (1536, 512, 512), (8192, 4096, 512), (18_432, 12_288, 4096), (40_000, 100, 100)];

async fn count(disk: Arc<DiskHandle>, task: u64) {
    for n in 0..TIMES {
        for (at, len, unit) in COUNTERS {
            let done = disk.update(at, len, n % 16 == task, |bytes| increment(bytes, unit)).await;
            assert!(done.unwrap().is_continue());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_increment_is_lost() {
    for sync in [SyncMode::Flush, SyncMode::Always] {
        let store = Arc::new(MemoryStore::new());
        let pool = open_with(&store, config()).await;
        pool.create_volume("v", 1 << 20, sync, 0).await.unwrap();
        let v = pool.attach("v").unwrap();
        let mut tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(count(v.clone(), task))).collect();
        let beside = v.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0..TIMES {
                // In the blocks of the counters, next to them.
                beside.write(2048, &noise(n, 2048), false).await.unwrap();
                beside.write(17_920, &noise(n + 1, 512), false).await.unwrap();
                beside.write(40_200, &noise(n + 2, 8), false).await.unwrap();
                beside.write_zeroes(4096, 4096, n % 2 == 0, false).await.unwrap();
                beside.flush().await.unwrap();
            }
        }));
        for task in tasks {
            task.await.unwrap();
        }
        v.flush().await.unwrap();
        let writes = v.stats().write.ops;
        assert_eq!(writes, TASKS * TIMES * COUNTERS.len() as u64 + 3 * TIMES);
        let crashed = left_by_crash(&store).await;
        let pool = open_with(&crashed, config()).await;
        let v = pool.attach("v").unwrap();
        for (at, len, unit) in COUNTERS {
            let bytes = read(&v, at, len as usize).await;
            bytes.chunks(unit).for_each(|part| assert_eq!(number(part), TASKS * TIMES, "at {at}"));
        }
        assert_eq!(read(&v, 2048, 2048).await, noise(TIMES - 1, 2048));
        assert_eq!(read(&v, 40_200, 8).await, noise(TIMES + 1, 8));
    }
}

#[tokio::test]
async fn a_rejected_update_writes_nothing() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(4096, &[7; 8192], false).await.unwrap();
    let seen = v.update(5000, 6000, false, |bytes| {
        let seen = bytes.to_vec();
        bytes.fill(9);
        Break(seen)
    });
    assert_eq!(seen.await.unwrap(), Break(vec![7; 6000]));
    assert_eq!(read(&v, 4096, 8192).await, [7; 8192]);
    let stats = v.stats();
    assert_eq!((stats.write.ops, stats.read.bytes), (1, 6000 + 8192));
    assert_eq!(v.update(0, 0, false, |bytes| Break(bytes.len())).await.unwrap(), Break(0));

    let beyond = v.update((1 << 20) - 512, 1024, false, |_| Break(())).await;
    assert!(matches!(beyond, Err(Error::OutOfRange)));
    pool.create_snapshot("v", "s").await.unwrap();
    let refused = pool.attach("v@s").unwrap().update(0, 512, false, |_| Break(())).await;
    assert!(matches!(refused, Err(Error::ReadOnly(_))));
}

/// On a disk whose every answer is durable, an answer must not reveal data that is not durable yet.
#[tokio::test]
async fn on_a_write_through_disk_an_update_waits_for_the_data_that_it_read() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", 1 << 20, SyncMode::Always, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    let data = [7; 4096];
    let write = v.write(0, &data, false);
    tokio::pin!(write);
    let waits = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "the update waits for the commit");
    let seen = v.update(0, 512, false, |bytes| Break(bytes.to_vec())).await.unwrap();
    assert_eq!(seen, Break(vec![7; 512]));
    let crashed = left_by_crash(&store).await;
    let pool = open_with(&crashed, config()).await;
    assert_eq!(read(&pool.attach("v").unwrap(), 0, 4096).await, [7; 4096]);
    write.await.unwrap();
}

/// A copy by reference reaches the map without having been in the buffer: an update that read a block before
/// the copy must not write its result over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_update_restarts_if_a_copy_replaced_its_blocks() {
    const STEP: u64 = 1 << 20;
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config()).await;
    for name in ["from", "to"] {
        pool.create_volume(name, 1 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    let (from, to) = (pool.attach("from").unwrap(), pool.attach("to").unwrap());
    let copied = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let counters: Vec<_> = (0..4)
        .map(|_| {
            let (to, copied, done) = (to.clone(), copied.clone(), done.clone());
            tokio::spawn(async move {
                while done.load(SeqCst) == 0 {
                    let least = copied.load(SeqCst);
                    let update = to.update(8192, 8192, false, |bytes| {
                        assert!(number(bytes) >= least, "{} after a copy of {least}", number(bytes));
                        increment(bytes, 4096)
                    });
                    assert!(update.await.unwrap().is_continue());
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for n in 1..=40 {
        let mut blocks = [0; 8192];
        blocks.chunks_mut(4096).for_each(|b| b[..8].copy_from_slice(&(n * STEP).to_le_bytes()));
        from.write(4096, &blocks, false).await.unwrap();
        to.copy_from(8192, &from, 4096, 8192).await.unwrap();
        copied.store(n * STEP, SeqCst);
    }
    done.store(1, SeqCst);
    for counter in counters {
        counter.await.unwrap();
    }
}
