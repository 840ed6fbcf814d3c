//! A full store: the pool survives it at an append, and latches at a sync or a superblock write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_engine::{DiskHandle, Error, Pool, PoolConfig, SyncMode};
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, MemoryStore, Store, When};

const SEEDS: u64 = 12;

/// A pool with one volume, of which the first megabyte is written and flushed.
async fn begin(seed: u64) -> (Arc<FaultyStore>, Arc<Pool>, Arc<DiskHandle>) {
    begin_with(seed, false).await
}

/// The same; with `fua`, no change was answered before it was durable.
async fn begin_with(seed: u64, fua: bool) -> (Arc<FaultyStore>, Arc<Pool>, Arc<DiskHandle>) {
    let store = FaultyStore::new(seed);
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 1 << 20), fua).await.unwrap();
    v.flush().await.unwrap();
    (store, pool, v)
}

/// Waits until the pool has latched, and verifies that it stays latched.
async fn expect_latch(pool: &Pool, v: &DiskHandle) {
    let until = Instant::now() + Duration::from_secs(60);
    while !matches!(v.flush().await, Err(Error::Latched(_))) {
        assert!(Instant::now() < until, "the pool did not latch");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(v.write(2 << 20, &[1; 4096], false).await, Err(Error::Latched(_))));
    assert!(matches!(v.flush().await, Err(Error::Latched(_))));
    assert!(matches!(pool.checkpoint().await, Err(Error::Latched(_))));
}

