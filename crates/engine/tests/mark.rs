//! The mark: what it costs, and what it does where a map is damaged.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_engine::{PoolConfig, SyncMode};
use forebay_store::{MemoryStore, Store};

/// No map stays in memory, and nothing is reclaimed that was not asked for.
fn cold() -> PoolConfig {
    PoolConfig {
        map_cache: 0,
        checkpoint_bytes: 1 << 30,
        reclaim_pause: Duration::from_secs(3600),
        ..config()
    }
}

/// Blocks of a leaf.
const LEAF: u64 = 256;

#[tokio::test]
async fn neighbouring_nodes_are_read_together() {
    const LEAVES: u64 = 1000;
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { segment_bytes: 8 << 20, ..cold() }).await;
    pool.create_volume("v", LEAVES * LEAF * 4096, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for leaf in 0..LEAVES {
        v.write(leaf * LEAF * 4096, &vec![7; LEAF as usize * 4096], false).await.unwrap();
    }
    v.flush().await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    // And a clone that has changed a block here and there: leaves that stand on others.
    let pool = open_with(&store, cold()).await;
    pool.clone_disk("v", &[clone("c")]).await.unwrap();
    let c = pool.attach("c").unwrap();
    for leaf in 0..LEAVES {
        c.write(leaf * LEAF * 4096, &vec![8; 4096], false).await.unwrap();
    }
    c.flush().await.unwrap();
    drop(c);
    pool.close().await.unwrap();

    let pool = open_with(&store, cold()).await;
    let before = pool.stats().await.store.read;
    pool.reclaim(&|_| ()).await.unwrap();
    let after = pool.stats().await.store.read;
    let (ops, bytes) = (after.ops - before.ops, after.bytes - before.bytes);
    println!("{ops} reads, {bytes} bytes");
    // The leaves of either disk and the bases of the clone's; each once more, to add up who has what alone.
    assert!(ops <= LEAVES / 4, "{ops} reads");
    assert!(bytes / ops <= 256 << 10, "{bytes} bytes in {ops} reads");
    let space = pool.disk_stats("c").unwrap().space.unwrap();
    assert_eq!(space.mapped_bytes, LEAVES * LEAF * 4096);
}

/// What a checkpoint wrote comes after the batch up to which it holds. Where recovery finds the first of it
/// damaged, the segment is in no table; but nodes may rest there that are sound, and in use.
#[tokio::test]
async fn a_segment_that_recovery_does_not_find_is_not_deleted_while_it_is_needed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, cold()).await;
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 4 << 20), false).await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    // The last segment is that of the checkpoint. Its first batch begins behind the header.
    let last = store.list().await.unwrap().pop().unwrap().id;
    store.damage(last, |bytes| {
        assert_eq!(&bytes[4096..4104], b"FBBATCH\0");
        bytes[4100] ^= 1;
    });
    let pool = open_with(&store, cold()).await;
    for _ in 0..2 {
        pool.reclaim(&|_| ()).await.unwrap();
    }
    assert!(read(&pool.attach("v").unwrap(), 0, 4 << 20).await == noise(1, 4 << 20));
    pool.close().await.unwrap();
    let pool = open_with(&store, cold()).await;
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(read(&pool.attach("v").unwrap(), 0, 4 << 20).await == noise(1, 4 << 20));
    // When nobody needs it any more it goes.
    pool.delete("v").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(store.list().await.unwrap().iter().all(|o| o.id != last));
}
