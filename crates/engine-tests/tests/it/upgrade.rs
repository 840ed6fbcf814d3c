//! Pools of older format versions: their checkpoint is in one piece.

use std::sync::Arc;

use crate::common::{check, config, noise, open, read};
use forebay_engine::SyncMode;
use forebay_format::{
    BLOCK, BlobRef, Checkpoint, CheckpointRoot, DiskRecord, PageLevel, SegmentId, SegmentRecord, Superblock,
    Table, check64, decode_directory, decode_page,
};
use forebay_store::{IoBuf, MemoryStore, Store};

async fn bytes_of(store: &MemoryStore, at: &BlobRef) -> Vec<u8> {
    let start = u64::from(at.offset) / BLOCK as u64 * BLOCK as u64;
    let skip = (u64::from(at.offset) - start) as usize;
    let len = (skip + at.len as usize).next_multiple_of(BLOCK);
    let bytes = store.read(at.segment, start, len).await.unwrap();
    bytes[skip..][..at.len as usize].to_vec()
}

/// The records of a table.
async fn records(store: &MemoryStore, root: &CheckpointRoot, table: Table) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for directory in root.directories.iter().filter(|d| d.table == table.id) {
        let pages = decode_directory(&bytes_of(store, &directory.at).await, table, directory.number).unwrap();
        for (number, at) in pages {
            let page = bytes_of(store, &at).await;
            let records = decode_page(&page, table, PageLevel::Records, number).unwrap();
            found.extend(records.into_iter().map(|(_, record)| record.to_vec()));
        }
    }
    found
}

async fn superblock(store: &MemoryStore) -> Superblock {
    let copies = store.read_superblock().await.unwrap();
    Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]).unwrap()
}

async fn root(store: &MemoryStore) -> Option<CheckpointRoot> {
    let bytes = bytes_of(store, &superblock(store).await.blobs[0]).await;
    CheckpointRoot::decode(&bytes).ok()
}

/// Replaces the checkpoint by one as version 2 writes it, with the same contents.
async fn make_older(store: &MemoryStore) {
    let root = root(store).await.unwrap();
    let segments = records(store, &root, Table::SEGMENTS).await;
    let disks = records(store, &root, Table::DISKS).await;
    let newest = store.list().await.unwrap().iter().map(|o| o.id.0).max();
    let object = SegmentId(newest.unwrap() + 1);
    let checkpoint = Checkpoint {
        seq: root.seq,
        next_disk: root.next_disk,
        next_segment: root.next_segment,
        disks: disks.iter().map(|bytes| DiskRecord::decode(&mut &bytes[..]).unwrap()).collect(),
        segments: segments.iter().map(|bytes| SegmentRecord::decode(bytes).unwrap()).collect(),
        warm: root.warm,
        sampling: root.sampling,
    };
    assert!(!checkpoint.disks.is_empty() && checkpoint.segments.len() > 1);
    let mut bytes = checkpoint.encode();
    let len = bytes.len();
    bytes.resize((BLOCK + len).next_multiple_of(BLOCK), 0);
    bytes.rotate_right(BLOCK);
    let check = check64(&bytes[BLOCK..BLOCK + len]);
    store.append(object, 0, IoBuf::from(&bytes[..]), bytes.len() as u64).await.unwrap();
    store.sync(object).await.unwrap();
    let mut superblock = superblock(store).await;
    superblock.blobs = vec![BlobRef { segment: object, offset: BLOCK as u32, len: len as u32, check }];
    for _ in 0..2 {
        superblock.generation += 1;
        store.swap_superblock(&superblock).await.unwrap();
    }
}

#[tokio::test]
async fn a_checkpoint_in_one_piece_is_read_and_replaced_by_pages() {
    const LEN: usize = 1 << 20;
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", LEN as u64, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, LEN), false).await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    make_older(&store).await;
    assert!(root(&store).await.is_none());
    assert_eq!(check(&store).await, [""; 0]);

    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    assert!(read(&v, 0, LEN).await == noise(1, LEN));
    drop(v);
    pool.close().await.unwrap();
    let upgraded = root(&store).await.unwrap();
    assert!(!records(&store, &upgraded, Table::SEGMENTS).await.is_empty());

    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    assert!(read(&v, 0, LEN).await == noise(1, LEN));
    drop(v);
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, [""; 0]);
}

/// Each page has a checksum: damage to any byte of one is detected when the pool is opened.
#[tokio::test]
async fn a_pool_with_a_damaged_page_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.close().await.unwrap();
    let root = root(&store).await.unwrap();
    assert_eq!(root.directories.len(), 2);
    for directory in &root.directories {
        let at = directory.at;
        let flip = |bytes: &mut Vec<u8>| bytes[at.offset as usize + 20] ^= 1;
        store.damage(at.segment, flip);
        let refused = crate::common::try_open_with(&store, config()).await.err().unwrap();
        assert!(matches!(refused, forebay_engine::Error::Damaged(_)), "{refused}");
        store.damage(at.segment, flip);
    }
    open(&store).await.close().await.unwrap();
}
