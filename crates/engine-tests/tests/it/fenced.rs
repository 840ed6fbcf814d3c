//! Another server has opened the pool: whichever operation of the store reports it first, nothing is
//! acknowledged from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::{Error, PoolConfig, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{Capacity, Completion, IoBuf, MemoryStore, ObjectStat, Selection, Store, StoreError};

use crate::common::{config, noise, open_with};

/// Operations that only a reclaim, or the check of the free room, makes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Delete,
    List,
    Capacity,
}

/// A store that reports a new owner at one kind of operation.
struct Taken {
    store: MemoryStore,
    at: Operation,
    is_taken: AtomicBool,
}

impl Taken {
    fn is_taken(&self, at: Operation) -> bool {
        self.at == at && self.is_taken.load(Relaxed)
    }
}

fn fenced<T>() -> Completion<T> {
    Completion::ended(Err(StoreError::Fenced))
}

impl Store for Taken {
    forebay_store::forward_store!(store; except delete, list_lengths_of, capacity);

    fn delete(&self, id: SegmentId) -> Completion<()> {
        if self.is_taken(Operation::Delete) { fenced() } else { self.store.delete(id) }
    }
    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>> {
        if self.is_taken(Operation::List) { fenced() } else { self.store.list_lengths_of(selected) }
    }
    fn capacity(&self) -> Completion<Capacity> {
        if self.is_taken(Operation::Capacity) { fenced() } else { self.store.capacity() }
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_after_a_reclaim_failed_because_of_another_owner() {
    for at in [Operation::Delete, Operation::List, Operation::Capacity] {
        let store = Arc::new(Taken { store: MemoryStore::new(), at, is_taken: AtomicBool::new(false) });
        let pool =
            open_with(&store, PoolConfig { reclaim_pause: Duration::from_secs(3600), ..config() }).await;
        pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await.unwrap();
        let v = pool.attach("v").unwrap();
        for number in 0..2 {
            v.write(0, &noise(number, 4 << 20), false).await.unwrap();
            v.flush().await.unwrap();
        }
        store.is_taken.store(true, Relaxed);
        let reclaimed = pool.reclaim(&|_| ()).await;
        assert!(matches!(reclaimed, Err(Error::Fenced)), "{at:?}: {reclaimed:?}");
        let written = v.write(0, &noise(9, 4096), false).await;
        assert!(matches!(written, Err(Error::Fenced)), "{at:?}: {written:?}");
    }
}

/// A store whose appends fail from one moment on, and whose reads report a new owner from a later one on.
struct Failing {
    store: MemoryStore,
    fails: AtomicBool,
    is_taken: AtomicBool,
}

impl Store for Failing {
    forebay_store::forward_store!(store; except append, read);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        if self.fails.load(Relaxed) {
            const EIO: i32 = 5;
            let failed = StoreError::Io { what: "append".into(), reason: "failed".into(), errno: EIO };
            return Completion::ended(Err(failed));
        }
        self.store.append(id, offset, data, expected)
    }
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        if self.is_taken.load(Relaxed) { fenced() } else { self.store.read(id, offset, len) }
    }
}

/// The pool has latched because of the failure, and still serves reads. When a read finds the other owner, no
/// read may be answered any more, also not from RAM.
#[tokio::test]
async fn a_pool_that_has_failed_before_reports_another_owner() {
    let (fails, is_taken) = (AtomicBool::new(false), AtomicBool::new(false));
    let store = Arc::new(Failing { store: MemoryStore::new(), fails, is_taken });
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("v").unwrap().write(0, &noise(1, 1 << 20), false).await.unwrap();
    pool.close().await.unwrap();
    drop(pool);
    let pool = open_with(&store, config()).await;
    let v = pool.attach("v").unwrap();
    v.write(4 << 20, &noise(2, 4096), false).await.unwrap();
    store.fails.store(true, Relaxed);
    let flushed = v.flush().await;
    assert!(matches!(flushed, Err(Error::Latched(_))), "{flushed:?}");
    let mut block = [0; 4096];
    v.read(4 << 20, &mut block).await.unwrap();
    store.is_taken.store(true, Relaxed);
    let read = v.read(0, &mut block).await;
    assert!(matches!(read, Err(Error::Fenced)), "{read:?}");
    let read = v.read(4 << 20, &mut block).await;
    assert!(v.is_fenced() && matches!(read, Err(Error::Fenced)), "{read:?}");
    let written = v.write(0, &block, false).await;
    assert!(matches!(written, Err(Error::Fenced)), "{written:?}");
}
