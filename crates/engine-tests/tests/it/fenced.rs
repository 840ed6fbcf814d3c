//! Another server has opened the pool: whichever operation of the store reports it first, nothing is
//! acknowledged from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::{BoxFuture, Error, PoolConfig, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{Capacity, MemoryStore, ObjectStat, Result, Store, StoreError};

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

fn fenced<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(StoreError::Fenced)))
}

impl Store for Taken {
    forebay_store::forward_store!(store; append, sync, read, read_superblock, swap_superblock);

    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        if self.is_taken(Operation::Delete) { fenced() } else { self.store.delete(id) }
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        if self.is_taken(Operation::List) { fenced() } else { self.store.list() }
    }
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
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
