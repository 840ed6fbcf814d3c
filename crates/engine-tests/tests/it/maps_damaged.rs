//! Block maps with a node that cannot be read, temporarily or permanently, while a change needs it.

use std::ops::Range;
use std::sync::Arc;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, Pool, SegmentId, SyncMode};
use forebay_store::{Fault, FaultyOp, FaultyStore, Store, When};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Number of blocks of each MiB of `v` that are written in advance: more than a leaf that is copied to be
/// changed may list, and fewer than a full leaf has.
const WRITTEN: u64 = 100;

async fn try_open(store: &FaultyStore) -> forebay_engine::Result<Arc<Pool>> {
    try_open_with(&store.reopen(), cold_config()).await
}

async fn open(store: &FaultyStore) -> Arc<Pool> {
    try_open(store).await.unwrap()
}

/// Ends a pool in order, with a checkpoint, or by a crash; in the latter case the next `open` ends it.
async fn end(pool: Arc<Pool>, in_order: bool) {
    if in_order {
        pool.close().await.unwrap();
    }
}

fn is_damaged<T>(done: forebay_engine::Result<T>) -> bool {
    // For a reader, an error of the medium is an error of the store.
    matches!(done, Err(Error::Damaged(_) | Error::Format(_) | Error::Store(_)))
}

async fn try_read(disk: &DiskHandle, block: u64) -> forebay_engine::Result<Vec<u8>> {
    let mut out = vec![0xee; BLOCK as usize];
    disk.read(block * BLOCK, &mut out).await.map(|()| out)
}

async fn problems(store: &FaultyStore) -> Vec<String> {
    check(&store.reopen()).await
}

/// The content of a block after its `time`th write.
fn content(block: u64, time: u64) -> Vec<u8> {
    noise(time << 32 | (block + 1), BLOCK as usize)
}

async fn put(disk: &DiskHandle, blocks: Range<u64>, time: u64) {
    for block in blocks {
        disk.write(block * BLOCK, &content(block, time), false).await.unwrap();
    }
}

/// Asserts that the blocks have the contents of their `time`th write.
async fn hold(disk: &DiskHandle, blocks: Range<u64>, time: u64) {
    for block in blocks {
        assert!(try_read(disk, block).await.unwrap() == content(block, time), "block {block}");
    }
}

async fn are_damaged(disk: &DiskHandle, blocks: Range<u64>) {
    for block in blocks {
        let found = try_read(disk, block).await;
        assert!(is_damaged(found.clone()), "block {block}: {:?}", found.map(|b| b[0]));
    }
}

/// First block of a leaf.
fn leaf(index: u64) -> u64 {
    index * 256
}

/// Volume `v` of `mib` MiB, stored, with the first blocks of each of these leaves written.
async fn volume(store: &FaultyStore, mib: u64, leaves: &[u64]) {
    let pool = open(store).await;
    pool.create_volume("v", mib * MIB, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for index in leaves {
        put(&v, leaf(*index)..leaf(*index) + WRITTEN, 1).await;
        v.flush().await.unwrap();
        // So that no two leaves share a sector.
        pool.checkpoint().await.unwrap();
    }
    drop(v);
    pool.close().await.unwrap();
    // The batches of the last checkpoint are read as a part of the log when the pool is opened; therefore
    // another one follows.
    let pool = open(store).await;
    pool.create_volume("young", MIB, SyncMode::Flush, 0).await.unwrap();
    pool.delete("young").await.unwrap();
    pool.close().await.unwrap();
}

/// How a node is made unreadable.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Sector,
    Rot,
}

/// Makes the node of a level and number unreadable, wherever it is stored; returns the number of copies.
async fn damage(store: &FaultyStore, how: How, level: u8, index: u64) -> usize {
    let reader = store.reopen();
    let mut found: Vec<(SegmentId, u64)> = Vec::new();
    for object in reader.list().await.unwrap() {
        let bytes = reader.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        let is_it =
            |node: &[u8]| node.starts_with(b"FBMN") && node[4] == level && node[8..16] == index.to_le_bytes();
        let nodes = bytes.chunks_exact(64).enumerate().filter(|(_, node)| is_it(node));
        found.extend(nodes.map(|(i, _)| (object.id, i as u64 * 64)));
    }
    for (segment, at) in &found {
        match how {
            How::Sector => store.break_sectors(*segment, *at..at + 64),
            How::Rot => assert!(store.flip_bit(*segment, at + 40, 1)),
        }
    }
    found.len()
}

