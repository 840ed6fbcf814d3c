//! Observes the ownership of a pool, for a node of a cluster: another process of the node takes the pool
//! over.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::{Cluster, Errno};
use super::header::Header;
use super::owner::Owner;
use super::watch::{Errors, Watch};
use super::{Claim, SignOfLife, ownership, store_error};
use crate::Result;

/// The ownership of a pool at one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// The owner, for messages; `None` if the pool has none.
    pub owner: Option<String>,
    /// The last sign of life of the owner.
    pub sign: SignOfLife,
    /// Whether the owner serves clients.
    pub is_serving: bool,
    /// Whether the pool can be taken at once: it has no owner and is reserved for none, or its owner was a
    /// process of this host that has ended.
    pub is_free: bool,
    /// For how long neither the ownership nor the heartbeat has changed, in reads that all succeeded.
    pub silent_for: Duration,
}

/// Time between two looks at a pool, in which an owner that lives changes its heartbeat.
const OBSERVE: Duration = Duration::from_millis(2500);

/// Looks at the header of a pool, again and again.
pub struct PoolWatch {
    cluster: Arc<dyn Cluster>,
    here: Owner,
    watch: Option<Watch>,
    /// Errors of the first look.
    errors: Errors,
}

impl PoolWatch {
    /// A watch of the pool in this namespace.
    pub fn new(cluster: Arc<dyn Cluster>) -> PoolWatch {
        let errors = Errors::new("the header of a shard's pool cannot be read");
        PoolWatch { cluster, here: Owner::this(), watch: None, errors }
    }

    /// Waits for `interval`, and looks. `None` if the pool does not exist.
    ///
    /// # Errors
    /// The errors of the cluster, which are logged. The silence of the owner is counted again after an error.
    pub async fn look(&mut self, interval: Duration) -> Result<Option<Sight>> {
        let seen = match &mut self.watch {
            Some(watch) => watch.look(&*self.cluster, interval).await.map(drop),
            None => {
                self.cluster.sleep(interval).await;
                Header::read(&*self.cluster).await.map(|header| self.watch = Some(Watch::new(header)))
            }
        };
        match seen {
            Ok(()) => {
                self.errors.end();
                Ok(self.watch.as_ref().map(|watch| self.sight(watch)))
            }
            Err(Errno(libc::ENOENT)) => {
                self.watch = None;
                Ok(None)
            }
            Err(e) => {
                if self.watch.is_none() {
                    self.errors.report(self.cluster.now(), e);
                }
                Err(store_error("reading the header of the pool", e))
            }
        }
    }

    /// Looks once, and again after some seconds if the pool has an owner that may live. Also returns whether
    /// the owner lives: whether its heartbeat or the ownership has changed. `None` if the pool does not
    /// exist.
    ///
    /// # Errors
    /// The errors of the cluster.
    pub async fn observe(&mut self) -> Result<Option<(Sight, bool)>> {
        let Some(first) = self.look(Duration::ZERO).await? else { return Ok(None) };
        if first.owner.is_none() || first.is_free {
            return Ok(Some((first, false)));
        }
        let second = self.look(OBSERVE).await?;
        Ok(second.map(|second| {
            let lives = second.owner.is_some() && second.sign != first.sign;
            (second, lives)
        }))
    }

    fn sight(&self, watch: &Watch) -> Sight {
        let header = &watch.seen;
        let owner = (!header.owner.is_empty()).then(|| ownership::name(&header.owner));
        Sight {
            is_serving: owner.is_some() && header.is_serving,
            owner,
            sign: header.sign_of_life(),
            is_free: ownership::is_free(header, &self.here, Claim::IfFree),
            silent_for: watch.silent_for(),
        }
    }
}
