//! Objects that do not answer: the log continues in another segment, and the appends that it gave up take
//! effect at any time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::{BoxFuture, Pool, PoolConfig, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{Completion, IoBuf, MemoryStore, Store, StoreError};

use crate::common::{check, left_by_crash, noise, open, open_with, read};

/// An append, or a creation of an object.
struct Late {
    id: SegmentId,
    offset: u64,
    data: Option<IoBuf>,
    expected: u64,
}

/// A store of which objects may not answer. What is requested of them takes effect later.
#[derive(Default)]
struct Silent {
    store: MemoryStore,
    /// Objects up to this one do not answer appends.
    until: Mutex<Option<SegmentId>>,
    /// The object of the append with this number, counted from 1, does not answer from that append on.
    at: AtomicUsize,
    /// Every second object that is created does not answer.
    skips: AtomicBool,
    late: Mutex<Vec<Late>>,
}

impl Silent {
    fn is_silent(&self, id: SegmentId) -> bool {
        self.until.lock().unwrap().is_some_and(|until| id <= until)
    }

    async fn newest(&self) -> SegmentId {
        self.store.list().await.unwrap().last().unwrap().id
    }

    /// All existing objects do not answer from now on.
    async fn silence(&self) {
        let newest = self.newest().await;
        *self.until.lock().unwrap() = Some(newest);
    }

    /// What did not answer takes effect now.
    async fn release(&self) -> usize {
        *self.until.lock().unwrap() = None;
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        let count = late.len();
        for Late { id, offset, data, expected } in late {
            match data {
                Some(data) => match self.store.append(id, offset, data, expected).await {
                    // A reclaim has deleted the object.
                    Ok(_) | Err(StoreError::NotFound(_)) => {}
                    Err(e) => panic!("{e}"),
                },
                None => self.store.prepare(id, expected).await.unwrap(),
            }
        }
        count
    }
}

impl Store for Silent {
    forebay_store::forward_store!(store; except prepare, append, overdue);

    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        if self.skips.load(Relaxed) && id.0.is_multiple_of(2) {
            self.late.lock().unwrap().push(Late { id, offset: 0, data: None, expected });
            return Completion::of(std::future::pending());
        }
        self.store.prepare(id, expected)
    }
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        if self.at.load(Relaxed) > 0 && self.at.fetch_sub(1, Relaxed) == 1 {
            *self.until.lock().unwrap() = Some(id);
        }
        if self.is_silent(id) {
            self.late.lock().unwrap().push(Late { id, offset, data: Some(data), expected });
            return Completion::of(std::future::pending());
        }
        self.store.append(id, offset, data, expected)
    }
    fn overdue(&self, _: usize) -> BoxFuture<'static, ()> {
        match self.late.lock().unwrap().is_empty() {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(())),
        }
    }
}

const PIECE: usize = 64 << 10;

async fn write(pool: &Pool, number: u64) {
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(number, PIECE), false).await.unwrap();
    let flushed = tokio::time::timeout(Duration::from_secs(30), v.flush()).await;
    flushed.expect("it does not wait for the object").unwrap();
}

async fn prepared() -> (Arc<Silent>, Arc<Pool>) {
    let store = Arc::new(Silent::default());
    let pool = open_with(&store, crate::common::config()).await;
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    write(&pool, 1).await;
    (store, pool)
}

