//! Pools in formats that this release does not support.

use std::sync::Arc;
use std::time::Instant;

use crate::common::*;
use forebay_engine::{Result, inspect_batches, inspect_segments, inspect_superblocks, recover_log};
use forebay_format::{BLOCK, Features, SegmentId, Superblock, check64};
use forebay_store::{MemoryStore, Store};

/// The store of a pool with one volume, whose superblock has two copies.
async fn pool() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, forebay_engine::SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();
    store
}

async fn superblock(store: &MemoryStore, copy: usize) -> Vec<u8> {
    store.read_superblock().await.unwrap()[copy].clone().unwrap()
}

/// Changes bytes of a superblock copy, and updates its checksum.
async fn forge(store: &MemoryStore, copy: usize, at: usize, bytes: &[u8]) {
    let mut block = superblock(store, copy).await;
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let check = check64(&block[..BLOCK - 8]);
    block[BLOCK - 8..].copy_from_slice(&check.to_le_bytes());
    store.set_superblock(copy, Some(block));
}

async fn both_copies(store: &MemoryStore) -> [Vec<u8>; 2] {
    [superblock(store, 0).await, superblock(store, 1).await]
}

/// The text of the error with which an operation is refused.
fn refused<T>(result: Result<T>) -> String {
    result.err().expect("the format is not supported").to_string()
}

/// The error texts of everything that reads a pool, but the views of the superblock copies.
async fn refusals(store: &Arc<MemoryStore>) -> Vec<String> {
    let host = || Arc::new(TestHost(Instant::now()));
    vec![
        refused(try_open_with(store, config()).await),
        refused(forebay_engine::check(store.clone(), host(), |_| {}).await),
        refused(recover_log(store.clone(), host(), None).await),
        refused(inspect_segments(&**store).await),
        refused(inspect_batches(&**store, SegmentId(1)).await),
    ]
}

#[tokio::test]
async fn pools_of_other_versions_are_refused_by_name() {
    for (copy, version) in [0, 1].into_iter().flat_map(|copy| [1, 2, 3, 5].map(|version| (copy, version))) {
        let store = pool().await;
        forge(&store, copy, 8, &[version]).await;
        let before = both_copies(&store).await;
        let remedy = if version < 4 { "copy the disks to a new pool" } else { "upgrade forebay" };
        let is_named =
            |text: &str| text.contains(&format!("format version {version}")) && text.contains(remedy);
        for text in refusals(&store).await {
            assert!(is_named(&text) && !text.contains('\n'), "version {version}: {text}");
        }
        let views = inspect_superblocks(&*store).await.unwrap();
        let errors: Vec<_> = views.iter().filter_map(|view| view.error.as_deref()).collect();
        assert!(matches!(&errors[..], [one] if is_named(one)), "version {version}: {errors:?}");
        assert!(both_copies(&store).await == before, "a refused pool is not changed");
    }
}

/// Offsets of the feature words in a superblock.
const COMPATIBLE: usize = 3200;
const READ_ONLY: usize = 3208;
const INCOMPATIBLE: usize = 3216;

#[tokio::test]
async fn unknown_incompatible_features_are_refused_by_everything() {
    for copy in 0..2 {
        let store = pool().await;
        forge(&store, copy, INCOMPATIBLE, &[0x12]).await;
        let before = both_copies(&store).await;
        let expected = "incompatible features that this release does not know (bits 1, 4): upgrade forebay";
        for text in refusals(&store).await {
            assert!(text.contains(expected), "{text}");
        }
        let views = inspect_superblocks(&*store).await.unwrap();
        assert!(views[copy].error.as_ref().is_some_and(|e| e.contains(expected)));
        assert!(views[1 - copy].error.is_none());
        assert!(both_copies(&store).await == before, "a refused pool is not changed");
    }
}

#[tokio::test]
async fn unknown_read_only_compatible_features_allow_check_and_inspect_only() {
    for copy in 0..2 {
        let store = pool().await;
        forge(&store, copy, READ_ONLY, &[0x20]).await;
        let before = both_copies(&store).await;
        let text = refused(try_open_with(&store, config()).await);
        assert!(
            text.contains("read-only compatible features that this release does not know (bit 5)"),
            "{text}"
        );
        assert_eq!(check(&store).await, [""; 0]);
        let views = inspect_superblocks(&*store).await.unwrap();
        assert!(views.iter().all(|view| view.error.is_none()));
        assert_eq!(views[copy].features.read_only_compatible, [5]);
        let segments = inspect_segments(&*store).await.unwrap();
        assert!(segments.iter().all(|segment| segment.error.is_none()));
        let batches = inspect_batches(&*store, SegmentId(1)).await.unwrap();
        assert!(!batches.is_empty());
        let host = Arc::new(TestHost(Instant::now()));
        assert!(recover_log(store.clone(), host, None).await.unwrap().damage.is_none());
        assert!(both_copies(&store).await == before, "nothing is changed");
    }
}

/// A server changes neither the version nor the features of a pool, and keeps features that it does not know.
#[tokio::test]
async fn serving_a_pool_does_not_change_its_format() {
    let store = pool().await;
    for copy in 0..2 {
        forge(&store, copy, COMPATIBLE, &[0x81]).await;
    }
    let pool = open(&store).await;
    pool.create_volume("w", 1 << 20, forebay_engine::SyncMode::Flush, 0).await.unwrap();
    pool.checkpoint().await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    for (copy, block) in both_copies(&store).await.iter().enumerate() {
        assert_eq!(block[8..12], 4_u32.to_le_bytes(), "copy {copy}");
        let features = Superblock::decode(block).unwrap().features;
        assert_eq!(features, Features { compatible: 0x81, ..Features::default() }, "copy {copy}");
    }
}
