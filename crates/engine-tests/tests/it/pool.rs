//! The engine's public interface, on a store in memory, as used by a front end and an administrator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_engine::{CloneRequest, Error, Fast, Pool, PoolConfig, SyncMode};
use forebay_store::{MemoryStore, Store};

#[tokio::test]
async fn writes_are_read_back_before_and_after_a_restart() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 10 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    assert_eq!(read(&v, 0, 8192).await, vec![0; 8192]);
    v.write(4096, &[1; 8192], false).await.unwrap();
    v.write(512, &[2; 512], false).await.unwrap();
    v.write(5000, &[3; 10], false).await.unwrap();
    let expected = |all: &[u8]| {
        assert_eq!(all[..512], [0; 512]);
        assert_eq!(all[512..1024], [2; 512]);
        assert_eq!(all[1024..4096], [0; 3072]);
        assert_eq!(all[4096..5000], [1; 904]);
        assert_eq!(all[5000..5010], [3; 10]);
        assert_eq!(all[5010..12288], [1; 12288 - 5010]);
    };
    expected(&read(&v, 0, 12288).await);
    v.flush().await.unwrap();
    expected(&read(&v, 0, 12288).await);
    drop(v);
    pool.close().await.unwrap();
    assert!(matches!(pool.create_volume("w", 4096, SyncMode::Flush, 0).await, Err(Error::Closed)));

    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    expected(&read(&v, 0, 12288).await);
    v.write_zeroes(4096, 4096, false, false).await.unwrap();
    v.discard(8192, 100, false).await.unwrap();
    let all = read(&v, 0, 12288).await;
    assert_eq!(all[4096..8192], [0; 4096]);
    assert_eq!(all[8192..12288], [1; 4096]);
}

#[tokio::test]
async fn empty_requests_succeed_at_any_offset() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    // At block boundaries, and between them.
    for offset in [0, 100, 512, 513, 4096, 1 << 20] {
        let at_once = if offset % 512 == 0 { Fast::Done } else { Fast::Wait };
        assert_eq!(v.try_write(offset, &[]).unwrap(), at_once);
        assert_eq!(v.try_read(offset, &mut []).unwrap(), Fast::Done);
        v.read(offset, &mut []).await.unwrap();
        v.write(offset, &[], true).await.unwrap();
        v.write_zeroes(offset, 0, false, true).await.unwrap();
        v.discard(offset, 0, true).await.unwrap();
        v.prefetch(offset, 0).await.unwrap();
        assert!(v.extents(offset, 0, 1).await.unwrap().is_empty());
    }
    assert_eq!(v.stats().write.bytes, 0);
}

