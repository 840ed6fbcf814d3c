//! Opening the pool again after this process released it to another process that did not take it.
//!
//! Until then clients wait: their connections are parked. So an outage of Ceph delays them, as always, and
//! does not end the server; a signal to stop does. Until this process owns the pool again, it is reserved
//! for it: memory of this host may hold writes that were acknowledged.
//!
//! Connections continue only if no other server had the pool in between. The other server may have served a
//! client, so requests that were read or sent before must not be executed or answered any more.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Error as EngineError;
use forebay_store::StoreError;
use forebay_store::rados::{Claim, Heir};

use super::candidate::Candidate;
use super::claim::blocking;
use super::contract::Opened;
use super::lease::Lease;
use super::loss::{Loss, exit_without_pool};
use super::store;
use crate::config::ServeConfig;
use crate::serve::open::OpenPool;
use crate::serve::{ServeError, Server};

/// Time for another process on this host to release a store, and the interval of attempts to open it.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_RETRY: Duration = Duration::from_millis(1);
/// Interval of attempts after an error of the cluster.
const RETRY: Duration = Duration::from_secs(1);

/// A pool that this process is about to release: the means to get it back.
#[derive(Clone)]
pub(in crate::serve) struct Back {
    pub candidate: Candidate,
    /// The term that ends; 0 for a pool without terms.
    pub term: u64,
    /// The process of this host to which the pool is released. This process ends the successor if it does not
    /// serve clients.
    pub successor: Option<Heir>,
}

/// The pool, opened again.
pub(in crate::serve) struct Reopened {
    pub open: OpenPool,
    /// No other server had the pool in the meantime.
    pub is_same: bool,
}

impl Back {
    /// Connects, if the pool is in Ceph.
    pub async fn connect(config: &ServeConfig, open: &OpenPool) -> Result<Back, StoreError> {
        let term = open.store.ownership().and_then(|ownership| ownership.term()).unwrap_or_default();
        Ok(Back { candidate: Candidate::new(&config.location).await?, term, successor: None })
    }

    /// Reserves the pool for this process when its store is released.
    pub fn reserve(&self, store: &Lease) {
        store.release_to(self.candidate.as_heir());
    }
}

impl Server<'_> {
    /// Opens a store that this process or another process has just closed.
    pub(in crate::serve) async fn open_released_store(
        &self,
        candidate: &Candidate,
    ) -> Result<Arc<Lease>, ServeError> {
        let begun = Instant::now();
        loop {
            let opened = match candidate {
                Candidate::Ceph(connection) => {
                    let (config, host, connection) = (self.config, self.engine.host(), connection.clone());
                    let opened = store::claim(config, connection, Claim::IfFree, host, pending()).await;
                    opened.map(|opened| opened.expect("no signal ends the claim"))
                }
                Candidate::Directory(path) => self.open_store(path).await,
            };
            match opened {
                Err(ServeError::Store { source: StoreError::Busy(_), .. }) if begun.elapsed() < RELEASE => {
                    tokio::time::sleep(RELEASE_RETRY).await;
                }
                other => return other.map(Lease::new),
            }
        }
    }

    /// Opens the pool again after another process did not take it. `store` is the store of the pool if this
    /// process has already taken it back. Returns `None` if a signal to stop arrives before the pool is open.
    /// The opening may then still be in progress, and the caller ends the process.
    pub(in crate::serve) async fn reopen(
        &mut self,
        mut back: Back,
        mut store: Option<Opened>,
    ) -> Result<Option<Reopened>, ServeError> {
        let Candidate::Ceph(connection) = back.candidate.clone() else {
            let store = self.open_released_store(&back.candidate).await?;
            let open = self.open_pool_unless_stopped(store).await?;
            return Ok(open.map(|open| Reopened { open, is_same: true }));
        };
        let mut is_same = true;
        loop {
            let (config, host, connection) = (self.config, self.engine.host(), connection.clone());
            let claim = Claim::Back { term: back.term };
            let claimed = match store.take() {
                Some(store) => store::taken_back(config, store, connection.as_heir(), host).await.map(Some),
                None => store::claim(config, connection, claim, host, self.signals.stop()).await,
            };
            let error = match claimed {
                Ok(None) => return Ok(None),
                Ok(Some(opened)) => {
                    is_same &= opened.ownership.continues(back.term, back.successor.as_ref());
                    back.term = opened.ownership.term().unwrap_or_default();
                    back.successor = None;
                    let lease = Lease::new(opened);
                    match self.open_pool_unless_stopped(lease.clone()).await {
                        Err(e @ ServeError::Pool(EngineError::Store(_))) => {
                            self.give_up(lease, &back).await;
                            e
                        }
                        opened => return opened.map(|open| open.map(|open| Reopened { open, is_same })),
                    }
                }
                Err(ServeError::Store { source: StoreError::Busy(_), .. }) => exit_without_pool(Loss::Taken),
                Err(e) => e,
            };
            tracing::warn!(%error, "the pool cannot be opened again; trying again, while clients wait");
            if tokio::time::timeout(RETRY, self.signals.stop()).await.is_ok() {
                return Ok(None);
            }
        }
    }

    /// Releases what was claimed for an opening that failed, before the next attempt.
    async fn give_up(&self, lease: Arc<Lease>, back: &Back) {
        back.reserve(&lease);
        self.engine.release_memory();
        blocking(move || lease.close()).await;
    }
}
