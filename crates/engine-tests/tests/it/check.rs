//! Damage to footers, directories and pages is detected, and remains of a crash are not reported as damage.

use std::sync::Arc;

use crate::common::*;
use forebay_engine::{SegmentId, SyncMode, inspect_segments};
use forebay_format::{CheckpointRoot, Superblock};
use forebay_store::{MemoryStore, Store};

/// Objects with a footer, and the offset of the footer.
async fn footers(store: &MemoryStore) -> Vec<(SegmentId, usize)> {
    let mut found = Vec::new();
    for object in store.list().await.unwrap() {
        let bytes = store.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        let at = bytes.chunks_exact(4096).position(|b| b.starts_with(b"FBSEALED"));
        found.extend(at.map(|at| (object.id, at * 4096)));
    }
    found
}

async fn write_some(store: &Arc<MemoryStore>, close: bool) {
    let pool = open(store).await;
    if pool.disks().is_empty() {
        pool.create_volume("v", 16 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    let v = pool.attach("v").unwrap();
    let seed = pool.stats().await.seq;
    v.write(0, &noise(seed, 5 << 20), false).await.unwrap();
    v.flush().await.unwrap();
    pool.checkpoint().await.unwrap();
    v.write(8 << 20, &noise(seed + 2, 2 << 20), false).await.unwrap();
    v.flush().await.unwrap();
    drop(v);
    if close {
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn damaged_footers_and_directories_are_reported() {
    let store = Arc::new(MemoryStore::new());
    write_some(&store, true).await;
    let first = footers(&store).await;
    assert!(first.len() > 5, "{first:?}");
    assert_eq!(check(&store).await, Vec::<String>::new());
    // Magic, checksum, and an entry of the directory.
    for (segment, footer) in &first {
        for at in [footer + 3, footer + 100, footer + 4096 + 5] {
            store.damage(*segment, |bytes| bytes[at] ^= 4);
            let found = check(&store).await;
            let place = format!("at segment {segment}, offset {footer}, of []");
            assert!(
                matches!(&found[..], [one] if one.starts_with("the directory of a segment") && one.ends_with(&place)),
                "{segment}, {at}: {found:?}"
            );
            store.damage(*segment, |bytes| bytes[at] ^= 4);
        }
    }
    // In later lives of the pool the footers are still known to be required, except for the last segments of
    // each life, which a crash may have torn.
    write_some(&store, false).await;
    write_some(&store, true).await;
    assert_eq!(check(&store).await, Vec::<String>::new());
    let all = footers(&store).await;
    all.iter().for_each(|(segment, footer)| store.damage(*segment, |bytes| bytes[footer + 100] ^= 4));
    let found = check(&store).await;
    assert!(found.len() + 4 >= all.len(), "{} of {}: {found:#?}", found.len(), all.len());
    // No data is lost.
    let pool = open(&store).await;
    read(&pool.attach("v").unwrap(), 0, 16 << 20).await;
    pool.reclaim(&|_| ()).await.unwrap();
}

/// The last footer written before a crash may be torn.
#[tokio::test]
async fn a_footer_torn_by_a_crash_is_not_reported() {
    let store = Arc::new(MemoryStore::new());
    write_some(&store, false).await;
    let (segment, footer) = footers(&store).await.pop().unwrap();
    store.damage(segment, |bytes| bytes.truncate(footer + 4096));
    let (later, from) = (segment.0 + 1, 8192);
    store.damage(SegmentId(later), |bytes| bytes.truncate(from));
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    pool.checkpoint().await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}

/// A pool with segments of which nothing is alive, and the numbers of those with data.
async fn overwritten() -> (Arc<MemoryStore>, Vec<String>) {
    let store = Arc::new(MemoryStore::new());
    write_some(&store, false).await;
    write_some(&store, true).await;
    let segments = data_segments(&store).await;
    (store, segments)
}

async fn data_segments(store: &MemoryStore) -> Vec<String> {
    let all = inspect_segments(store).await.unwrap();
    all.into_iter().filter(|s| s.stream == "data").map(|s| s.segment).collect()
}

async fn objects(store: &MemoryStore, segments: &[String]) -> Vec<SegmentId> {
    let all = store.list().await.unwrap();
    all.iter().map(|object| object.id).filter(|id| segments.contains(&id.to_string())).collect()
}

/// A former owner of a pool on RADOS may create the object of a deleted segment that a checkpoint lists.
#[tokio::test]
async fn an_object_created_again_after_its_deletion_is_not_reported() {
    let (store, mut dead) = overwritten().await;
    open(&store).await.reclaim(&|_| ()).await.unwrap();
    let alive = data_segments(&store).await;
    dead.retain(|segment| !alive.contains(segment));
    assert!(dead.len() > 3, "{dead:?}");

    let (store, _) = overwritten().await;
    objects(&store, &dead).await.iter().for_each(|id| store.damage(*id, Vec::clear));
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(objects(&store, &dead).await, Vec::<SegmentId>::new());
    // One of which blocks are needed is reported.
    let needed = objects(&store, &alive).await;
    store.damage(needed[0], Vec::clear);
    let found = check(&store).await;
    assert!(!found.is_empty() && found.iter().all(|problem| problem.ends_with("of [\"v\"]")), "{found:?}");
}

/// Each page has a checksum: damage to any byte of one is detected when the pool is opened.
#[tokio::test]
async fn a_pool_with_a_damaged_page_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();
    let copies = store.read_superblock().await.unwrap();
    let superblock = Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]).unwrap();
    let piece = superblock.blobs[0];
    let object = store.list().await.unwrap().into_iter().find(|o| o.id == piece.segment).unwrap();
    let bytes = store.read(object.id, 0, object.len as usize).await.unwrap();
    let root = CheckpointRoot::decode(&bytes[piece.offset as usize..][..piece.len as usize]).unwrap();
    assert_eq!(root.directories.len(), 2);
    for directory in &root.directories {
        let at = directory.at;
        let flip = |bytes: &mut Vec<u8>| bytes[at.offset as usize + 20] ^= 1;
        store.damage(at.segment, flip);
        let refused = try_open_with(&store, config()).await.err().unwrap();
        assert!(matches!(refused, forebay_engine::Error::Damaged(_)), "{refused}");
        store.damage(at.segment, flip);
    }
    open(&store).await.close().await.unwrap();
}