/// The flushed megabyte is present, even after a power loss.
async fn expect_first(store: &FaultyStore) {
    store.clear_faults();
    store.crash(Crash::PowerLoss);
    let pool = open_with(&store.reopen(), config()).await;
    let v = pool.attach("v").unwrap();
    assert!(read(&v, 0, 1 << 20).await == noise(1, 1 << 20));
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_sync_on_a_full_store_latches_the_pool() {
    for seed in 0..SEEDS {
        let (store, pool, v) = begin(seed).await;
        store.inject(FaultyOp::Sync, Fault::Full, When::After(0));
        v.write(1 << 20, &noise(2, 256 << 10), false).await.unwrap();
        let flushed = v.flush().await;
        assert!(matches!(flushed, Err(Error::Latched(_) | Error::Store(_))), "seed {seed}: {flushed:?}");
        expect_latch(&pool, &v).await;
        expect_first(&store).await;
    }
}

#[tokio::test]
async fn a_superblock_write_on_a_full_store_latches_the_pool() {
    for seed in 0..SEEDS {
        let (store, pool, v) = begin(seed).await;
        store.inject(FaultyOp::Swap, Fault::Full, When::After(0));
        let made = pool.checkpoint().await;
        assert!(matches!(made, Err(Error::Store(_))), "seed {seed}: {made:?}");
        expect_latch(&pool, &v).await;
        expect_first(&store).await;
    }
}

/// The epoch is raised before the group is written again.
#[tokio::test]
async fn a_new_epoch_on_a_full_store_latches_the_pool() {
    for seed in 0..SEEDS {
        let (store, pool, v) = begin(seed).await;
        store.inject(FaultyOp::Append, Fault::Full, When::After(0));
        store.inject(FaultyOp::Swap, Fault::Full, When::After(0));
        v.write(1 << 20, &noise(2, 256 << 10), false).await.unwrap();
        let flushed = v.flush().await;
        assert!(matches!(flushed, Err(Error::Latched(_))), "seed {seed}: {flushed:?}");
        expect_latch(&pool, &v).await;
        expect_first(&store).await;
    }
}

/// A segment that is ended in order, by a close, is synced.
#[tokio::test]
async fn a_failed_sync_of_a_footer_fails_the_close() {
    for seed in 0..SEEDS {
        // Otherwise the close commits the removal of the mark first.
        let (store, pool, v) = begin_with(seed, true).await;
        store.inject(FaultyOp::Sync, Fault::Full, When::After(0));
        drop(v);
        let closed = pool.close().await;
        assert!(matches!(closed, Err(Error::Store(_))), "seed {seed}: {closed:?}");
        expect_first(&store).await;
    }
}

/// Nothing was promised: the group is written again.
#[tokio::test]
async fn an_append_on_a_full_store_is_retried() {
    for seed in 0..SEEDS {
        let (store, pool, v) = begin(seed).await;
        store.inject(FaultyOp::Append, Fault::Full, When::After(0));
        v.write(1 << 20, &noise(2, 256 << 10), false).await.unwrap();
        v.flush().await.unwrap();
        drop((v, pool));
        store.crash(Crash::PowerLoss);
        let pool = open_with(&store.reopen(), config()).await;
        let v = pool.attach("v").unwrap();
        assert!(read(&v, 1 << 20, 256 << 10).await == noise(2, 256 << 10), "seed {seed}");
        expect_first(&store).await;
    }
}

/// If there is no room for a footer or for deleting an object, only that operation is skipped.
#[tokio::test]
async fn failed_footers_and_deletions_on_a_full_store_are_tolerated() {
    for seed in 0..SEEDS {
        let (store, pool, v) = begin(seed).await;
        v.write(0, &noise(1, 1 << 20), false).await.unwrap();
        v.discard(1 << 20, 1 << 20, false).await.unwrap();
        v.write(3 << 20, &noise(3, 1 << 20), false).await.unwrap();
        v.flush().await.unwrap();
        v.discard(3 << 20, 1 << 20, false).await.unwrap();
        v.flush().await.unwrap();
        store.inject(FaultyOp::Append, Fault::Full, When::After(0));
        store.inject(FaultyOp::Delete, Fault::Full, When::After(0));
        let first = pool.reclaim(&|_| ()).await;
        assert!(matches!(first, Ok(_) | Err(Error::NoSpace)), "seed {seed}: {first:?}");
        pool.reclaim(&|_| ()).await.unwrap();
        drop(v);
        pool.close().await.unwrap();
        expect_first(&store.reopen()).await;
    }
}

/// The remains of an interrupted import are removed as soon as there is room; a full store opens without
/// removing them.
#[tokio::test]
async fn a_full_pool_with_an_interrupted_import_opens() {
    let store = FaultyStore::new(1);
    let pool = open_with(&store, config()).await;
    let import = pool.begin_import("golden", 4 << 20, 0).await.unwrap();
    import.write(0, &noise(1, 1 << 20), false).await.unwrap();
    pool.flush().await.unwrap();
    drop((import, pool));
    store.crash(Crash::Kill);
    let store = store.reopen();
    store.inject(FaultyOp::Append, Fault::Full, When::From(0));
    let pool = open_with(&store, config()).await;
    store.clear_faults();
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(e) = pool.begin_import("golden", 4 << 20, 0).await {
        assert!(matches!(e, Error::Exists(_)) && Instant::now() < until, "{e}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while pool.reclaim(&|_| ()).await.unwrap() < 1 << 20 {
        assert!(Instant::now() < until, "the room of the import is not freed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.close().await.unwrap();
}

/// Another user of the file system took all room but the last part of a segment: a deletion still frees what
/// it can, although a checkpoint has to begin a segment first.
#[tokio::test]
async fn a_store_with_less_room_than_a_segment_is_reclaimed() {
    let store = Arc::new(MemoryStore::new());
    let config = PoolConfig { reclaim_pause: Duration::from_secs(3600), ..config() };
    let segment = u64::from(config.segment_bytes);
    let pool = open_with(&store, config.clone()).await;
    for (seed, name) in [(1, "v"), (2, "w")] {
        pool.create_volume(name, 4 << 20, SyncMode::Flush, 0).await.unwrap();
        let disk = pool.attach(name).unwrap();
        disk.write(0, &noise(seed, 4 << 20), false).await.unwrap();
        disk.flush().await.unwrap();
    }
    pool.delete("w").await.unwrap();
    pool.close().await.unwrap();
    let pool = open_with(&store, config.clone()).await;
    let room = store.capacity().await.unwrap();
    store.set_capacity(room.total - room.free + segment / 4);
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(store.capacity().await.unwrap().free > 4 << 20, "the volume that was deleted is free");
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(9, 64 << 10), true).await.unwrap();
    assert!(read(&v, 0, 64 << 10).await == noise(9, 64 << 10));
    pool.close().await.unwrap();
}