#[tokio::test]
async fn a_pool_has_a_limited_number_of_disks() {
    let store = Arc::new(MemoryStore::new());
    let limited = PoolConfig { max_disks: 4, ..config() };
    let pool = open_with(&store, limited.clone()).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    let clones =
        |count| (0..count).map(|i| CloneRequest { name: format!("c{i}"), ..CloneRequest::default() });
    let too_many = |e: Error| assert!(matches!(e, Error::TooManyDisks { most: 4 }), "{e:?}");
    too_many(pool.clone_disk("v@s", &clones(3).collect::<Vec<_>>()).await.unwrap_err());
    assert_eq!(pool.disks().len(), 2, "all clones or none");
    assert_eq!(pool.clone_disk("v@s", &clones(1).collect::<Vec<_>>()).await.unwrap().len(), 1);
    let import = pool.begin_import("i", 1 << 20, 0).await.unwrap();
    too_many(pool.create_volume("w", 1 << 20, SyncMode::Flush, 0).await.unwrap_err());
    too_many(pool.create_snapshot("v", "t").await.unwrap_err());
    too_many(pool.create_image("j", "v").await.unwrap_err());
    too_many(pool.begin_import("j", 1 << 20, 0).await.err().unwrap());
    pool.finish_import(import).await.unwrap();
    pool.delete("c0").await.unwrap();
    pool.create_volume("w", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();

    // A pool with more disks than it may have opens, with all of them.
    let pool = open_with(&store, PoolConfig { max_disks: 1, ..limited }).await;
    assert_eq!(pool.disks().len(), 4);
}

/// Polls a request until it is done; returns the number of polls.
async fn polls<T>(request: impl Future<Output = T>) -> (T, u64) {
    let (mut request, mut polls) = (std::pin::pin!(request), 0);
    let done = std::future::poll_fn(|cx| {
        polls += 1;
        request.as_mut().poll(cx)
    });
    (done.await, polls)
}

#[tokio::test]
async fn a_long_request_yields_to_other_tasks() {
    const GIB: u64 = 1 << 30;
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 16 << 40, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    // A piece of at most 256 KiB for each poll.
    let data = vec![7; 3 << 20];
    assert!(polls(v.write(0, &data, false)).await.1 >= 12);
    assert!(polls(v.write(100, &data, false)).await.1 >= 13);
    assert_eq!(read(&v, 100, data.len()).await, data);
    v.flush().await.unwrap();
    // The cost of looking for holes depends on the map between them, not on their size.
    let (mut at, mut looks) = (8 << 20, 0);
    while at < 16 << 40 {
        let zeroes = v.zeroes(at, (16 << 40) - at).unwrap();
        assert!(zeroes > 0, "the hole at {at} is not found");
        (at, looks) = (at + zeroes, looks + 1);
    }
    assert!(looks <= 4, "{looks} calls for 16 TiB");
    assert!(polls(v.prefetch(0, 16 << 40)).await.1 < 20);
    // A range with uncommitted writes is not a hole.
    assert_eq!(v.zeroes(0, 4096).unwrap(), 0);
    v.write(GIB + 4096, &[1; 512], false).await.unwrap();
    assert_eq!(v.zeroes(GIB, GIB).unwrap(), 4096);
    assert_eq!(v.zeroes(GIB + 4096, GIB).unwrap(), 0);
    assert_eq!(v.zeroes(GIB + 8192, 100).unwrap(), 100);
    assert!(v.zeroes((16 << 40) - 1, 2).is_err());
}

#[tokio::test]
async fn a_cached_read_and_a_buffered_write_do_not_wait() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    mark(&v).await;
    assert_eq!(v.try_write(0, &[7; 4096]).unwrap(), Fast::Done);
    let mut out = [0; 4096];
    assert_eq!(v.try_read(0, &mut out).unwrap(), Fast::Done);
    assert_eq!(out, [7; 4096]);
    v.flush().await.unwrap();
    assert_eq!(v.try_read(0, &mut out).unwrap(), Fast::Done);
    assert_eq!(v.try_write(100, &[7; 4096]).unwrap(), Fast::Wait, "unaligned");
    assert!(matches!(v.try_write(1 << 20, &[7; 512]), Err(Error::OutOfRange)));
}

#[tokio::test]
async fn snapshots_and_clones_keep_the_contents_of_their_source() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &[1; 4096], false).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    v.write(0, &[2; 4096], false).await.unwrap();
    pool.clone_disk("v@s", &[clone("c1"), clone("c2")]).await.unwrap();
    pool.clone_disk("v", &[clone("d")]).await.unwrap();
    let c1 = pool.attach("c1").unwrap();
    c1.write(512, &[9; 512], false).await.unwrap();
    assert_eq!(read(&c1, 0, 512).await, [1; 512]);
    assert_eq!(read(&c1, 512, 512).await, [9; 512]);
    assert_eq!(read(&pool.attach("c2").unwrap(), 0, 4096).await, [1; 4096]);
    assert_eq!(read(&pool.attach("d").unwrap(), 0, 4096).await, [2; 4096]);
    let s = pool.attach("v@s").unwrap();
    assert!(s.read_only());
    assert!(matches!(s.write(0, &[0; 512], false).await, Err(Error::ReadOnly(_))));
    assert!(matches!(pool.rollback("v", "s").await, Err(Error::InUse { .. })));
    drop((v, s));
    pool.rollback("v", "s").await.unwrap();
    assert_eq!(read(&pool.attach("v").unwrap(), 0, 4096).await, [1; 4096]);
    assert!(matches!(pool.delete("v").await, Err(Error::HasSnapshots { .. })));
    assert!(matches!(pool.delete("v@s").await, Err(Error::HasClones { clones: 2, .. })));
    drop(c1);
    pool.reset("c1").await.unwrap();
    assert_eq!(read(&pool.attach("c1").unwrap(), 0, 4096).await, [1; 4096]);
    for name in ["c1", "c2", "v@s", "v", "d"] {
        pool.delete(name).await.unwrap();
    }
    assert!(pool.disks().is_empty());
}

