//! Sessions of initiators: registered by the iSCSI front end, listed for administrators.

use std::net::SocketAddr;

use super::IqnName;
use crate::registry::{Registered, Registry};

/// A session of an initiator at a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The target.
    pub target: IqnName,
    /// The initiator.
    pub initiator: IqnName,
    /// The peer address of the first connection.
    pub address: SocketAddr,
    /// The time of login, in Unix milliseconds.
    pub since_ms: u64,
}

/// All sessions.
pub(super) type Sessions = Registry<SessionInfo>;

/// The registration of a session.
pub type SessionGuard = Registered<SessionInfo>;
