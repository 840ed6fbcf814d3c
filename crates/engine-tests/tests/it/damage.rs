//! Failing reads on which a commit or recovery depends: once, permanently, or for a reason that does not
//! concern the location.

use std::ops::Range;
use std::sync::Arc;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, Pool, SegmentId, SyncMode};
use forebay_store::{Fault, FaultyOp, FaultyStore, Store, When};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

async fn try_open(store: &FaultyStore) -> forebay_engine::Result<Arc<Pool>> {
    try_open_with(&store.reopen(), cold_config()).await
}

async fn open(store: &FaultyStore) -> Arc<Pool> {
    try_open(store).await.unwrap()
}

async fn try_read(disk: &DiskHandle, offset: u64, len: usize) -> forebay_engine::Result<Vec<u8>> {
    let mut out = vec![0xee; len];
    disk.read(offset, &mut out).await.map(|()| out)
}

fn is_damaged<T>(done: forebay_engine::Result<T>) -> bool {
    matches!(done, Err(Error::Damaged(_) | Error::Format(_)))
}

async fn problems(store: &FaultyStore) -> Vec<String> {
    check(&store.reopen()).await
}

/// The location at which these bytes are stored.
async fn find(store: &FaultyStore, needle: &[u8]) -> (SegmentId, Range<u64>) {
    let store = store.reopen();
    for object in store.list().await.unwrap() {
        let bytes = store.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        if let Some(at) = bytes.windows(needle.len()).position(|w| w == needle) {
            return (object.id, at as u64..(at + needle.len()) as u64);
        }
    }
    panic!("these bytes are not stored");
}

/// Volumes `v` and `other` with one block each; returns the location of the block of `v`.
async fn two_volumes(store: &FaultyStore) -> (SegmentId, Range<u64>) {
    let pool = open(store).await;
    for (name, data) in [("v", 1), ("other", 2)] {
        pool.create_volume(name, 16 * MIB, SyncMode::Flush, 0).await.unwrap();
        pool.attach(name).unwrap().write(0, &noise(data, 4096), true).await.unwrap();
    }
    pool.close().await.unwrap();
    find(store, &noise(1, 4096)).await
}

/// Writes one sector over a block that cannot be read: the write is lost.
async fn partial_write_is_lost(store: &FaultyStore) {
    let pool = open(store).await;
    let (v, other) = (pool.attach("v").unwrap(), pool.attach("other").unwrap());
    let neighbour = pool.attach("v").unwrap();
    v.write(0, &[7; 512], false).await.unwrap();
    v.write(BLOCK, &noise(3, 4096), false).await.unwrap();
    other.write(0, &[7; 512], false).await.unwrap();
    // That client is informed of the loss, and so is the next one, once each; other disks are unaffected.
    assert!(is_damaged(v.flush().await));
    v.flush().await.unwrap();
    assert!(is_damaged(neighbour.flush().await));
    neighbour.flush().await.unwrap();
    other.flush().await.unwrap();
    other.write(BLOCK, &[8; 512], true).await.unwrap();
    drop((v, other, neighbour));
    pool.close().await.unwrap();
}

/// After a restart, with the block readable again or not: no sector of it is served, and all other data is
/// correct.
async fn block_stays_lost(store: &FaultyStore) {
    let pool = open(store).await;
    let (v, other) = (pool.attach("v").unwrap(), pool.attach("other").unwrap());
    for sector in 0..8 {
        assert!(is_damaged(try_read(&v, sector * 512, 512).await), "sector {sector}");
    }
    v.flush().await.unwrap();
    assert!(read(&v, BLOCK, 4096).await == noise(3, 4096));
    let mut expected = noise(2, 4096);
    expected[..512].fill(7);
    assert!(read(&other, 0, 4096).await == expected);
    assert_eq!(read(&other, BLOCK, 1024).await, [[8; 512], [0; 512]].concat());
    drop((v, other));
    pool.close().await.unwrap();
}

#[tokio::test]
async fn an_unreadable_sector_under_a_partial_write_loses_only_that_block() {
    let store = FaultyStore::new(1);
    let (segment, bytes) = two_volumes(&store).await;
    store.break_sectors(segment, bytes);
    partial_write_is_lost(&store).await;
    block_stays_lost(&store).await;
    // The former contents must not reappear in place of the acknowledged write.
    store.mend_sectors();
    block_stays_lost(&store).await;
    let found = problems(&store).await;
    assert!(
        matches!(&found[..], [one] if one.contains("a block is lost") && one.contains(r#"["v"]"#)),
        "{found:?}"
    );
    // Writing the whole block repairs it.
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 4096), true).await.unwrap();
    assert!(read(&v, 0, 4096).await == noise(1, 4096));
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(problems(&store).await, Vec::<String>::new());
}