#[tokio::test]
async fn clones_are_reset_to_another_image() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let fill = async |name: &str, size: u64, byte: u8| {
        pool.create_volume(name, size, SyncMode::Flush, 0).await.unwrap();
        pool.attach(name).unwrap().write(0, &[byte; 8192], false).await.unwrap();
    };
    fill("v", 1 << 20, 1).await;
    pool.create_image("old", "v").await.unwrap();
    pool.attach("v").unwrap().write(4096, &[7; 4096], false).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    fill("w", 2 << 20, 2).await;
    pool.create_image("new", "w").await.unwrap();
    pool.create_volume("apart", 1 << 20, SyncMode::Flush, 9).await.unwrap();
    pool.create_image("other domain", "apart").await.unwrap();
    pool.clone_disk("old", &[clone("a"), clone("b"), clone("kept")]).await.unwrap();
    pool.create_snapshot("kept", "mine").await.unwrap();
    let uuid = pool.disk("a").unwrap().uuid;
    pool.attach("a").unwrap().write(0, &[9; 4096], false).await.unwrap();

    // All or none, and only to what never changes.
    let all = ["a", "b", "kept"];
    assert!(
        matches!(pool.reset_all_to(&all, Some("new")).await, Err(Error::HasSnapshots { name, .. }) if name == "kept")
    );
    for to in ["v", "other domain"] {
        assert!(matches!(pool.reset_all_to(&["a"], Some(to)).await, Err(Error::WrongKind { .. })), "{to}");
    }
    assert!(matches!(pool.reset_all_to(&["a"], Some("none")).await, Err(Error::NotFound(_))));
    assert!(matches!(pool.reset_all_to(&["a", "v"], Some("new")).await, Err(Error::WrongKind { .. })));
    let attached = pool.attach("b").unwrap();
    assert!(matches!(pool.reset_all_to(&["a", "b"], Some("new")).await, Err(Error::InUse { .. })));
    drop(attached);
    assert_eq!(pool.disk("a").unwrap().origin.as_deref(), Some("old"));
    assert_eq!(read(&pool.attach("a").unwrap(), 0, 4096).await, [9; 4096]);

    pool.reset_all_to(&["a", "b"], Some("new")).await.unwrap();
    pool.reset_all_to(&["kept"], Some("old")).await.unwrap();
    let check = async |pool: &Arc<Pool>| {
        for name in ["a", "b"] {
            let disk = pool.disk(name).unwrap();
            assert_eq!((disk.origin.as_deref(), disk.size), (Some("new"), 2 << 20));
            assert_eq!(read(&pool.attach(name).unwrap(), 0, 8192).await, [2; 8192]);
        }
        assert_eq!(pool.disk("a").unwrap().uuid, uuid);
        assert_eq!((pool.disk("old").unwrap().clones, pool.disk("new").unwrap().clones), (1, 2));
    };
    check(&pool).await;
    check(&open(&store).await).await;
    let pool = open(&store).await;
    pool.checkpoint().await.unwrap();
    let pool = open(&store).await;
    check(&pool).await;
    // To a snapshot, and to the present origin without naming it.
    pool.reset_all_to(&["a"], Some("v@s")).await.unwrap();
    pool.attach("a").unwrap().write(0, &[9; 4096], false).await.unwrap();
    pool.reset_all(&["a"]).await.unwrap();
    assert_eq!(read(&pool.attach("a").unwrap(), 0, 8192).await, [[1; 4096], [7; 4096]].concat());
    assert!(matches!(pool.delete("v@s").await, Err(Error::HasClones { clones: 1, .. })));
    pool.delete("b").await.unwrap();
    pool.delete("new").await.unwrap();
}

