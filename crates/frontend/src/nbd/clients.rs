//! The connections that have a disk open, for administrators.

use super::attachments::Disconnect;
use crate::registry::{Registered, Registry};

/// A connection in transmission.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// Number of its socket; 0 if unknown.
    pub id: u64,
    /// The disk.
    pub disk: String,
    /// Its address, or the process at the other end of a UNIX socket.
    pub client: String,
    /// It cannot write.
    pub read_only: bool,
    /// When it opened the disk, in Unix milliseconds.
    pub since_ms: u64,
    /// Ends it.
    pub(super) disconnect: Disconnect,
}

impl ClientInfo {
    /// Ends the connection. Its registration ends a moment later.
    pub fn disconnect(&self) {
        self.disconnect.request();
    }
}

/// All connections in transmission.
pub type Clients = Registry<ClientInfo>;

/// The registration of a connection.
pub(super) type ClientGuard = Registered<ClientInfo>;
