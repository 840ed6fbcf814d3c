//! This process as a candidate for the ownership of a pool, before it owns the pool and after it has released
//! the pool.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_store::StoreError;
use forebay_store::rados::{Heir, PoolConnection, Waiting};

use super::claim::blocking;
use crate::config::{PoolLocation, RadosPool};
use crate::serve::shard_process::membership;

/// What this process needs in order to claim a pool.
#[derive(Clone)]
pub(in crate::serve) enum Candidate {
    /// The lock file in this directory decides.
    Directory(PathBuf),
    /// A claim needs no monitor of the cluster any more.
    Ceph(Arc<PoolConnection>),
}

impl Candidate {
    /// Connects to the cluster of a pool in Ceph.
    pub async fn new(location: &PoolLocation) -> Result<Candidate, StoreError> {
        match location {
            PoolLocation::Directory(path) => Ok(Candidate::Directory(path.clone())),
            PoolLocation::Rados(pool) => {
                let RadosPool { address, options } = pool.clone();
                let connected = blocking(move || PoolConnection::new(&address, &options, membership())).await;
                connected.map(Candidate::Ceph)
            }
        }
    }

    /// Returns this process as an heir, for the owner that releases the pool to it; `None` if a release needs
    /// no name.
    pub fn as_heir(&self) -> Option<Heir> {
        match self {
            Candidate::Directory(_) => None,
            Candidate::Ceph(connection) => Some(connection.as_heir()),
        }
    }

    /// Waits until the pool is abandoned: the process to which this process released the pool gives no sign
    /// of life in it. Returns true if no other server takes the pool over yet; false if cancelled, or if
    /// there are no signs of life in such a pool. Blocks.
    pub fn is_abandoned(&self, is_cancelled: &(dyn Fn() -> bool + Sync)) -> bool {
        match self {
            Candidate::Directory(_) => false,
            Candidate::Ceph(connection) => {
                connection.is_abandoned(&Waiting { is_cancelled, ..Waiting::NONE })
            }
        }
    }
}