#[tokio::test]
async fn a_volume_is_renamed_with_its_snapshots() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    for name in ["v", "w"] {
        pool.create_volume(name, 1 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    let v = pool.attach("v").unwrap();
    v.write(0, &[1; 4096], false).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    pool.clone_disk("v@s", &[clone("c")]).await.unwrap();
    v.write(0, &[2; 4096], false).await.unwrap();
    let before = pool.disk("v").unwrap();

    // Refused while a client has one of these disks open, and for names that are invalid or in use.
    assert!(matches!(pool.rename("v", "x").await, Err(Error::InUse { .. })));
    drop(v);
    let snapshot = pool.attach("v@s").unwrap();
    assert!(matches!(pool.rename("v", "x").await, Err(Error::InUse { name, .. }) if name == "v@s"));
    drop(snapshot);
    for (from, to) in [("v", "v"), ("v", "w"), ("v", "c")] {
        assert!(matches!(pool.rename(from, to).await, Err(Error::Exists(name)) if name == to));
    }
    assert!(matches!(pool.rename("v", "a@b").await, Err(Error::BadName { .. })));
    assert!(matches!(pool.rename("v@s", "x").await, Err(Error::WrongKind { .. })));
    assert!(matches!(pool.rename("x", "y").await, Err(Error::NotFound(_))));

    let renamed = pool.rename("v", "x").await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.uuid, renamed.snapshots), ("x", before.uuid, 1));
    let check = async |pool: &Arc<Pool>| {
        assert_eq!(pool.names_after("", 9), ["c", "w", "x", "x@s"]);
        assert_eq!(pool.disk("x").unwrap().snapshots, 1);
        assert_eq!(pool.disk("c").unwrap().origin.as_deref(), Some("x@s"));
        assert!(matches!(pool.attach("v"), Err(Error::NotFound(_))));
        assert!(matches!(pool.disk("v@s"), Err(Error::NotFound(_))));
        assert_eq!(read(&pool.attach("x").unwrap(), 0, 4096).await, [2; 4096]);
        assert_eq!(read(&pool.attach("x@s").unwrap(), 0, 4096).await, [1; 4096]);
    };
    check(&pool).await;
    // Without a checkpoint, the change is repeated from the log.
    check(&open(&store).await).await;
    let pool = open(&store).await;
    pool.checkpoint().await.unwrap();
    check(&open(&store).await).await;

    // The old name is free, and the new one is complete.
    let pool = open(&store).await;
    pool.create_volume("v", 4096, SyncMode::Flush, 0).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    pool.rollback("x", "s").await.unwrap();
    assert_eq!(read(&pool.attach("x").unwrap(), 0, 4096).await, [1; 4096]);
    pool.delete("c").await.unwrap();
    pool.delete("x@s").await.unwrap();
    pool.delete("x").await.unwrap();
    assert_eq!(pool.names_after("", 9), ["v", "v@s", "w"]);
}

#[tokio::test]
async fn invalid_names_and_sizes_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    for name in ["", "a/b", "a@b", " a", "a\n", "..", "a\u{202e}b", "a\u{200b}", &"x".repeat(300)] {
        assert!(matches!(
            pool.create_volume(name, 4096, SyncMode::Flush, 0).await,
            Err(Error::BadName { .. })
        ));
    }
    for size in [0, 1000, (64 << 40) + 512] {
        assert!(matches!(
            pool.create_volume("v", size, SyncMode::Flush, 0).await,
            Err(Error::BadSize { .. })
        ));
    }
    pool.create_volume("with spaces inside", 64 << 40, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("with spaces inside").unwrap();
    v.write((64 << 40) - 512, &[1; 512], true).await.unwrap();
    assert_eq!(read(&v, (64 << 40) - 1024, 1024).await[512..], [1; 512]);
    let extents = v.extents(0, 64 << 40, 16).await.unwrap();
    assert_eq!(extents.len(), 2);
    assert_eq!(extents[1].len, 4096);
    let again = pool.create_volume("with spaces inside", 4096, SyncMode::Flush, 0).await;
    assert!(matches!(again, Err(Error::Exists(_))));
    assert!(matches!(pool.disk("missing"), Err(Error::NotFound(_))));
}

