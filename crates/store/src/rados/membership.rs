//! Which servers can claim a pool that belongs to a cluster.
//!
//! The header of a pool names the cluster of which the pool is a shard. A node of the cluster enters the name
//! in the operation that makes the node the owner of the pool, and no operation removes it. A server that is
//! not a node of the cluster does not take such a pool: it would serve the disks of the shard without the
//! directory of names and without the tokens of the cluster, and the nodes could not get the shard while this
//! server lives.

use forebay_format::FormatError;

use super::cluster::Step;
use super::header::{Header, SHARD_OF};
use crate::StoreError;

/// As what a server claims a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// As a single server, which does not belong to a cluster.
    Single,
    /// As a node of the cluster with this namespace.
    ShardOf(String),
    /// For maintenance of the pool, which serves no client.
    Maintenance,
}

impl Membership {
    /// Whether such a server can claim a pool with this header.
    ///
    /// # Errors
    /// If it cannot, or the format of the pool is not supported.
    pub(super) fn check(&self, seen: &Header) -> Result<(), StoreError> {
        let refused =
            |reason| Err(StoreError::Io { what: "opening the pool".into(), reason, errno: libc::EPERM });
        match self {
            Membership::Maintenance => {}
            _ if seen.shard_of.is_empty() => {}
            Membership::ShardOf(cluster) if *cluster == seen.shard_of => {}
            Membership::ShardOf(_) => {
                return refused(format!("it is a shard of another cluster, '{}'", seen.shard_of));
            }
            Membership::Single => {
                return refused(format!(
                    "it is a shard of the cluster '{0}'; start this server as a node of the cluster: \
                     forebay serve --cluster rados:POOL/{0}",
                    seen.shard_of
                ));
            }
        }
        seen.check_format().map_err(|e: FormatError| {
            let (what, reason) = ("opening the pool".into(), e.to_string());
            StoreError::Io { what, reason, errno: libc::EPROTONOSUPPORT }
        })
    }

    /// The namespace of the cluster to which such a server belongs.
    pub(super) fn cluster(&self) -> Option<&str> {
        match self {
            Membership::ShardOf(cluster) => Some(cluster),
            Membership::Single | Membership::Maintenance => None,
        }
    }

    /// The step that enters the cluster into the header.
    pub(super) fn enter(&self) -> Option<Step> {
        self.cluster().map(|cluster| Step::Set(SHARD_OF, cluster.to_owned()))
    }
}
