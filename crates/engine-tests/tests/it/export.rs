//! Exports: the contents as of one moment, which later changes do not affect, and which no crash leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{CloneRequest, Error, Export, SyncMode};
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, MemoryStore, When};

use crate::common::*;

const SIZE: u64 = 4 << 20;

async fn exported(export: &Export) -> Vec<u8> {
    let mut bytes = vec![0; export.size() as usize];
    export.read(0, &mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn an_export_has_the_contents_of_one_moment() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(1 << 20, &noise(1, 1 << 20), false).await.unwrap();
    let export = pool.begin_export("v").await.unwrap();
    v.write(0, &noise(2, 4 << 20), false).await.unwrap();
    v.flush().await.unwrap();
    let mut expected = vec![0; SIZE as usize];
    expected[1 << 20..2 << 20].copy_from_slice(&noise(1, 1 << 20));
    let reads = pool.disk("v").map(|_| v.stats().read).unwrap();
    assert!(exported(&export).await == expected);
    assert_eq!(v.stats().read, reads, "an export is not counted as reads of the guest");
    let extents = export.extents(0, SIZE, 16).await.unwrap();
    let runs: Vec<_> = extents.iter().map(|e| (e.len, e.zero)).collect();
    assert_eq!(runs, [(1 << 20, true), (1 << 20, false), (2 << 20, true)]);
    assert!(export.read(SIZE - 1, &mut [0; 2]).await.is_err());

    // The copy is in no list; the volume can be removed, and the export continues.
    assert_eq!(pool.disks().len(), 1);
    drop(v);
    pool.delete("v").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(exported(&export).await == expected);
    pool.end_export(export).await.unwrap();
    assert!(pool.reclaim(&|_| ()).await.unwrap() >= 1 << 20, "the copy keeps its blocks after the end");
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_leaves_no_copy() {
    let store = FaultyStore::new(1);
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, SIZE as usize), true).await.unwrap();
    let export = pool.begin_export("v").await.unwrap();
    drop((v, export, pool));
    store.crash(Crash::Kill);
    let pool = open_with(&store.reopen(), config()).await;
    pool.delete("v").await.unwrap();
    assert!(pool.reclaim(&|_| ()).await.unwrap() >= SIZE, "the copy of an interrupted export remains");
    pool.close().await.unwrap();
}

#[tokio::test]
async fn snapshots_of_a_full_pool_are_exported_and_volumes_refused() {
    let store = FaultyStore::new(2);
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 1 << 20), true).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    store.inject(FaultyOp::Append, Fault::Full, When::From(0));
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match pool.begin_export("v").await {
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
            Ok(export) => pool.end_export(export).await.unwrap(),
        }
        assert!(Instant::now() < until, "the pool does not become full");
    }
    let export = pool.begin_export("v@s").await.unwrap();
    assert!(exported(&export).await[..1 << 20] == noise(1, 1 << 20));
    assert!(matches!(pool.delete("v@s").await, Err(Error::InUse { .. })));
    pool.end_export(export).await.unwrap();
    store.clear_faults();
}

#[tokio::test]
async fn desktops_are_refused_and_exports_have_no_name() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let import = pool.begin_import("golden", SIZE, 0).await.unwrap();
    pool.finish_import(import).await.unwrap();
    let desktop = CloneRequest { name: "desk".into(), write_cache: 1 << 20, ..CloneRequest::default() };
    pool.clone_disk("golden", &[desktop]).await.unwrap();
    assert!(matches!(pool.begin_export("desk").await, Err(Error::WrongKind { .. })));
    assert!(matches!(pool.begin_export("none").await, Err(Error::NotFound(_))));
    let (one, two) = (pool.begin_export("golden").await.unwrap(), pool.begin_export("golden").await.unwrap());
    pool.end_export(one).await.unwrap();
    assert!(exported(&two).await.iter().all(|b| *b == 0));
    pool.end_export(two).await.unwrap();
    assert_eq!(pool.disks().len(), 2);
}
