//! The connections that have a disk open, for administrators.

use super::attachments::Disconnect;
use crate::registry::{Registered, Registry};

/// A connection in the transmission phase.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// Number of the connection's socket; 0 if unknown.
    pub id: u64,
    /// Export name of the disk.
    pub disk: String,
    /// Address of the client, or its process if the socket is a UNIX socket.
    pub client: String,
    /// The client cannot write.
    pub read_only: bool,
    /// When the client opened the disk, in Unix milliseconds.
    pub since_ms: u64,
    /// Handle with which an administrator ends the connection.
    pub(super) disconnect: Disconnect,
}

impl ClientInfo {
    /// Ends the connection. Its registration ends a moment later.
    pub fn disconnect(&self) {
        self.disconnect.request();
    }
}

/// All connections in the transmission phase.
pub type Clients = Registry<ClientInfo>;

/// The registration of a connection.
pub(super) type ClientGuard = Registered<ClientInfo>;
