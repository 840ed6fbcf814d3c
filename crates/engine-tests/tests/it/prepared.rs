//! The object of the next segment, which is created ahead of use.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Pool, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{MemoryStore, Store};

use crate::common::{left_by_crash, noise, open, read};

/// Writes noise that fills more than half of a segment, but not all of it.
async fn fill_segment(pool: &Pool) {
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 600 << 10), false).await.unwrap();
    v.flush().await.unwrap();
}

async fn newest(store: &dyn Store) -> Option<SegmentId> {
    store.list().await.unwrap().last().map(|object| object.id)
}

#[tokio::test]
async fn a_close_deletes_the_prepared_segment() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let first = newest(&*store).await;
    assert!(first.is_none_or(|id| id.0 <= 1), "{first:?}");
    fill_segment(&pool).await;
    let empty = async || store.list().await.unwrap().iter().filter(|object| object.len == 0).count();
    assert_eq!(empty().await, 1, "the next segment");
    // It is used.
    let v = pool.attach("v").unwrap();
    v.write(1 << 20, &noise(2, 600 << 10), false).await.unwrap();
    v.flush().await.unwrap();
    assert!(empty().await <= 1);
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(empty().await, 0);
}

#[tokio::test]
async fn a_prepared_segment_that_a_crash_left_is_deleted_after_the_next_opening() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    fill_segment(&pool).await;
    let prepared = newest(&*store).await.unwrap();
    assert!(store.read(prepared, 0, 4096).await.unwrap().is_empty());
    let store = left_by_crash(&store).await;
    pool.close().await.unwrap();
    let pool = open(&store).await;
    let is_left = async || store.list().await.unwrap().iter().any(|object| object.id == prepared);
    let deleted = async {
        while is_left().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), deleted).await.expect("a reclaim deletes it");
    assert_eq!(read(&pool.attach("v").unwrap(), 0, 4096).await, noise(1, 4096));
    pool.close().await.unwrap();
}
