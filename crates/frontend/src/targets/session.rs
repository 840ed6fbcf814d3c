//! Sessions of initiators: registered by the iSCSI front end, listed for administrators.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, watch};

use super::IqnName;
use crate::registry::{Registered, Registry};

/// The LUNs whose disks a session has open.
pub trait OpenLuns: Send + Sync {
    /// Whether the session has the disk of this LUN open.
    fn has_open(&self, lun: u16) -> bool;
}

/// A session of an initiator at a target.
#[derive(Clone)]
pub struct SessionInfo {
    /// Number of the socket of the session's connection; 0 if unknown.
    pub id: u64,
    /// Name of the target.
    pub target: IqnName,
    /// Name of the initiator.
    pub initiator: IqnName,
    /// The peer address of the first connection.
    pub address: SocketAddr,
    /// The time of login, in Unix milliseconds.
    pub since_ms: u64,
    /// Its LUNs. A LUN can be visible to it without being open, for instance while a desktop is reset. Weak:
    /// they keep `applied` open, by whose closing the end of the session is noticed.
    pub luns: Weak<dyn OpenLuns>,
    /// Ends it.
    pub end: EndRequest,
    /// Number of the last change of the table that the session has applied; closed when the session has
    /// ended.
    pub applied: watch::Receiver<u64>,
}

/// The request of an administrator to end a session.
#[derive(Debug, Clone, Default)]
pub struct EndRequest(Arc<Notify>);

impl EndRequest {
    /// Sends the request. It is kept until the session receives it.
    pub fn send(&self) {
        self.0.notify_one();
    }

    /// Waits for the request to end the session.
    pub async fn received(&self) {
        self.0.notified().await;
    }
}

/// All sessions on targets.
pub(super) type Sessions = Registry<SessionInfo>;

/// The registration of a session.
pub type SessionGuard = Registered<SessionInfo>;