const KINDS: [How; 2] = [How::Sector, How::Rot];

#[tokio::test]
async fn a_temporarily_unreadable_node_loses_nothing() {
    for (fault, in_order) in [(Fault::Io, false), (Fault::NoFiles, true)] {
        let store = FaultyStore::new(1);
        volume(&store, 16, &[3, 5]).await;
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        put(&v, leaf(3)..leaf(3) + 1, 2).await;
        store.inject(FaultyOp::Read, fault, When::After(0));
        store.inject(FaultyOp::Read, fault, When::After(1));
        v.flush().await.unwrap();
        assert!(!pool.disk("v").unwrap().map_damaged);
        drop(v);
        end(pool, in_order).await;
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        hold(&v, leaf(3)..leaf(3) + 1, 2).await;
        hold(&v, leaf(3) + 1..leaf(3) + WRITTEN, 1).await;
        drop(v);
        pool.close().await.unwrap();
        assert_eq!(problems(&store).await, Vec::<String>::new());
    }
}

/// Changes that are durable in the log and not in the maps must remain for the next recovery: no flush
/// reports success, and no checkpoint covers them.
#[tokio::test]
async fn an_unreadable_store_latches_the_pool_and_marks_no_disk() {
    for fault in [Fault::NoFiles, Fault::Io] {
        stops(fault).await;
    }
}

