//! Errors of the objects that nodes share.

use forebay_store::rados::Errno;

use crate::names::shown;

/// Result of an operation on the objects of a cluster.
pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// Why an operation on the objects of a cluster has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The name is in use.
    #[error("{} exists", shown(.0))]
    Exists(String),
    /// Nothing has the name.
    #[error("{} does not exist", shown(.0))]
    Missing(String),
    /// The name is that of a disk or a target in another shard.
    #[error("{} is in shard {shard} of the cluster", shown(name))]
    Elsewhere {
        /// The name.
        name: String,
        /// The shard that has it.
        shard: u32,
    },
    /// An operation on this name is in progress, or an earlier owner of the shard has begun one that is not
    /// settled yet.
    #[error("another operation on {} is in progress; repeat the request", shown(.0))]
    Unsettled(String),
    /// This node does not own the shard any more.
    #[error("another node has taken shard {0} over")]
    Lost(u32),
    /// A table of the shard cannot be read, so it is not known whether a disk or a target has the name.
    #[error("it is not known whether {} exists: {reason}", shown(name))]
    Unknown {
        /// The name.
        name: String,
        /// Why the table cannot be read.
        reason: String,
    },
    /// The objects were written by a later release.
    #[error(
        "the cluster was changed by a later release of Forebay, which this one does not support; install it on this node"
    )]
    Unsupported,
    /// The objects are not those of a cluster.
    #[error("the cluster's object {object} is damaged: {reason}")]
    Damaged {
        /// The object.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no cluster of this name.
    #[error("there is no cluster here; create one with 'forebay cluster create'")]
    NoCluster,
    /// The image has clones in another shard.
    #[error(
        "the image {} has {clones} clones in shard {shard} of the cluster, for example '{example}'",
        shown(image)
    )]
    HasClones {
        /// Name of the image.
        image: String,
        /// A shard that has clones of the image.
        shard: u32,
        /// Number of clones in that shard.
        clones: u64,
        /// Name of one of these clones.
        example: String,
    },
    /// A change was refused because of the state of the cluster.
    #[error("{0}")]
    Refused(String),
    /// Ceph has reported an error.
    #[error("Ceph has failed: {}", std::io::Error::from_raw_os_error(.0.0))]
    Ceph(Errno),
}

impl From<Errno> for ClusterError {
    fn from(e: Errno) -> ClusterError {
        ClusterError::Ceph(e)
    }
}
