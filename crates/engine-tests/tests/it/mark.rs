//! The mark: its cost, and its behaviour if a map is damaged.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, PoolConfig, SyncMode};
use forebay_store::{MemoryStore, Store};

/// No map stays in memory, and reclaims run only on request.
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
async fn adjacent_nodes_are_read_together() {
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
    // And a clone with a few changed blocks: sparse leaves with a base.
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
    // The leaves of either disk and the bases of the clone's; each a second time, to compute the exclusive
    // space.
    assert!(ops <= LEAVES / 4, "{ops} reads");
    assert!(bytes / ops <= 256 << 10, "{bytes} bytes in {ops} reads");
    let space = pool.disk_stats("c").unwrap().space.unwrap();
    assert_eq!(space.mapped_bytes, LEAVES * LEAF * 4096);
}

/// The batches of a checkpoint follow the batch up to which it is valid. If recovery finds the first of them
/// damaged, the segment is in no table; but it may hold sound nodes that are in use.
#[tokio::test]
async fn a_segment_missing_from_the_table_is_kept_while_it_is_needed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, cold()).await;
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 4 << 20), false).await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    // The last segment is that of the checkpoint. Its first batch begins after the header.
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
    // When no disk needs it any more it is deleted.
    pool.delete("v").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(store.list().await.unwrap().iter().all(|o| o.id != last));
}

const MIB: u64 = 1 << 20;

/// Flips a bit in each node of level 0 from leaf `first` on; a second call undoes it.
async fn flip_leaves(store: &MemoryStore, first: u64) -> usize {
    let mut flipped = 0;
    for object in store.list().await.unwrap() {
        store.damage(object.id, |bytes| {
            for node in bytes.chunks_exact_mut(64).filter(|b| b.starts_with(b"FBMN") && b[4] == 0) {
                if u64::from_le_bytes(node[8..16].try_into().unwrap()) >= first {
                    node[40] ^= 1;
                    flipped += 1;
                }
            }
        });
    }
    flipped
}

/// Writes noise.
async fn fill(disk: &DiskHandle, mibs: std::ops::Range<u64>, of: u64) {
    for mib in mibs {
        disk.write(mib * MIB, &noise(of << 32 | mib, MIB as usize), false).await.unwrap();
    }
    disk.flush().await.unwrap();
}

async fn verify(disk: &DiskHandle, mibs: std::ops::Range<u64>, of: u64) {
    for mib in mibs {
        assert!(
            read(disk, mib * MIB, MIB as usize).await == noise(of << 32 | mib, MIB as usize),
            "MiB {mib}"
        );
    }
}

async fn stored(store: &MemoryStore) -> u64 {
    store.list().await.unwrap().iter().map(|o| o.len).sum()
}

/// Data below a damaged node is kept, younger garbage is freed nevertheless, and all space is freed when the
/// disks that reference the node are deleted.
#[tokio::test]
async fn a_damaged_node_keeps_only_the_data_that_may_be_below_it() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, cold()).await;
    for name in ["sound", "bad"] {
        pool.create_volume(name, 200 * MIB, SyncMode::Flush, 0).await.unwrap();
    }
    // The leaves of 'bad' from number 100 on will be damaged, those before will not. A leaf covers one MiB.
    fill(&pool.attach("sound").unwrap(), 0..16, 1).await;
    fill(&pool.attach("bad").unwrap(), 0..4, 2).await;
    fill(&pool.attach("bad").unwrap(), 100..116, 2).await;
    pool.create_snapshot("bad", "s").await.unwrap();
    pool.clone_disk("bad@s", &[clone("copy")]).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(flip_leaves(&store, 100).await, 16);

    let pool = open_with(&store, cold()).await;
    let sound = pool.attach("sound").unwrap();
    sound.discard(8 * MIB, 8 * MIB, false).await.unwrap();
    sound.flush().await.unwrap();
    // Data created and deleted after the damage is ordinary garbage.
    pool.create_volume("young", 16 * MIB, SyncMode::Flush, 0).await.unwrap();
    fill(&pool.attach("young").unwrap(), 0..16, 3).await;
    pool.delete("young").await.unwrap();
    let before = stored(&store).await;
    let refused = pool.reclaim(&|_| ()).await.unwrap_err();
    let Error::MapsDamaged { disks, freed_bytes } = &refused else { panic!("{refused}") };
    assert_eq!(disks, "'bad', 'bad@s', 'copy'");
    assert!((15 * MIB..18 * MIB).contains(freed_bytes), "{refused}");
    assert!(stored(&store).await < before - 15 * MIB);
    let space = pool.stats().await.space.unwrap();
    assert_eq!(space.damaged_disks, 3);
    assert!(space.reclaimable_bytes < 2 * MIB, "{space:?}");
    assert_eq!(pool.disk_stats("sound").unwrap().space.unwrap().mapped_bytes, 8 * MIB);
    assert_eq!(pool.disk_stats("bad").unwrap().space.unwrap().mapped_bytes, 4 * MIB);
    verify(&sound, 0..8, 1).await;
    verify(&pool.attach("bad").unwrap(), 0..4, 2).await;
    let mut out = [0; 4096];
    let damaged = pool.attach("copy").unwrap().read(100 * MIB, &mut out).await;
    assert!(matches!(damaged, Err(Error::Damaged(_))), "{damaged:?}");
    drop(sound);
    pool.close().await.unwrap();

    // If the nodes became intact again, all data would be present.
    flip_leaves(&store, 100).await;
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open_with(&store, cold()).await;
    for name in ["bad", "bad@s", "copy"] {
        let disk = pool.attach(name).unwrap();
        verify(&disk, 0..4, 2).await;
        verify(&disk, 100..116, 2).await;
    }
    pool.close().await.unwrap();
    flip_leaves(&store, 100).await;

    let pool = open_with(&store, cold()).await;
    for name in ["copy", "bad@s", "bad"] {
        assert!(matches!(pool.reclaim(&|_| ()).await, Err(Error::MapsDamaged { .. })));
        pool.delete(name).await.unwrap();
    }
    let freed = pool.reclaim(&|_| ()).await.unwrap();
    assert!(freed > 27 * MIB, "{freed}");
    assert!(stored(&store).await < 10 * MIB);
    assert_eq!(pool.stats().await.space.unwrap().damaged_disks, 0);
    verify(&pool.attach("sound").unwrap(), 0..8, 1).await;
    pool.close().await.unwrap();
    // The damaged nodes are still next to sound ones, and belong to no disk.
    let problems = check(&store).await;
    assert!(
        problems.iter().all(|p| p.starts_with("a batch is damaged") && p.ends_with("of []")),
        "{problems:?}"
    );
}
