//! The store of an open pool, which can be taken away from it.
//!
//! In an upgrade the pool is closed in one process and opened in another while parts of it may still be
//! referenced, such as by a request of the control plane. So the store, with its lock, is released by
//! closing its lease, not by dropping the last reference to the pool. From then on all operations fail; the
//! lock is released when those that had begun have ended.

use std::future::pending;
use std::sync::Arc;

use forebay_control::operations::Held;
use forebay_format::{SegmentId, Superblock};
use forebay_frontend::plane::Gate;
use forebay_store::rados::Heir;
use forebay_store::{Capacity, Completion, IoBuf, ObjectStat, Selection, Store, StoreError};
use parking_lot::RwLock;

use super::contract::{Opened, Ownership};

/// A store that another server can take away.
pub(in crate::serve) struct Lease(RwLock<Option<Opened>>);

impl Lease {
    pub fn new(opened: Opened) -> Arc<Lease> {
        Arc::new(Lease(RwLock::new(Some(opened))))
    }

    /// Waits until another server has taken the store. Never completes once the lease is closed.
    pub async fn lost(&self) {
        let lost = self.with_ownership(|ownership| ownership.lost());
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
        self.with_ownership(|ownership| ownership.gate()).unwrap_or_default()
    }

    /// The ownership of the pool, unless the store was released. The caller must not keep it.
    pub fn ownership(&self) -> Option<Arc<dyn Ownership>> {
        self.0.read().as_ref().map(|opened| opened.ownership.clone())
    }

    /// Returns what metrics report of the ownership.
    pub fn held(&self) -> Option<Held> {
        self.with_ownership(|ownership| ownership.held()).flatten()
    }

    /// When the store is closed, the pool is reserved for this process, if a release needs a name.
    pub fn release_to(&self, heir: Option<Heir>) {
        if let Some(heir) = heir {
            self.with_ownership(|ownership| ownership.release_to(heir));
        }
    }

    /// Uses the ownership, which is released only afterwards. A reference that outlives a release would
    /// release the store on another thread.
    fn with_ownership<T>(&self, of: impl FnOnce(&dyn Ownership) -> T) -> Option<T> {
        self.0.read().as_ref().map(|opened| of(&*opened.ownership))
    }

    /// Releases the store. May block until operations in progress have ended.
    pub fn close(&self) {
        let opened = self.0.write().take();
        drop(opened);
    }

    fn store(&self) -> Arc<dyn Store> {
        self.0.read().as_ref().map_or_else(|| Arc::new(Released) as _, |opened| opened.store.clone())
    }
}

impl Store for Lease {
    forebay_store::forward_store!(store(););
}

/// What is left of a store that was released: all operations fail.
struct Released;

fn refuse<T>() -> Completion<T> {
    Completion::ended(Err(StoreError::Io {
        what: "access to the store".into(),
        reason: "the pool was handed over to another process".into(),
        errno: libc::ESHUTDOWN,
    }))
}

impl Store for Released {
    fn append(&self, _: SegmentId, _: u64, _: IoBuf, _: u64) -> Completion<IoBuf> {
        refuse()
    }
    fn sync(&self, _: SegmentId) -> Completion<()> {
        refuse()
    }
    fn read(&self, _: SegmentId, _: u64, _: usize) -> Completion<IoBuf> {
        refuse()
    }
    fn delete(&self, _: SegmentId) -> Completion<()> {
        refuse()
    }
    fn list_lengths_of(&self, _: Selection) -> Completion<Vec<ObjectStat>> {
        refuse()
    }
    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        refuse()
    }
    fn swap_superblock(&self, _: &Superblock) -> Completion<()> {
        refuse()
    }
    fn capacity(&self) -> Completion<Capacity> {
        refuse()
    }
    fn prepare(&self, _: SegmentId, _: u64) -> Completion<()> {
        refuse()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use forebay_store::{BoxFuture, DirectoryOptions, DirectoryStore};
    use tokio::sync::Notify;

    use super::*;

    /// An ownership that another server can take.
    struct Taken(Arc<Notify>);

    impl Ownership for Taken {
        fn lost(&self) -> BoxFuture<'static, ()> {
            Box::pin(self.0.clone().notified_owned())
        }
    }

    fn lease(directory: &std::path::Path, taken: &Arc<Notify>) -> Arc<Lease> {
        let store = DirectoryStore::open(directory, &DirectoryOptions::default()).unwrap();
        Lease::new(Opened { store, ownership: Arc::new(Taken(taken.clone())), directory: None })
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