/// As a RAID in a guest does with a sector that it cannot read.
#[tokio::test]
async fn writing_an_unreadable_block_again_stores_it_again() {
    let store = FaultyStore::new(9);
    let pool = open(&store).await;
    pool.create_volume("v", 16 * MIB, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 4096), true).await.unwrap();
    for (id, object) in store.image().objects {
        if let Some(at) = object.chunks(512).position(|sector| sector == &noise(1, 4096)[..512]) {
            store.break_sectors(id, at as u64 * 512..at as u64 * 512 + 4096);
        }
    }
    let read_error = try_read(&v, 0, 4096).await;
    assert!(matches!(read_error, Err(Error::Store(_))), "{read_error:?}");
    v.write(0, &noise(1, 4096), true).await.unwrap();
    assert!(read(&v, 0, 4096).await == noise(1, 4096));
    drop(v);
    pool.close().await.unwrap();
}

/// Any number of reads fails, and then the store answers again: also between the last attempt to read the
/// base and the test of whether the rest of the store can be read.
#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_is_not_taken_for_damage() {
    let (mut completed, mut latched) = (0, 0);
    for reads in 0..40 {
        let store = FaultyStore::new(10);
        two_volumes(&store).await;
        let host = Arc::new(PausedHost(tokio::time::Instant::now()));
        let pool = Pool::open(store.reopen(), host, cold_config()).await.unwrap();
        let v = pool.attach("v").unwrap();
        v.write(0, &[7; 512], false).await.unwrap();
        (0..reads).for_each(|read| store.inject(FaultyOp::Read, Fault::Io, When::After(read)));
        match v.flush().await {
            Ok(()) => {
                let mut expected = noise(1, 4096);
                expected[..512].fill(7);
                assert!(read(&v, 0, 4096).await == expected, "{reads} reads failed");
                completed += 1;
            }
            Err(Error::Latched(_)) => latched += 1,
            Err(e) => panic!("{reads} reads failed: {e}"),
        }
    }
    assert!(completed > 4 && latched > 4, "{completed} completed, {latched} latched");
}

#[tokio::test]
async fn a_corrupt_block_under_a_partial_write_loses_only_that_block() {
    let store = FaultyStore::new(2);
    let (segment, bytes) = two_volumes(&store).await;
    assert!(store.flip_bit(segment, bytes.start + 1000, 3));
    partial_write_is_lost(&store).await;
    block_stays_lost(&store).await;
    let found = problems(&store).await;
    assert!(found.iter().any(|p| p.contains("a block is lost") && p.contains(r#"["v"]"#)), "{found:?}");
}

#[tokio::test]
async fn a_temporary_read_failure_of_a_base_is_retried() {
    for fault in [Fault::Io, Fault::NoFiles] {
        let store = FaultyStore::new(3);
        two_volumes(&store).await;
        let pool = open(&store).await;
        let v = pool.attach("v").unwrap();
        v.write(0, &[7; 512], false).await.unwrap();
        // The node of the map is read first.
        store.inject(FaultyOp::Read, fault, When::After(0));
        store.inject(FaultyOp::Read, fault, When::After(1));
        v.flush().await.unwrap();
        let mut expected = noise(1, 4096);
        expected[..512].fill(7);
        assert!(read(&v, 0, 4096).await == expected);
        drop(v);
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_unreadable_store_does_not_count_as_damage_of_a_base() {
    for fault in [Fault::NoFiles, Fault::Io] {
        stops(fault).await;
    }
}

async fn stops(fault: Fault) {
    let store = FaultyStore::new(4);
    two_volumes(&store).await;
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    v.write(0, &[7; 512], false).await.unwrap();
    store.inject(FaultyOp::Read, fault, When::Every(1));
    assert!(matches!(v.flush().await, Err(Error::Latched(_))));
    store.clear_faults();
    drop((v, pool));
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    assert!(read(&v, 0, 4096).await == noise(1, 4096));
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(problems(&store).await, Vec::<String>::new());
}
