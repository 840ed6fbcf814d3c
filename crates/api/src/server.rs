//! The server, its upgrades and handovers of its pool in the API.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The server and its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerView {
    /// Release of the server.
    pub version: String,
    /// Name of the host.
    #[serde(default)]
    pub host: String,
    /// The data directory.
    pub data: String,
    /// Where the pool is: the data directory, or an address in Ceph.
    pub pool: String,
    /// Process id of the server.
    pub pid: u32,
    /// Seconds since the server became ready.
    pub uptime_s: u64,
    /// Addresses on which NBD clients are served.
    pub nbd: Vec<String>,
    /// Addresses on which iSCSI initiators are served.
    pub iscsi: Vec<String>,
    /// Addresses on which NVMe hosts are served.
    #[serde(default)]
    pub nvme: Vec<String>,
    /// Addresses on which NFS clients are served.
    #[serde(default)]
    pub nfs: Vec<String>,
    /// Address of the API over TCP.
    pub http: Option<String>,
    /// The ownership of a pool in Ceph.
    #[serde(default)]
    pub owner: Option<OwnerView>,
}

/// The ownership of a pool in Ceph by this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerView {
    /// This server, as the pool names it.
    pub server: String,
    /// Number of the ownership.
    pub term: u64,
    /// Milliseconds for which it is certain that no other server has the pool.
    pub lease_ms: u64,
    /// Servers that wait for the pool, as of some seconds ago; absent in the first seconds.
    #[serde(default)]
    pub standbys: Option<Vec<StandbyView>>,
}

/// A server that waits for a pool in Ceph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StandbyView {
    /// The server, as the pool names it.
    pub server: String,
    /// Whether it renews its announcement.
    pub alive: bool,
}

/// An upgrade of the running server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"binary": "/usr/bin/forebay"}))]
pub struct Upgrade {
    /// The new binary; the path from which the server was started if absent.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub binary: Option<PathBuf>,
    /// Longest time in seconds for each step of the new process.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// A completed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// Process id of the server from now on.
    pub pid: u32,
    /// Its release.
    pub version: String,
    /// The time in which clients were not served, in milliseconds.
    pub pause_ms: u64,
    /// Connections that continue.
    pub connections: usize,
    /// Connections that were closed: those with TLS, and those without an export or session.
    pub closed: usize,
}

/// A handover of the pool to a server that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "node2"}))]
pub struct Handover {
    /// `HOST` or `HOST:PROCESS` of the standby; any one if absent.
    #[serde(default)]
    pub to: Option<String>,
}

/// The server that has the pool after a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewOwner {
    /// The server: host and process.
    pub owner: String,
    /// Number of its ownership.
    pub term: u64,
    /// Whether it serves clients; if not, it has the pool and still opens it.
    pub serving: bool,
    /// The time in which no server served clients, in milliseconds.
    pub pause_ms: u64,
    /// Connections of the former server that were closed.
    pub closed: usize,
}
