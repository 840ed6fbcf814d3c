//! Sessions of initiators: registered by the iSCSI front end, listed for administrators.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::IqnName;

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
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    sessions: BTreeMap<u64, SessionInfo>,
}

/// The registration of a session, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the session is listed until this is dropped"]
pub struct SessionGuard {
    sessions: Sessions,
    id: u64,
}

impl Sessions {
    pub fn begin(&self, info: SessionInfo) -> SessionGuard {
        let mut registry = self.0.lock();
        let id = registry.next;
        registry.next += 1;
        registry.sessions.insert(id, info);
        SessionGuard { sessions: self.clone(), id }
    }

    pub fn count(&self) -> usize {
        self.0.lock().sessions.len()
    }

    /// The sessions for which `wanted` returns true, in the order of their login.
    pub fn list(&self, wanted: impl Fn(&SessionInfo) -> bool) -> Vec<SessionInfo> {
        self.0.lock().sessions.values().filter(|s| wanted(s)).cloned().collect()
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.sessions.0.lock().sessions.remove(&self.id);
    }
}
