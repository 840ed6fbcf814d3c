//! The store of an open pool, which can be taken away from it.
//!
//! In an upgrade the pool is closed in one process and opened in another while parts of it may still be
//! referenced, such as by a request of the control plane. So the store, with its lock, is released by
//! closing its lease, not by dropping the last reference to the pool. From then on all operations fail; the
//! lock is released when those that had begun have ended.

use std::sync::Arc;

use forebay_format::{SegmentId, Superblock};
use forebay_store::{BoxFuture, Capacity, IoBuf, ObjectStat, Result, Selection, Store, StoreError};
use parking_lot::RwLock;

/// A store that can be taken away.
pub(super) struct Lease(RwLock<Option<Arc<dyn Store>>>);

impl Lease {
    pub fn new(store: Arc<dyn Store>) -> Arc<Lease> {
        Arc::new(Lease(RwLock::new(Some(store))))
    }

    /// Releases the store. May block until operations in progress have ended.
    pub fn close(&self) {
        let store = self.0.write().take();
        drop(store);
    }

    fn store(&self) -> Result<Arc<dyn Store>> {
        let closed = || StoreError::Io {
            what: "access to the store".into(),
            reason: "the pool was handed over to another process".into(),
            errno: libc::ESHUTDOWN,
        };
        self.0.read().clone().ok_or_else(closed)
    }
}

impl Store for Lease {
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>> {
        let store = self.store();
        Box::pin(async move { store?.append(id, offset, data, expected).await })
    }

    fn sync(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        let store = self.store();
        Box::pin(async move { store?.sync(id).await })
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>> {
        let store = self.store();
        Box::pin(async move { store?.read(id, offset, len).await })
    }

    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        let store = self.store();
        Box::pin(async move { store?.delete(id).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        let store = self.store();
        Box::pin(async move { store?.list().await })
    }

    fn list_lengths_of(&self, selected: Selection) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        let store = self.store();
        Box::pin(async move { store?.list_lengths_of(selected).await })
    }

    fn trim(&self, id: SegmentId) -> BoxFuture<'_, ()> {
        let store = self.store();
        Box::pin(async move {
            if let Ok(store) = store {
                store.trim(id).await;
            }
        })
    }

    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>> {
        let store = self.store();
        Box::pin(async move { store?.read_superblock().await })
    }

    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>> {
        let (store, new) = (self.store(), new.clone());
        Box::pin(async move { store?.swap_superblock(&new).await })
    }

    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        let store = self.store();
        Box::pin(async move { store?.capacity().await })
    }
}