#[tokio::test]
async fn finished_imports_appear_and_unfinished_ones_are_removed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let import = pool.begin_import("golden", 1 << 20, 0).await.unwrap();
    import.write(0, &[5; 65536], false).await.unwrap();
    assert!(matches!(pool.attach("golden"), Err(Error::NotFound(_))));
    assert!(matches!(pool.create_volume("golden", 512, SyncMode::Flush, 0).await, Err(Error::Exists(_))));
    pool.finish_import(import).await.unwrap();
    assert_eq!(read(&pool.attach("golden").unwrap(), 0, 65536).await, [5; 65536]);
    let import = pool.begin_import("second", 1 << 20, 0).await.unwrap();
    import.write(0, &[5; 65536], true).await.unwrap();
    pool.abandon_import(import).await.unwrap();
    let import = pool.begin_import("third", 1 << 20, 0).await.unwrap();
    import.write(0, &[5; 65536], true).await.unwrap();
    // The server is killed: the pool is not closed.
    let pool = open(&store).await;
    assert_eq!(pool.disks().len(), 1);
    pool.create_volume("third", 512, SyncMode::Flush, 0).await.unwrap();
}

/// There is no room to make an image of it: the import is removed, and its name is free.
#[tokio::test]
async fn an_import_that_cannot_be_finished_is_removed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let import = pool.begin_import("golden", 1 << 20, 0).await.unwrap();
    import.write(0, &noise(1, 1 << 20), true).await.unwrap();
    let other = pool.begin_import("other", 1 << 20, 0).await.unwrap();
    let room = store.capacity().await.unwrap();
    store.set_capacity(room.total - room.free);
    let finished = pool.finish_import(import).await.map(drop);
    assert!(matches!(finished, Err(Error::NoSpace)), "{finished:?}");
    store.set_capacity(room.total);
    let again = async {
        loop {
            match pool.begin_import("golden", 1 << 20, 0).await {
                Err(Error::Exists(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                begun => break begun.unwrap(),
            }
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(30), again).await.expect("the import is removed");
    for import in [again, other] {
        pool.finish_import(import).await.unwrap();
    }
    assert_eq!(pool.disks().len(), 2);
}

#[tokio::test]
async fn segments_without_live_data_are_freed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("keep", 16 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.create_volume("go", 16 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("keep").unwrap().write(0, &[1; 1 << 20], true).await.unwrap();
    let go = pool.attach("go").unwrap();
    for i in 0..12 {
        go.write(i << 20, &noise(i, 1 << 20), true).await.unwrap();
    }
    drop(go);
    let before = pool.stats().await.stored_bytes;
    pool.delete("go").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    let after = pool.stats().await.stored_bytes;
    assert!(after + (10 << 20) < before, "{before} bytes before, {after} after");
    assert_eq!(read(&pool.attach("keep").unwrap(), 0, 1 << 20).await, vec![1; 1 << 20]);
    pool.close().await.unwrap();
    let pool = open(&store).await;
    assert_eq!(read(&pool.attach("keep").unwrap(), 0, 1 << 20).await, vec![1; 1 << 20]);
}

#[tokio::test]
async fn check_reports_damage_and_the_affected_disks() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for i in 0..4 {
        v.write(i << 20, &noise(i, 1 << 20), true).await.unwrap();
    }
    let first_block = &noise(0, 1 << 20)[..4096];
    pool.clone_disk("v", &[clone("c")]).await.unwrap();
    v.write(0, &[9; 4096], true).await.unwrap();
    drop(v);
    pool.create_volume("other", 8 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());

    let objects = store.list().await.unwrap();
    let first = objects[0].id;
    // An offset in the payload of the first batches, which hold the first block of the clone alone.
    let at = {
        let bytes = store.read(first, 0, 64 << 10).await.unwrap();
        (0..bytes.len()).step_by(4096).find(|&at| bytes[at..at + 4096] == *first_block).unwrap()
    };
    store.damage(first, |bytes| bytes[at + 77] ^= 1);
    let problems = check(&store).await;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("a batch is damaged"), "{problems:?}");
    assert!(
        problems[1].contains("a block is damaged") && problems[1].ends_with("of [\"c\"]"),
        "{problems:?}"
    );
    let pool = open(&store).await;
    let c = pool.attach("c").unwrap();
    let mut out = [0; 4096];
    assert!(matches!(c.read(0, &mut out).await, Err(Error::Damaged(_))));
    c.read(4096, &mut out).await.unwrap();
    assert_eq!(out, noise(0, 1 << 20)[4096..8192]);
    assert!(pool.stats().await.damaged_blocks >= 1);
}

#[tokio::test]
async fn one_damaged_superblock_copy_is_tolerated_and_two_are_reported() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("v").unwrap().write(0, &[1; 4096], true).await.unwrap();
    pool.close().await.unwrap();
    for copy in 0..2 {
        let good = store.read_superblock().await.unwrap()[copy].clone();
        let mut bad = good.clone().unwrap();
        bad[100] ^= 1;
        store.set_superblock(copy, Some(bad));
        let pool = open(&store).await;
        assert_eq!(read(&pool.attach("v").unwrap(), 0, 4096).await, [1; 4096]);
        pool.close().await.unwrap();
    }
    store.set_superblock(0, Some(vec![0; 4096]));
    store.set_superblock(1, Some(vec![0; 4096]));
    let opened = Pool::open(store.clone(), Arc::new(TestHost(Instant::now())), config()).await;
    assert!(matches!(opened, Err(Error::Format(_))));
}