async fn stops(fault: Fault) {
    let store = FaultyStore::new(2);
    volume(&store, 16, &[3, 5]).await;
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    put(&v, leaf(3)..leaf(3) + 1, 2).await;
    store.inject(FaultyOp::Read, fault, When::Every(1));
    assert!(matches!(v.flush().await, Err(Error::Latched(_))));
    assert!(matches!(pool.checkpoint().await, Err(Error::Latched(_))));
    assert!(matches!(pool.create_snapshot("v", "s").await, Err(Error::Latched(_))));
    store.clear_faults();
    assert!(matches!(pool.checkpoint().await, Err(Error::Latched(_))));
    assert!(pool.close().await.is_err());
    drop((v, pool));
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    hold(&v, leaf(3)..leaf(3) + 1, 2).await;
    hold(&v, leaf(3) + 1..leaf(3) + WRITTEN, 1).await;
    assert!(!pool.disk("v").unwrap().map_damaged);
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(problems(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn recovery_without_file_descriptors_fails_and_marks_no_disk() {
    let store = FaultyStore::new(3);
    volume(&store, 16, &[3, 5]).await;
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    put(&v, leaf(3)..leaf(3) + 1, 2).await;
    put(&v, leaf(5)..leaf(5) + 1, 2).await;
    v.flush().await.unwrap();
    drop((v, pool));
    let mut failed = 0;
    for first in (0..24).step_by(3) {
        (first..first + 20).for_each(|n| store.inject(FaultyOp::Read, Fault::NoFiles, When::After(n)));
        match try_open(&store).await {
            Ok(pool) => assert!(!pool.disk("v").unwrap().map_damaged),
            Err(e) => {
                assert!(matches!(e, Error::Store(_)), "{e}");
                failed += 1;
            }
        }
        store.clear_faults();
    }
    assert!(failed > 1, "{failed}");
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    for index in [3, 5] {
        hold(&v, leaf(index)..leaf(index) + 1, 2).await;
        hold(&v, leaf(index) + 1..leaf(index) + WRITTEN, 1).await;
    }
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(problems(&store).await, Vec::<String>::new());
}

/// The group writes to a damaged leaf and to a sound one; a later group does so again.
#[tokio::test]
async fn a_damaged_leaf_loses_no_flushed_write() {
    for (how, in_order) in [(How::Sector, true), (How::Sector, false), (How::Rot, true), (How::Rot, false)] {
        let store = FaultyStore::new(4);
        volume(&store, 16, &[3, 5]).await;
        assert!(damage(&store, how, 0, 3).await > 0);
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        // Before the damaged leaf, in it at listed and unlisted entries, and after it.
        for time in [2, 3] {
            put(&v, leaf(1)..leaf(1) + time, time).await;
            put(&v, leaf(3) + 10..leaf(3) + 12, time).await;
            put(&v, leaf(3) + 200..leaf(3) + 201, time).await;
            put(&v, leaf(5)..leaf(5) + 1, time).await;
            v.flush().await.unwrap();
        }
        drop(v);
        let (mut pool, mut ended) = (pool, 0);
        loop {
            let v = pool.attach("v").unwrap();
            hold(&v, leaf(1)..leaf(1) + 3, 3).await;
            hold(&v, leaf(3) + 10..leaf(3) + 12, 3).await;
            hold(&v, leaf(3) + 200..leaf(3) + 201, 3).await;
            are_damaged(&v, leaf(3)..leaf(3) + 10).await;
            are_damaged(&v, leaf(3) + 12..leaf(3) + 14).await;
            are_damaged(&v, leaf(3) + 201..leaf(3) + 203).await;
            hold(&v, leaf(5)..leaf(5) + 1, 3).await;
            hold(&v, leaf(5) + 1..leaf(5) + WRITTEN, 1).await;
            drop(v);
            assert!(pool.disk("v").unwrap().map_damaged && pool.disks()[0].map_damaged, "{how:?} {ended}");
            for refused in [
                pool.clone_disk("v", &[clone("c")]).await.map(drop),
                pool.create_snapshot("v", "s").await.map(drop),
                pool.create_image("i", "v").await.map(drop),
            ] {
                assert!(matches!(refused, Err(Error::MapDamaged(_))), "{refused:?}");
            }
            assert_eq!(pool.disks().len(), 1);
            end(pool, in_order || ended == 1).await;
            let found = problems(&store).await;
            let named =
                |p: &String| p.contains("a node of a block map cannot be read") && p.contains(r#"["v"]"#);
            assert!(found.iter().any(named), "{found:?}");
            if ended == 2 {
                break;
            }
            ended += 1;
            pool = open(&store).await;
        }
        if how == How::Sector {
            // A damaged leaf that is the base of its stand-in is intact when it is readable again.
            store.mend_sectors();
            let pool = open(&store).await;
            let v = pool.attach("v").unwrap();
            hold(&v, leaf(3)..leaf(3) + 10, 1).await;
            hold(&v, leaf(3) + 10..leaf(3) + 12, 3).await;
            drop(v);
            pool.reclaim(&|_| ()).await.unwrap();
            assert!(!pool.disk("v").unwrap().map_damaged);
            pool.create_snapshot("v", "s").await.unwrap();
        }
    }
}

#[tokio::test]
async fn overwriting_or_discarding_damaged_blocks_repairs_the_disk() {
    for (how, discard) in [(How::Sector, true), (How::Rot, false)] {
        let store = FaultyStore::new(5);
        volume(&store, 16, &[3, 5]).await;
        damage(&store, how, 0, 3).await;
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        // More entries than a sparse leaf with a base can list: the others are lost.
        put(&v, leaf(3)..leaf(3) + 240, 2).await;
        v.flush().await.unwrap();
        hold(&v, leaf(3)..leaf(3) + 240, 2).await;
        are_damaged(&v, leaf(3) + 240..leaf(4)).await;
        drop(v);
        pool.close().await.unwrap();
        let found = problems(&store).await;
        assert!(found.iter().any(|p| p.contains("a block is lost") && p.contains(r#"["v"]"#)), "{found:?}");
        let pool = open(&store).await;
        assert!(pool.disk("v").unwrap().map_damaged);
        let v = pool.attach("v").unwrap();
        hold(&v, leaf(3)..leaf(3) + 240, 2).await;
        are_damaged(&v, leaf(3) + 240..leaf(4)).await;
        if discard {
            v.discard(3 * MIB, MIB, false).await.unwrap();
        } else {
            put(&v, leaf(3) + 240..leaf(4), 2).await;
        }
        v.flush().await.unwrap();
        pool.reclaim(&|_| ()).await.unwrap();
        assert!(!pool.disk("v").unwrap().map_damaged);
        pool.create_snapshot("v", "s").await.unwrap();
        drop(v);
        pool.close().await.unwrap();
        // The batch of the damaged node is reported as damaged as long as it exists.
        store.mend_sectors();
        let found = problems(&store).await;
        assert!(found.iter().all(|p| p.ends_with("of []")), "{found:?}");
    }
}

/// An inner node: 256 MiB, or the whole disk.
#[tokio::test]
async fn a_damaged_inner_node_accepts_writes_below_it() {
    for (how, level, in_order) in
        [(How::Rot, 1, true), (How::Sector, 1, false), (How::Rot, 2, false), (How::Sector, 2, true)]
    {
        let store = FaultyStore::new(6);
        volume(&store, 512, &[3, 5, 300]).await;
        assert!(damage(&store, how, level, 0).await > 0);
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        put(&v, leaf(3) + 10..leaf(3) + 12, 2).await;
        v.discard(7 * MIB, 2 * MIB, false).await.unwrap();
        v.discard(9 * MIB, 8192, false).await.unwrap();
        put(&v, leaf(300)..leaf(300) + 1, 2).await;
        v.flush().await.unwrap();
        drop(v);
        end(pool, in_order).await;
        for in_order in [true, false] {
            let pool = open(&store).await;
            let v = pool.attach("v").unwrap();
            hold(&v, leaf(3) + 10..leaf(3) + 12, 2).await;
            are_damaged(&v, leaf(3)..leaf(3) + 10).await;
            are_damaged(&v, leaf(5)..leaf(5) + 2).await;
            are_damaged(&v, leaf(9) + 2..leaf(9) + 4).await;
            assert!(read(&v, 7 * MIB, 2 * MIB as usize + 8192).await.iter().all(|b| *b == 0));
            hold(&v, leaf(300)..leaf(300) + 1, 2).await;
            if level == 1 {
                hold(&v, leaf(300) + 1..leaf(300) + WRITTEN, 1).await;
            } else {
                are_damaged(&v, leaf(300) + 1..leaf(300) + 3).await;
            }
            drop(v);
            assert!(pool.disk("v").unwrap().map_damaged);
            assert!(matches!(pool.reclaim(&|_| ()).await, Err(Error::MapsDamaged { .. })));
            end(pool, in_order).await;
        }
        let found = problems(&store).await;
        assert!(
            found.iter().any(|p| p.contains("a node of a block map") && p.contains(r#"["v"]"#)),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_disk_with_a_damaged_node_is_resized() {
    for (how, level, in_order) in [(How::Rot, 0, false), (How::Sector, 0, true), (How::Rot, 1, true)] {
        let store = FaultyStore::new(7);
        volume(&store, 512, &[2, 3, 5]).await;
        damage(&store, how, level, if level == 0 { 3 } else { 0 }).await;
        let pool = open(&store).await;
        pool.resize("v", 3 * MIB + 50 * BLOCK).await.unwrap();
        pool.resize("v", 512 * MIB).await.unwrap();
        end(pool, in_order).await;
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        assert_eq!(v.size(), 512 * MIB);
        if level == 0 {
            hold(&v, leaf(2)..leaf(2) + WRITTEN, 1).await;
        }
        are_damaged(&v, leaf(3)..leaf(3) + 50).await;
        assert!(read(&v, (leaf(3) + 50) * BLOCK, 4 * MIB as usize).await.iter().all(|b| *b == 0));
        drop(v);
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn ranges_are_copied_by_reference_to_a_damaged_map_and_not_from_it() {
    for how in KINDS {
        let store = FaultyStore::new(8);
        volume(&store, 16, &[3, 5]).await;
        let pool = open(&store).await;
        pool.create_volume("w", 16 * MIB, SyncMode::Flush, 0).await.unwrap();
        let w = pool.attach("w").unwrap();
        put(&w, leaf(8)..leaf(10), 4).await;
        w.flush().await.unwrap();
        drop(w);
        pool.close().await.unwrap();
        damage(&store, how, 0, 3).await;
        let pool = open(&store).await;
        let (v, w) = (pool.attach("v").unwrap(), pool.attach("w").unwrap());
        let copied = w.copy_from(8 * MIB + BLOCK, &v, 3 * MIB, MIB / 2).await;
        assert!(is_damaged(copied.clone()), "{copied:?}");
        hold(&w, leaf(8)..leaf(10), 4).await;
        assert!(!pool.disk("w").unwrap().map_damaged);
        // Copied by reading, now that the damage is known.
        w.copy_from(9 * MIB, &v, 5 * MIB, 10 * BLOCK).await.unwrap();
        v.copy_from(3 * MIB, &w, 8 * MIB, 20 * BLOCK).await.unwrap();
        drop((v, w));
        assert!(!pool.disk("w").unwrap().map_damaged && pool.disk("v").unwrap().map_damaged);
        pool.close().await.unwrap();
        let pool = open(&store).await;
        let (v, w) = (pool.attach("v").unwrap(), pool.attach("w").unwrap());
        for block in 0..10 {
            assert!(try_read(&w, leaf(9) + block).await.unwrap() == content(leaf(5) + block, 1));
        }
        for block in 0..20 {
            assert!(try_read(&v, leaf(3) + block).await.unwrap() == content(leaf(8) + block, 4));
        }
        are_damaged(&v, leaf(3) + 20..leaf(3) + 30).await;
    }
}

/// The copy was made while everything was readable; recovery repeats it when it no longer is.
#[tokio::test]
async fn replaying_a_copy_from_a_damaged_source_does_not_restore_old_contents() {
    for how in KINDS {
        for to in [3 * MIB, 8 * MIB] {
            let store = FaultyStore::new(9);
            volume(&store, 16, &[3, 5]).await;
            let pool = open(&store).await;
            pool.create_volume("w", 16 * MIB, SyncMode::Flush, 0).await.unwrap();
            let (v, w) = (pool.attach("v").unwrap(), pool.attach("w").unwrap());
            let first = to / BLOCK;
            put(&w, first..first + 256, 4).await;
            w.flush().await.unwrap();
            w.copy_from(to, &v, 3 * MIB, MIB).await.unwrap();
            put(&w, first + 50..first + 51, 5).await;
            w.flush().await.unwrap();
            drop((v, w, pool));
            damage(&store, how, 0, 3).await;
            for in_order in [false, true, true] {
                let pool = open(&store).await;
                let w = pool.attach("w").unwrap();
                hold(&w, first + 50..first + 51, 5).await;
                are_damaged(&w, first..first + 50).await;
                are_damaged(&w, first + 51..first + 60).await;
                assert!(pool.disk("w").unwrap().map_damaged, "{how:?} {to}");
                drop(w);
                end(pool, in_order).await;
            }
        }
    }
}

/// Snapshots and clones that share the damage are marked by a reclaim, and are not copied from either. After
/// a reset to a sound source, a clone is sound.
#[tokio::test]
async fn rollback_and_reset_to_a_damaged_source_are_refused() {
    let store = FaultyStore::new(10);
    volume(&store, 16, &[3, 5]).await;
    let pool = open(&store).await;
    pool.create_snapshot("v", "s").await.unwrap();
    pool.clone_disk("v@s", &[clone("c")]).await.unwrap();
    pool.create_volume("sound", 16 * MIB, SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();
    damage(&store, How::Rot, 0, 3).await;
    let pool = open(&store).await;
    assert!(matches!(pool.reclaim(&|_| ()).await, Err(Error::MapsDamaged { .. })));
    let marked = |pool: &Pool| {
        let disks = pool.disks();
        disks.iter().filter(|d| d.map_damaged).map(|d| d.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(marked(&pool), ["c", "v", "v@s"]);
    assert!(matches!(pool.rollback("v", "s").await, Err(Error::MapDamaged(name)) if name == "v@s"));
    assert!(matches!(pool.reset("c").await, Err(Error::MapDamaged(name)) if name == "v@s"));
    pool.clone_disk("sound", &[clone("fine")]).await.unwrap();
    pool.close().await.unwrap();
    let pool = open(&store).await;
    assert_eq!(marked(&pool), ["c", "v", "v@s"]);
}
