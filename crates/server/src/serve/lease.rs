//! The store of an open pool, which can be taken away from it.
//!
//! In an upgrade the pool is closed in one process and opened in another while parts of it may still be
//! referenced, such as by a request of the control plane. So the store, with its lock, is released by
//! closing its lease, not by dropping the last reference to the pool. From then on all operations fail; the
//! lock is released when those that had begun have ended.

use std::future::{Future, ready};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

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

/// Begins an operation: the contract requires that it progresses without being polled.
fn begin<'a, T: Send + 'a>(operation: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
    let mut operation: BoxFuture<'a, T> = Box::pin(operation);
    match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Box::pin(ready(result)),
        Poll::Pending => operation,
    }
}

impl Store for Lease {
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>> {
        let store = self.store();
        begin(async move { store?.append(id, offset, data, expected).await })
    }

    fn append_synced(
        &self,
        id: SegmentId,
        offset: u64,
        data: IoBuf,
        expected: u64,
    ) -> BoxFuture<'_, Result<IoBuf>> {
        let store = self.store();
        begin(async move { store?.append_synced(id, offset, data, expected).await })
    }

    fn sync(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        let store = self.store();
        begin(async move { store?.sync(id).await })
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>> {
        let store = self.store();
        begin(async move { store?.read(id, offset, len).await })
    }

    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        let store = self.store();
        begin(async move { store?.delete(id).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        let store = self.store();
        begin(async move { store?.list().await })
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
        begin(async move { store?.read_superblock().await })
    }

    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>> {
        let (store, new) = (self.store(), new.clone());
        begin(async move { store?.swap_superblock(&new).await })
    }

    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        let store = self.store();
        begin(async move { store?.capacity().await })
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{DirectoryOptions, DirectoryStore};

    use super::*;

    #[test]
    fn operations_progress_without_being_polled() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(dir.path(), &DirectoryOptions::default()).unwrap();
        let lease = Lease::new(store);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let first = lease.append(SegmentId(1), 0, IoBuf::zeroed(4096), 4096);
        let listed = || runtime.block_on(lease.list()).unwrap().len();
        while listed() == 0 {
            std::thread::yield_now();
        }
        runtime.block_on(first).unwrap();
        lease.close();
        assert!(runtime.block_on(lease.list()).is_err());
    }
}
