//! The targets that the front end serves at present, and their sessions.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::session::{SessionGuard, SessionInfo, Sessions};
use super::{IqnName, Target, TargetMap};

/// Visible targets, and their sessions.
pub struct ServedTargets {
    targets: RwLock<Arc<TargetMap>>,
    changes: watch::Sender<u64>,
    sessions: Sessions,
}

impl ServedTargets {
    /// These targets, without sessions.
    pub fn new(targets: TargetMap) -> ServedTargets {
        ServedTargets {
            targets: RwLock::new(Arc::new(targets)),
            changes: watch::Sender::new(0),
            sessions: Sessions::default(),
        }
    }

    /// All targets at present.
    pub fn snapshot(&self) -> Arc<TargetMap> {
        self.targets.read().clone()
    }

    /// One target at present.
    pub fn get(&self, name: &IqnName) -> Option<Arc<Target>> {
        self.targets.read().get(name).cloned()
    }

    /// A channel that reports each change; its value is the number of changes.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Replaces all targets.
    pub fn replace(&self, targets: TargetMap) {
        *self.targets.write() = Arc::new(targets);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Registers a session until the guard is dropped.
    pub fn session_began(&self, info: SessionInfo) -> SessionGuard {
        self.sessions.begin(info)
    }

    /// The number of sessions at all targets.
    pub fn session_count(&self) -> usize {
        self.sessions.count()
    }

    /// The sessions of a target, in the order of their login, also after an upgrade.
    pub fn sessions(&self, target: &IqnName) -> Vec<SessionInfo> {
        let mut sessions = self.sessions.list(|session| session.target == *target);
        sessions.sort_by_key(|session| (session.since_ms, session.id));
        sessions
    }
}
