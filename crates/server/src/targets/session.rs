//! Who is connected: filled by the iSCSI front end, read by administrators.

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
    /// Who it is.
    pub initiator: IqnName,
    /// Where it comes from: the first connection.
    pub address: SocketAddr,
    /// When it logged in, in Unix milliseconds.
    pub since_ms: u64,
}

/// The sessions that there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    sessions: BTreeMap<u64, SessionInfo>,
}

/// A session is listed as long as this lives.
#[derive(Debug)]
#[must_use = "the session is listed as long as this lives"]
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

    /// Those of which `wanted` says so, in the order in which they began.
    pub fn list(&self, wanted: impl Fn(&SessionInfo) -> bool) -> Vec<SessionInfo> {
        self.0.lock().sessions.values().filter(|s| wanted(s)).cloned().collect()
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.sessions.0.lock().sessions.remove(&self.id);
    }
}
