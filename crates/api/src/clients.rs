//! The clients of a disk in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A protocol by which clients reach a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A connection.
    Nbd,
    /// A session of an initiator that can access the disk; it may not use it.
    Iscsi,
    /// A controller of a host that can access the disk; it may not use it.
    Nvme,
}

/// A client of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DiskClient, example = json!({"id": "8191", "protocol": "nbd", "client": "10.0.0.7:51422",
    "initiator": null, "target": null, "read_only": false, "since_ms": 1767225600000u64}))]
pub struct DiskClientView {
    /// Number of the connection, by which it can be disconnected.
    #[serde(default)]
    pub id: String,
    /// The protocol.
    pub protocol: Protocol,
    /// Its address, or for a UNIX socket the process that connected.
    pub client: String,
    /// Name of the initiator or host; iSCSI and NVMe only.
    pub initiator: Option<String>,
    /// The target through which it accesses the disk; iSCSI and NVMe only.
    pub target: Option<String>,
    /// It cannot write.
    pub read_only: bool,
    /// When it connected, in Unix milliseconds.
    pub since_ms: u64,
}

/// The clients of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(as = DiskClients)]
pub struct DiskClientsView(pub Vec<DiskClientView>);
