//! Clusters in the API: nodes, shards, and where a volume is served.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The header of a list from all shards, if some shards did not answer: their numbers, separated by commas.
/// The list lacks what these shards have.
pub const MISSING_SHARDS: &str = "forebay-missing-shards";

/// The header in which the node of a cluster names the client that it has authenticated, to the server of a
/// shard.
pub const FORWARDED_CLIENT: &str = "x-forebay-client";

/// The header in which the node of a cluster states to the server of a shard where clients of the cluster
/// connect: a list of [`PortalsView`] as JSON, that of the node itself first.
pub const PORTALS: &str = "forebay-portals";

/// Where clients reach the disks of a cluster through one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Portals)]
pub struct PortalsView {
    /// Name of the node.
    pub node: String,
    /// The addresses for NBD.
    pub nbd: Vec<String>,
    /// The iSCSI portals.
    pub iscsi: Vec<String>,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeStateView {
    /// It owns shards.
    Up,
    /// It hands its shards over, and gets none.
    Draining,
    /// It did not answer when another node took a shard over from it.
    Suspect,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeView {
    /// Number of the node.
    pub number: u32,
    /// Name of the node.
    pub name: String,
    /// Address at which clients and other nodes reach the node; empty if it serves clients of its host only.
    pub address: String,
    /// State.
    pub state: NodeStateView,
    /// The iSCSI portals of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<String>,
    /// Number of shards that the node is to own.
    pub homes: usize,
    /// Number of shards that the node has opened last.
    pub owned: usize,
}

/// A shard of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Shard)]
pub struct ShardView {
    /// Number of the shard.
    pub number: u32,
    /// The pool of the shard.
    pub pool: String,
    /// The node that is to own the shard.
    pub home: Option<String>,
    /// The node that has opened the shard last.
    pub owner: Option<String>,
    /// `serving`, `opening`, `silent`, `free` or `missing`; absent if the state of the pool was not examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Where the owner serves NBD.
    pub nbd: Vec<String>,
}

/// The state of an image of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClusterImageState {
    /// Its shard copies it; until the copy is complete, only this shard clones the image.
    Publishing,
    /// Every shard can clone it.
    Live,
    /// It is being removed.
    Deleting,
}

/// An image that every shard can clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ClusterImage)]
pub struct ClusterImageView {
    /// Name of the image.
    pub name: String,
    /// State.
    pub state: ClusterImageState,
    /// Size of the image in bytes.
    pub size_bytes: u64,
    /// Bytes that the image takes in Ceph, without replicas.
    pub stored_bytes: u64,
    /// The shard that has the name of the image.
    pub shard: u32,
    /// The shards that use the image.
    pub used_by: Vec<u32>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Cluster)]
pub struct ClusterView {
    /// Address of the cluster.
    pub cluster: String,
    /// Number of the last change of the members and shards.
    pub version: u64,
    /// The nodes.
    pub nodes: Vec<NodeView>,
    /// The shards.
    pub shards: Vec<ShardView>,
    /// The images that every shard can clone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ClusterImageView>,
}

/// Where a volume or image of a cluster is served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Location)]
pub struct LocationView {
    /// Name of the volume or image.
    pub name: String,
    /// The shard that has it.
    pub shard: u32,
    /// The node that has opened the shard last.
    pub node: Option<String>,
    /// Address of this node; empty if it serves clients of its host only.
    pub address: String,
    /// Where this node serves NBD for the shard without forwarding. The addresses change with the owner.
    pub nbd: Vec<String>,
    /// Where clients of any host connect, at most 16 nodes: the owner first, as far as it can be reached. The
    /// other nodes forward.
    #[serde(default)]
    pub portals: Vec<PortalsView>,
}
