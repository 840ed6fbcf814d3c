//! Documents of the pool and reservations of disks: durable, intact after a crash, removed on request.

use std::sync::Arc;

use crate::common::*;
use forebay_engine::{Error, Pool, SyncMode};
use forebay_store::{Fault, FaultyOp, FaultyStore, MemoryStore, When};

async fn document(pool: &Pool, name: &str) -> Option<Vec<u8>> {
    pool.document(name).await.unwrap()
}

#[tokio::test]
async fn documents_are_kept_replaced_and_removed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    assert_eq!(document(&pool, "targets").await, None);
    let long = noise(1, 3 << 20);
    pool.set_document("targets", Some(b"first")).await.unwrap();
    pool.set_document("targets", Some(&long)).await.unwrap();
    pool.set_document("other", Some(b"")).await.unwrap();
    // A disk of the same name is independent of the document.
    pool.create_volume("targets", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    assert_eq!(document(&pool, "targets").await, Some(long.clone()));
    let names: Vec<_> = pool.disks().into_iter().map(|d| d.name).collect();
    assert_eq!(
        (names, pool.stats().await.disks),
        (vec!["targets".to_owned()], 1),
        "documents are not listed as disks"
    );
    pool.close().await.unwrap();
    drop(pool);
    assert_eq!(check(&store).await, Vec::<String>::new());

    let pool = open(&store).await;
    assert_eq!(document(&pool, "targets").await, Some(long));
    assert_eq!(document(&pool, "other").await, Some(Vec::new()));
    pool.delete("targets").await.unwrap();
    pool.set_document("targets", None).await.unwrap();
    pool.set_document("targets", None).await.unwrap();
    pool.set_document("other", None).await.unwrap();
    assert_eq!(document(&pool, "targets").await, None);
    pool.reclaim(&|_| ()).await.unwrap();
    assert_eq!(pool.stats().await.space.unwrap().live_bytes, 0, "the documents occupy no space any more");
    assert!(matches!(pool.set_document("a/b", Some(b"")).await, Err(Error::BadName { .. })));
    let huge = vec![0; (64 << 20) + 1];
    assert!(matches!(pool.set_document("huge", Some(&huge)).await, Err(Error::BadSize { .. })));
}

#[tokio::test]
async fn reclaiming_keeps_documents() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let content = noise(7, 300_000);
    pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await.unwrap();
    let disk = pool.attach("v").unwrap();
    disk.write(0, &noise(8, 8 << 20), true).await.unwrap();
    pool.set_document("targets", Some(&content)).await.unwrap();
    disk.discard(0, 8 << 20, true).await.unwrap();
    drop(disk);
    pool.delete("v").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    let pool = open(&store).await;
    assert_eq!(document(&pool, "targets").await, Some(content));
}

/// At every moment while a document is replaced, a crash would leave either the old version or the new one.
#[tokio::test]
async fn a_crash_leaves_a_document_intact() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let (old, new) = (noise(1, 200_000), noise(2, 2_500_000));
    pool.set_document("targets", Some(&old)).await.unwrap();
    let replacing = {
        let (pool, new) = (pool.clone(), new.clone());
        tokio::spawn(async move { pool.set_document("targets", Some(&new)).await })
    };
    let mut left = Vec::new();
    while !replacing.is_finished() {
        left.push(left_by_crash(&store).await);
        tokio::task::yield_now().await;
    }
    replacing.await.unwrap().unwrap();
    left.push(left_by_crash(&store).await);
    let mut seen = [0, 0];
    // Most of them are alike: the first, the last, and some in between.
    let step = (left.len() / 16).max(1);
    let some = left.iter().rev().step_by(step).chain(left.first());
    for crashed in some {
        let pool = open(crashed).await;
        let found = document(&pool, "targets").await.unwrap();
        assert!(found == old || found == new, "{} bytes", found.len());
        seen[usize::from(found == new)] += 1;
        let disks = pool.disks().len();
        drop(pool);
        assert_eq!((disks, check(crashed).await), (0, Vec::new()));
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}: the document was seen before and after the change");
}

#[tokio::test]
async fn reservations_belong_to_their_disk_and_are_deleted_with_it() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    pool.clone_disk("v@s", &[clone("before")]).await.unwrap();
    let disk = pool.attach("v").unwrap();
    assert_eq!(disk.reservations().await.unwrap(), None);
    disk.set_reservations(Some(b"key 1")).await.unwrap();
    disk.set_reservations(Some(b"key 2")).await.unwrap();
    pool.clone_disk("v", &[clone("after")]).await.unwrap();
    pool.create_snapshot("v", "t").await.unwrap();
    drop(disk);
    let of_clone = pool.attach("before").unwrap();
    of_clone.set_reservations(Some(b"of a clone")).await.unwrap();
    drop(of_clone);
    pool.rollback("v", "s").await.unwrap();
    pool.reset("before").await.unwrap();

    let crashed = left_by_crash(&store).await;
    pool.close().await.unwrap();
    for store in [&crashed, &store] {
        let pool = open(store).await;
        let of = async |name: &str| pool.attach(name).unwrap().reservations().await.unwrap();
        assert_eq!(of("v").await.as_deref(), Some(&b"key 2"[..]));
        assert_eq!(of("before").await.as_deref(), Some(&b"of a clone"[..]));
        assert_eq!(
            (of("after").await, of("v@t").await),
            (None, None),
            "clones and snapshots do not inherit them"
        );
        pool.attach("before").unwrap().set_reservations(None).await.unwrap();
        assert_eq!(of("before").await, None);
        pool.delete("v@t").await.unwrap();
        pool.delete("before").await.unwrap();
        pool.delete("v@s").await.unwrap();
        pool.delete("v").await.unwrap();
        pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        assert_eq!(of("v").await, None, "they were deleted with the disk");
        pool.close().await.unwrap();
        drop(pool);
        assert_eq!(check(store).await, Vec::<String>::new());
    }
}

/// Wherever there is no room: the old content is there, and no other data occupies space.
#[tokio::test]
async fn a_replacement_that_fails_leaves_nothing() {
    let mut failed = 0;
    for after in 0.. {
        let store = FaultyStore::new(1);
        let pool = open_with(&store, config()).await;
        pool.set_document("d", Some(&noise(1, 100_000))).await.unwrap();
        pool.reclaim(&|_| ()).await.unwrap();
        let before = pool.stats().await.space.unwrap().live_bytes;
        store.inject(FaultyOp::Append, Fault::Full, When::After(after));
        let replaced = pool.set_document("d", Some(&noise(2, 50_000))).await;
        store.clear_faults();
        if replaced.is_ok() {
            break;
        }
        failed += 1;
        assert_eq!(document(&pool, "d").await, Some(noise(1, 100_000)));
        pool.reclaim(&|_| ()).await.unwrap();
        assert_eq!(pool.stats().await.space.unwrap().live_bytes, before, "append {after}");
    }
    assert!(failed > 1, "{failed} failures");
}
