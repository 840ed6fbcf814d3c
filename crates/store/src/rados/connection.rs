//! A connection to a pool: what a process can do before it owns the pool, and after it has released the pool.

use std::sync::Arc;

use super::cluster::Cluster;
use super::handover::{self, Fate};
use super::librados::LibradosCluster;
use super::membership::Membership;
use super::owner::Owner;
use super::ownership::{self, Claimant};
#[cfg(feature = "test-util")]
use super::simulated::SimulatedClient;
use super::{Claim, RadosAddress, RadosOptions, RadosStore, Waiting, block_on, standby, store_error};
use crate::Result;

/// A server to which a pool can be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heir(pub(super) Owner);

impl Heir {
    /// Text from which [`Heir::parse`] makes the same value in another process.
    pub fn text(&self) -> String {
        self.0.text()
    }

    /// Parses the output of [`Heir::text`]; `None` for any other text.
    pub fn parse(text: &str) -> Option<Heir> {
        Owner::parse(text).map(Heir)
    }
}

impl std::fmt::Display for Heir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What became of a pool that was released to an heir.
pub enum HandedOver {
    /// Another server has the pool.
    To {
        /// Name of the server, for messages.
        owner: String,
        /// Term of the server's ownership.
        term: u64,
        /// Whether that server serves clients.
        is_serving: bool,
    },
    /// This server took the pool back.
    Back(Arc<RadosStore>),
}

/// A connection to a pool, which this process may claim.
pub struct PoolConnection {
    cluster: Arc<dyn Cluster>,
    here: Claimant,
}

impl PoolConnection {
    /// Connects, for a server that claims the pool as a member of a cluster or not. Blocks.
    ///
    /// # Errors
    /// If the cluster cannot be reached.
    pub fn new(
        address: &RadosAddress,
        options: &RadosOptions,
        membership: Membership,
    ) -> Result<Arc<PoolConnection>> {
        let cluster = LibradosCluster::connect(address, options)?;
        Ok(Arc::new(PoolConnection { cluster, here: Claimant { owner: Owner::this(), membership } }))
    }

    /// A connection of a simulated server.
    #[cfg(feature = "test-util")]
    pub fn simulated(cluster: Arc<SimulatedClient>, name: &str) -> PoolConnection {
        PoolConnection::simulated_as(cluster, name, Membership::Single)
    }

    /// Works like [`PoolConnection::simulated`], for a server that may be a member of a cluster.
    #[cfg(feature = "test-util")]
    pub fn simulated_as(cluster: Arc<SimulatedClient>, name: &str, membership: Membership) -> PoolConnection {
        PoolConnection { cluster, here: Claimant { owner: Owner::simulated(name), membership } }
    }

    /// Enters a cluster, by its namespace, into the header of a pool that no server has: from now on only
    /// nodes of the cluster open the pool. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) if a server has the pool, or has opened it by then; as
    /// [`PoolConnection::claim`].
    pub fn enter_cluster(&self, namespace: &str) -> Result<()> {
        block_on(self.entered(namespace))
    }

    /// Works like [`PoolConnection::enter_cluster`].
    ///
    /// # Errors
    /// As there.
    pub async fn entered(&self, namespace: &str) -> Result<()> {
        ownership::enter_cluster(&*self.cluster, &self.here.owner, namespace).await
    }

    /// Works like [`PoolConnection::claim`].
    ///
    /// # Errors
    /// As there.
    pub async fn claimed(&self, claim: Claim, waiting: &Waiting<'_>) -> Result<Arc<RadosStore>> {
        RadosStore::claim(self.cluster.clone(), &self.here, claim, waiting).await
    }

    /// Returns this process as an heir, to which a predecessor can release the pool.
    pub fn as_heir(&self) -> Heir {
        Heir(self.here.owner.clone())
    }

    /// Opens the pool for writing, and creates it if it is missing. Blocks; with [`Claim::Wait`] until the
    /// owner releases the pool or dies.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another server owns the pool; `ECANCELED` as [`StoreError::Io`] if cancelled;
    /// other errors of the system.
    pub fn claim(&self, claim: Claim, waiting: &Waiting<'_>) -> Result<Arc<RadosStore>> {
        block_on(self.claimed(claim, waiting))
    }

    /// Returns a standby that is alive: any standby, or the standby that `to` names as `HOST` or
    /// `HOST:PROCESS`. Observes the header for some seconds before it returns `None`. Blocks.
    ///
    /// # Errors
    /// The errors of the cluster.
    pub fn find_heir(&self, to: Option<&str>) -> Result<Option<Heir>> {
        block_on(self.find(to))
    }

    /// Works like [`PoolConnection::find_heir`].
    ///
    /// # Errors
    /// As there.
    pub async fn find(&self, to: Option<&str>) -> Result<Option<Heir>> {
        let found = standby::find_heir(&*self.cluster, to).await;
        found.map(|owner| owner.map(Heir)).map_err(|e| store_error("looking for a standby", e))
    }

    /// Waits until the pool is abandoned: another process of this host, to which this process released the
    /// pool, gives no heartbeat. Returns true before another server regards it as dead; false if cancelled.
    /// Blocks.
    pub fn is_abandoned(&self, waiting: &Waiting<'_>) -> bool {
        block_on(self.abandoned(waiting))
    }

    /// Works like [`PoolConnection::is_abandoned`].
    pub async fn abandoned(&self, waiting: &Waiting<'_>) -> bool {
        handover::is_abandoned(&*self.cluster, waiting).await
    }

    /// Waits until the pool that this process released in `term` is served by another server, or takes it
    /// back. Blocks.
    ///
    /// # Errors
    /// As [`PoolConnection::claim`].
    pub fn settle(&self, term: u64, waiting: &Waiting<'_>) -> Result<HandedOver> {
        block_on(self.settled(term, waiting))
    }

    /// Works like [`PoolConnection::settle`].
    ///
    /// # Errors
    /// As there.
    pub async fn settled(&self, term: u64, waiting: &Waiting<'_>) -> Result<HandedOver> {
        loop {
            match handover::settle(&*self.cluster, &self.here, term, waiting).await? {
                Fate::Taken { owner, term, is_serving } => {
                    return Ok(HandedOver::To { owner, term, is_serving });
                }
                Fate::Back(taken) => {
                    let cluster = self.cluster.clone();
                    if let Some(store) = RadosStore::of_owner(cluster, &self.here.owner, taken, true).await? {
                        return Ok(HandedOver::Back(store));
                    }
                }
            }
        }
    }
}