#[tokio::test]
async fn a_full_store_refuses_data_and_accepts_it_again_when_there_is_room() {
    let store = Arc::new(MemoryStore::with_capacity(24 << 20));
    let pool = open(&store).await;
    for name in ["a", "b"] {
        pool.create_volume(name, 64 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    pool.attach("b").unwrap().write(0, &noise(7, 4 << 20), true).await.unwrap();
    let a = pool.attach("a").unwrap();
    let mut written = 0;
    let error = loop {
        match a.write(written, &noise(written, 1 << 18), true).await {
            Ok(()) => written += 1 << 18,
            Err(e) => break e,
        }
        assert!(written < 32 << 20, "more was accepted than the store can hold");
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(written > 8 << 20);
    let last = noise(written - (1 << 18), 1 << 18);
    assert_eq!(read(&a, written - 4096, 4096).await, last[last.len() - 4096..]);
    pool.delete("b").await.unwrap();
    drop(a);
    pool.create_volume("c", 4096, SyncMode::Flush, 0).await.unwrap();
    pool.delete("a").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    pool.attach("c").unwrap().write(0, &[5; 4096], true).await.unwrap();
    pool.close().await.unwrap();
}

#[tokio::test]
async fn discards_wait_for_room_in_the_write_buffer() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 4 << 30, SyncMode::Flush, 0).await.unwrap();
    let disk = pool.attach("v").unwrap();
    let budget = config().write_buffer;
    // No commit runs while this task does not await, so each accepted discard stays in the buffer.
    let mut waited = false;
    for n in 0..100_000 {
        let discard = std::pin::pin!(disk.discard(n * 8192, 4096, false));
        if futures_util::FutureExt::now_or_never(discard).is_none() {
            waited = true;
            break;
        }
    }
    assert!(waited, "{} bytes are dirty", pool.stats().await.dirty_bytes);
    assert!(pool.stats().await.dirty_bytes <= budget);
    for n in 0..20_000 {
        disk.discard(n * 8192, 4096, false).await.unwrap();
        disk.write_zeroes(n * 8192 + 4096, 4096, true, false).await.unwrap();
    }
    assert!(pool.stats().await.dirty_bytes <= budget);
    disk.flush().await.unwrap();
}
