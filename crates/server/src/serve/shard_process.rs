//! The process of a shard: a server that a node of a cluster has started, and stops. The node passes what
//! differs from other servers in the environment.

use std::net::SocketAddr;

use forebay_frontend::nbd::ListenerConfig;
use forebay_frontend::plane::ListenAddr;
use forebay_store::rados::{Membership, SignOfLife};
use serde::{Deserialize, Serialize};

use crate::config::ServeConfig;

/// The environment variable of the process of a shard: a [`ShardOf`] as JSON.
pub(crate) const SHARD_PROCESS: &str = "FOREBAY_SHARD_PROCESS";

/// The environment variable in which a node passes the last sign of life of an owner that the node has found
/// silent.
pub(crate) const SILENT_OWNER: &str = "FOREBAY_SILENT_OWNER";

/// The socket in the data directory of the process, on which nodes connect their clients.
pub(crate) const RELAY_SOCKET: &str = "relay.sock";

/// What the process of a shard has to know about its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardOf {
    /// The namespace of the cluster.
    pub cluster: String,
    /// Number of the shard.
    pub shard: u32,
    /// Where the node serves NBD for the whole cluster.
    pub nbd: Vec<String>,
    /// The iSCSI portals of the node, which initiators discover also at the shard.
    #[serde(default)]
    pub portals: Vec<SocketAddr>,
    /// The number of such processes that share the memory of the node.
    pub processes: u64,
}

/// The configuration of the process of a shard, which has the file of its node: the node serves the API over
/// TCP, and writes the audit log. The process has a socket for the clients of nodes.
pub(super) fn of_shard(mut config: ServeConfig) -> ServeConfig {
    if is_shard_process() {
        config.http.listen = None;
        config.audit = None;
        let listen = vec![ListenAddr::Unix(config.data.join(RELAY_SOCKET))];
        config.nbd.listeners.push(ListenerConfig { listen, is_relay: true, ..ListenerConfig::default() });
    }
    config
}

/// The shard that this process serves; `None` for a server that no node has started.
pub(super) fn own_shard() -> Option<ShardOf> {
    serde_json::from_str(&std::env::var(SHARD_PROCESS).ok()?).ok()
}

/// As what this process claims its pool.
pub(super) fn membership() -> Membership {
    own_shard().map_or(Membership::Single, |own| Membership::ShardOf(own.cluster))
}

/// Whether this is the process of a shard.
pub(super) fn is_shard_process() -> bool {
    std::env::var_os(SHARD_PROCESS).is_some()
}

/// The number of servers that share the memory of this one; 1 for a server that no node has started.
pub(super) fn sharing_memory() -> u64 {
    own_shard().map_or(1, |own| own.processes.max(1))
}

/// The last sign of life of the owner that the node has found silent.
pub(super) fn silent_owner() -> Option<SignOfLife> {
    std::env::var(SILENT_OWNER).ok()?.parse().ok()
}
