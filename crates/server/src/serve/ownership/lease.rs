//! The store of an open pool, which can be taken away from it.
//!
//! In an upgrade the pool is closed in one process and opened in another while parts of it may still be
//! referenced, such as by a request of the control plane. So the store, with its lock, is released by
//! closing its lease, not by dropping the last reference to the pool. From then on all operations fail; the
//! lock is released when those that had begun have ended.

use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_control::operations::Held;
use forebay_format::{SegmentId, Superblock};
use forebay_frontend::plane::Gate;
use forebay_store::rados::RadosStore;
use forebay_store::{BoxFuture, Capacity, IoBuf, ObjectStat, Result, Selection, Store, StoreError};
use parking_lot::RwLock;

use super::store::Opened;

/// A store that can be taken away.
pub(in crate::serve) struct Lease(RwLock<Option<Opened>>);

impl Lease {
    pub fn new(opened: Opened) -> Arc<Lease> {
        Arc::new(Lease(RwLock::new(Some(opened))))
    }

    /// Waits until another server has taken the store. Never completes once the lease is closed.
    pub async fn lost(&self) {
        let lost = self.0.read().as_ref().map(|opened| (opened.lost)());
        if let Some(lost) = lost {
            lost.await;
        }
        // A store may also report the loss when it is released.
        if self.0.read().is_none() {
            pending::<()>().await;
        }
    }

    /// Lets replies leave while no other server can have taken the store.
    pub fn gate(&self) -> Gate {
        self.0.read().as_ref().map(|opened| opened.gate.clone()).unwrap_or_default()
    }

    /// The store if it is in Ceph and not released. The caller must not keep it.
    pub fn rados(&self) -> Option<Arc<RadosStore>> {
        self.0.read().as_ref().and_then(|opened| opened.rados.clone())
    }

    /// The ownership of a pool in Ceph.
    pub fn held(&self) -> Option<Held> {
        self.rados().map(|store| Held {
            owner: store.owner().to_owned(),
            term: store.term(),
            lease_left: store.lease_left(),
            standbys: None,
        })
    }

    /// Releases the store. May block until operations in progress have ended.
    pub fn close(&self) {
        let opened = self.0.write().take();
        drop(opened);
    }

    fn store(&self) -> Result<Arc<dyn Store>> {
        let closed = || StoreError::Io {
            what: "access to the store".into(),
            reason: "the pool was handed over to another process".into(),
            errno: libc::ESHUTDOWN,
        };
        self.0.read().as_ref().map(|opened| opened.store.clone()).ok_or_else(closed)
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
    fn prepare(&self, id: SegmentId, expected: u64) -> BoxFuture<'static, Result<()>> {
        match self.store() {
            Ok(store) => store.prepare(id, expected),
            Err(e) => Box::pin(ready(Err(e))),
        }
    }

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

    fn overdue(&self, len: usize) -> BoxFuture<'static, ()> {
        match self.store() {
            Ok(store) => store.overdue(len),
            Err(_) => Box::pin(std::future::pending()),
        }
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

    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        let store = self.store();
        Box::pin(async move { store?.tail(listed, from).await })
    }

    fn trim(&self, id: SegmentId, written: u64) -> BoxFuture<'_, Option<u64>> {
        let store = self.store();
        Box::pin(async move { store.ok()?.trim(id, written).await })
    }

    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>> {
        let store = self.store();
        begin(async move { store?.read_superblock().await })
    }

    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>> {
        let (store, new) = (self.store(), new.clone());
        begin(async move { store?.swap_superblock(&new).await })
    }

    fn is_shared(&self) -> bool {
        self.store().is_ok_and(|store| store.is_shared())
    }

    fn max_object_bytes(&self) -> u64 {
        self.store().map_or(u64::MAX, |store| store.max_object_bytes())
    }

    fn reserve(&self, bytes: u64) -> BoxFuture<'_, ()> {
        let store = self.store();
        Box::pin(async move {
            if let Ok(store) = store {
                store.reserve(bytes).await;
            }
        })
    }

    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        let store = self.store();
        begin(async move { store?.capacity().await })
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{DirectoryOptions, DirectoryStore};
    use tokio::sync::Notify;

    use super::*;

    fn lease(directory: &std::path::Path, taken: &Arc<Notify>) -> Arc<Lease> {
        let store = DirectoryStore::open(directory, &DirectoryOptions::default()).unwrap();
        let taken = taken.clone();
        let lost = move || -> BoxFuture<'static, ()> { Box::pin(taken.clone().notified_owned()) };
        let (lost, gate) = (Box::new(lost), Gate::default());
        Lease::new(Opened { store, lost, gate, rados: None, directory: None })
    }

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn operations_progress_without_being_polled() {
        let dir = tempfile::tempdir().unwrap();
        let lease = lease(dir.path(), &Arc::default());
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

    #[test]
    fn a_loss_is_reported_only_while_the_store_is_held() {
        let (dir, taken) = (tempfile::tempdir().unwrap(), Arc::new(Notify::new()));
        let held = lease(dir.path(), &taken);
        let mut lost = std::pin::pin!(held.lost());
        assert!(!is_ready(lost.as_mut()));
        taken.notify_waiters();
        assert!(is_ready(lost));

        let mut lost = std::pin::pin!(held.lost());
        assert!(!is_ready(lost.as_mut()));
        held.close();
        taken.notify_waiters();
        assert!(!is_ready(lost), "the server gave the store away by itself");
        assert!(!is_ready(std::pin::pin!(held.lost())));
        // Nothing keeps the store open.
        lease(dir.path(), &taken);
    }
}