/// What a server finds after a crash of this one.
async fn expect_after_crash(store: &Silent, number: u64) {
    let left = left_by_crash(&store.store).await;
    assert_eq!(check(&left).await, Vec::<String>::new());
    let pool = open(&left).await;
    assert!(read(&pool.attach("v").unwrap(), 0, PIECE).await == noise(number, PIECE), "contents of {number}");
    pool.close().await.unwrap();
    assert_eq!(check(&left).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_commit_continues_in_another_segment() {
    let (store, pool) = prepared().await;
    let before = store.newest().await;
    store.silence().await;
    write(&pool, 2).await;
    assert!(store.newest().await > before);
    expect_after_crash(&store, 2).await;
    write(&pool, 3).await;
    assert!(store.release().await > 0, "an append was given up");
    // The batch that was given up is there twice now.
    expect_after_crash(&store, 3).await;
    write(&pool, 4).await;
    expect_after_crash(&store, 4).await;
    pool.close().await.unwrap();
    expect_after_crash(&store, 4).await;
}

#[tokio::test]
async fn a_group_whose_append_was_given_up_may_be_found_alone() {
    let (store, pool) = prepared().await;
    store.silence().await;
    write(&pool, 2).await;
    let other = store.newest().await;
    assert!(store.release().await > 0);
    // The crash was before the group was written again; the superblock has the higher epoch already.
    let left = left_by_crash(&store.store).await;
    for object in left.list().await.unwrap().into_iter().filter(|object| object.id > SegmentId(1)) {
        left.delete(object.id).await.unwrap();
    }
    assert!(left.list().await.unwrap().last().unwrap().id < other);
    let found = open(&left).await;
    assert!(read(&found.attach("v").unwrap(), 0, PIECE).await == noise(2, PIECE));
    found.close().await.unwrap();
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_segment_is_used_that_can_be_created() {
    let (store, pool) = prepared().await;
    store.skips.store(true, Relaxed);
    for round in 0..4 {
        store.silence().await;
        write(&pool, 10 + round).await;
        expect_after_crash(&store, 10 + round).await;
        assert!(store.release().await > 0);
        expect_after_crash(&store, 10 + round).await;
    }
    store.skips.store(false, Relaxed);
    pool.close().await.unwrap();
    expect_after_crash(&store, 13).await;
}

#[tokio::test]
async fn a_checkpoint_continues_in_another_segment() {
    let (store, pool) = prepared().await;
    pool.checkpoint().await.unwrap();
    write(&pool, 2).await;
    store.silence().await;
    pool.checkpoint().await.unwrap();
    expect_after_crash(&store, 2).await;
    write(&pool, 3).await;
    assert!(store.release().await > 0);
    expect_after_crash(&store, 3).await;
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_pool_closes_although_footers_do_not_end() {
    let (store, pool) = prepared().await;
    store.silence().await;
    let closed = tokio::time::timeout(Duration::from_secs(30), pool.close()).await;
    closed.expect("it does not wait for the object").unwrap();
    expect_after_crash(&store, 1).await;
    assert!(store.release().await > 0);
    expect_after_crash(&store, 1).await;
}

/// Blocks of a volume of which the first reclaim moves every second one.
const BLOCKS: u64 = 1024;

async fn expect_second_blocks(pool: &Pool) {
    let v = pool.attach("moved").unwrap();
    for block in (1..BLOCKS).step_by(2) {
        assert!(read(&v, block * 4096, 4096).await == noise(block, 4096), "block {block}");
    }
}

/// The volume and what was written to another one, as a server finds them after a crash of this one.
async fn expect_moved_after_crash(store: &Silent, number: u64) {
    expect_after_crash(store, number).await;
    let pool = open(&left_by_crash(&store.store).await).await;
    expect_second_blocks(&pool).await;
    pool.close().await.unwrap();
}

/// A reclaim in which the object of the append with number `at` does not answer. What was given up takes
/// effect before or after another commit. Returns the bytes that were freed, or `None` if there were fewer
/// appends.
async fn reclaim_without(at: usize, early: bool) -> Option<u64> {
    let store = Arc::new(Silent::default());
    let config = PoolConfig { reclaim_pause: Duration::from_secs(3600), ..crate::common::config() };
    let pool = open_with(&store, config).await;
    pool.create_volume("moved", BLOCKS * 4096, SyncMode::Flush, 0).await.unwrap();
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let moved = pool.attach("moved").unwrap();
    for block in 0..BLOCKS {
        moved.write(block * 4096, &noise(block, 4096), false).await.unwrap();
    }
    moved.flush().await.unwrap();
    for block in (0..BLOCKS).step_by(2) {
        moved.discard(block * 4096, 4096, false).await.unwrap();
    }
    write(&pool, 1).await;

    store.at.store(at, Relaxed);
    let reclaimed = tokio::time::timeout(Duration::from_secs(30), pool.reclaim(&|_| ())).await;
    let freed = reclaimed.expect("it does not wait for the object").unwrap();
    if store.at.swap(0, Relaxed) > 0 {
        return None;
    }
    expect_moved_after_crash(&store, 1).await;
    if early {
        assert!(store.release().await > 0, "an append was given up");
        expect_moved_after_crash(&store, 1).await;
    }
    write(&pool, 2).await;
    assert!(store.release().await > 0 || early, "an append was given up");
    expect_moved_after_crash(&store, 2).await;
    // What was kept is moved now.
    pool.reclaim(&|_| ()).await.unwrap();
    expect_moved_after_crash(&store, 2).await;
    drop(moved);
    pool.close().await.unwrap();
    expect_moved_after_crash(&store, 2).await;
    Some(freed)
}

/// The object of each append in turn: copies, publications, checkpoints, footers.
#[tokio::test]
async fn a_reclaim_continues_with_other_segments() {
    let mut freed = Vec::new();
    while let Some(bytes) = reclaim_without(freed.len() + 1, freed.len() % 2 == 0).await {
        freed.push(bytes);
    }
    let all = *freed.iter().max().unwrap();
    assert!(freed.len() > 6 && freed.iter().any(|bytes| *bytes < all), "{freed:?}");
}
