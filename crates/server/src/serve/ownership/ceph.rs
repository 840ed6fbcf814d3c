//! A pool in Ceph: its owner has a term and a lease, and releases it to an heir.

use std::sync::Arc;

use forebay_control::operations::Held;
use forebay_frontend::plane::Gate;
use forebay_store::rados::{
    Claim, Cluster, Heir, NoticeBoard, PoolConnection, RadosStore, StandbyWatch, Waiting,
};
use forebay_store::{BoxFuture, StoreError};

use super::claim::Stopped;
use super::contract::{Opened, Ownership};
use crate::serve::host::notify;

impl Ownership for RadosStore {
    fn term(&self) -> Option<u64> {
        Some(self.term())
    }

    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError> {
        self.beside(namespace)
    }

    fn held(&self) -> Option<Held> {
        Some(Held {
            owner: self.owner().to_owned(),
            term: self.term(),
            lease_left: self.lease_left(),
            standbys: None,
        })
    }

    fn gate(&self) -> Gate {
        Gate::new(self.ownership())
    }

    fn lost(&self) -> BoxFuture<'static, ()> {
        self.lost()
    }

    fn announce_serving(&self) {
        self.announce_serving();
    }

    fn invite(&self, heir: Option<&Heir>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.invite(heir)
    }

    fn release_to(&self, heir: Heir) {
        self.release_to(heir);
    }

    fn continues(&self, term: u64, heir: Option<&Heir>) -> bool {
        self.continues(term, heir)
    }

    fn standbys(&self) -> Option<StandbyWatch> {
        Some(self.standbys())
    }

    fn notice_board(&self) -> Option<NoticeBoard> {
        Some(self.notice_board())
    }

    fn publish(&self, edition: u64, notice: &[u8]) -> BoxFuture<'static, Result<(), StoreError>> {
        self.publish(edition, notice)
    }
}

/// Claims a pool. Blocks.
pub(super) fn claim(
    connection: &PoolConnection,
    pool: &str,
    claim: Claim,
    stopped: &Stopped,
    waits: &(dyn Fn() + Sync),
) -> Result<Opened, StoreError> {
    let began = |owner: &str| {
        tracing::info!("waiting for the pool {pool}: another server holds it ({owner})");
        notify::notify("STATUS=standby: waiting for the pool");
        waits();
    };
    let waiting = Waiting { is_cancelled: &|| stopped.get(), began: &began };
    let store = connection.claim(claim, &waiting)?;
    tracing::info!("opened the store of the pool {pool}");
    notify::notify("STATUS=opening the pool");
    Ok(opened(store))
}

/// A store that this process owns.
pub(super) fn opened(store: Arc<RadosStore>) -> Opened {
    Opened { store: store.clone(), ownership: store, directory: None }
}
