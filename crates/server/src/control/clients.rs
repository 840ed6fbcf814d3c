//! The clients of a disk, for administrators.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, Reply, Result};

/// A protocol by which clients reach a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A connection.
    Nbd,
    /// A session of an initiator that can access the disk; it may not use it.
    Iscsi,
}

/// A client of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DiskClient, example = json!({"protocol": "nbd", "client": "10.0.0.7:51422", "initiator": null,
    "target": null, "read_only": false, "since_ms": 1767225600000u64}))]
pub struct DiskClientView {
    /// The protocol.
    pub protocol: Protocol,
    /// Its address, or for a UNIX socket the process that connected.
    pub client: String,
    /// Name of the initiator; iSCSI only.
    pub initiator: Option<String>,
    /// The target through which it accesses the disk; iSCSI only.
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

impl Control {
    pub(super) fn list_clients(&self, name: &str) -> Result<Reply> {
        self.pool().identity(name)?;
        let nbd = self.observed().nbd.list(|client| client.disk == name);
        let nbd = nbd.into_iter().map(|it| DiskClientView {
            protocol: Protocol::Nbd,
            client: it.client,
            initiator: None,
            target: None,
            read_only: it.read_only,
            since_ms: it.since_ms,
        });
        Ok(Reply::Clients(DiskClientsView(nbd.chain(self.initiators_of(name)).collect())))
    }

    fn initiators_of(&self, disk: &str) -> Vec<DiskClientView> {
        let mut found = Vec::new();
        for target in self.targets().snapshot().values() {
            let Some(lun) = target.lun_of(disk) else { continue };
            for session in self.targets().sessions(&target.name) {
                if target.admission(&session.initiator).is_some_and(|admission| admission.sees(lun)) {
                    found.push(DiskClientView {
                        protocol: Protocol::Iscsi,
                        client: session.address.to_string(),
                        initiator: Some(session.initiator.to_string()),
                        target: Some(target.name.to_string()),
                        read_only: target.luns.get(&lun).is_some_and(|lun| lun.read_only),
                        since_ms: session.since_ms,
                    });
                }
            }
        }
        found
    }
}
