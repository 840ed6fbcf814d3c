//! The contract of the ownership of one open pool.
//!
//! A pool has one owner. What enforces this depends on where the pool is: a directory has a lock file
//! ([`super::directory`]), and in Ceph each operation compares the term of the owner ([`super::ceph`]). The
//! server depends on this contract only: what keeps the ownership certain (the *lease*), how its end is
//! reported, and to which process the pool is released.
//!
//! An ownership belongs to its pool. It holds nothing of the process, such as signals, listeners or the
//! memory of the engine: a process with several pools has an ownership for each of them. It begins with a
//! claim ([`super::candidate`]) and ends when its [`Lease`](super::lease::Lease) is closed.

use std::future::{pending, ready};
use std::sync::Arc;

use forebay_control::operations::Held;
use forebay_frontend::plane::Gate;
use forebay_host::PoolDirectory;
use forebay_store::rados::{Cluster, Heir, NoticeBoard, StandbyWatch};
use forebay_store::{BoxFuture, Store, StoreError};

/// The store of a pool that this process owns.
pub(in crate::serve) struct Opened {
    pub store: Arc<dyn Store>,
    pub ownership: Arc<dyn Ownership>,
    /// The directory of the pool, unless the pool is in Ceph.
    pub directory: Option<PoolDirectory>,
}

/// The ownership of one open pool. A reference to it keeps the store open, so a caller uses the one that
/// [`Lease::ownership`](super::lease::Lease::ownership) returns, and does not keep it.
///
/// The defaults describe a pool that no other server can take while this one has it.
pub(in crate::serve) trait Ownership: Send + Sync {
    /// The number of the ownership, if a server on another host may own the pool next.
    fn term(&self) -> Option<u64> {
        None
    }

    /// What is reported of the ownership, if a server on another host may own the pool next.
    fn held(&self) -> Option<Held> {
        None
    }

    /// The objects of another namespace of the Ceph pool that has this pool. Does not keep the store open.
    ///
    /// # Errors
    /// The pool is not in Ceph, or its client cannot open the namespace.
    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError> {
        Err(StoreError::Io {
            what: format!("opening the namespace {namespace}"),
            reason: "the pool is not in Ceph".to_owned(),
            errno: libc::ENOTSUP,
        })
    }

    /// Lets replies leave while it is certain that no other server has taken the pool. Does not keep the
    /// store open.
    fn gate(&self) -> Gate {
        Gate::default()
    }

    /// Completes when another server has taken the pool. May keep the store open.
    fn lost(&self) -> BoxFuture<'static, ()> {
        Box::pin(pending())
    }

    /// Announces that this server serves clients.
    fn announce_serving(&self) {}

    /// Announces to a process that the pool is about to be released to it, so that it takes it without delay;
    /// or with `None`, that it is not. Nothing is reserved yet.
    fn invite(&self, heir: Option<&Heir>) -> BoxFuture<'static, Result<(), StoreError>> {
        let _ = heir;
        Box::pin(ready(Ok(())))
    }

    /// When the store is closed, the pool is reserved for this process for some seconds.
    fn release_to(&self, heir: Heir) {
        drop(heir);
    }

    /// Whether no server had the pool since this one released it in `term`; none but `heir`, if that is one
    /// to which it was released, and which had it until this ownership began.
    fn continues(&self, term: u64, heir: Option<&Heir>) -> bool {
        let _ = (term, heir);
        true
    }

    /// Watches the servers that wait for the pool, if there can be any. Does not keep the store open.
    fn standbys(&self) -> Option<StandbyWatch> {
        None
    }

    /// Returns the notice board of the servers that wait for the pool, if there can be any. Does not keep the
    /// store open.
    fn notice_board(&self) -> Option<NoticeBoard> {
        None
    }

    /// Publishes an edition of the notice for the servers that wait for the pool.
    fn publish(&self, edition: u64, notice: &[u8]) -> BoxFuture<'static, Result<(), StoreError>> {
        let _ = (edition, notice);
        Box::pin(ready(Ok(())))
    }
}
