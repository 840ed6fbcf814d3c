//! Watching the ownership of a pool, for a node that takes the pool over through another process.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::{Cluster, Errno};
use super::header::Header;
use super::owner::Owner;
use super::watch::Watch;
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

/// Looks at the header of a pool, again and again.
pub struct PoolWatch {
    cluster: Arc<dyn Cluster>,
    here: Owner,
    watch: Option<Watch>,
}

impl PoolWatch {
    /// A watch of the pool in this namespace.
    pub fn new(cluster: Arc<dyn Cluster>) -> PoolWatch {
        PoolWatch { cluster, here: Owner::this(), watch: None }
    }

    /// Waits for `interval`, and looks. `None` if the pool does not exist.
    ///
    /// # Errors
    /// Those of the cluster. The silence of the owner is counted anew after an error.
    pub async fn look(&mut self, interval: Duration) -> Result<Option<Sight>> {
        let seen = match &mut self.watch {
            Some(watch) => watch.look(&*self.cluster, interval).await.map(drop),
            None => {
                self.cluster.sleep(interval).await;
                Header::read(&*self.cluster).await.map(|header| self.watch = Some(Watch::new(header)))
            }
        };
        match seen {
            Ok(()) => Ok(self.watch.as_ref().map(|watch| self.sight(watch))),
            Err(Errno(libc::ENOENT)) => {
                self.watch = None;
                Ok(None)
            }
            Err(e) => Err(store_error("reading the header of the pool", e)),
        }
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
