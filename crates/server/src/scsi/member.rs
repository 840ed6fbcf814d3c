//! The state that a unit keeps for each nexus.

use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::attention::{Attentions, UnitAttention};
use super::port::Port;
use super::underway::Gate;

/// A session whose commands can be aborted by another nexus. No lock of a unit is held during the call.
pub trait AbortTasks: Send + Sync {
    /// Aborts all commands of the session to a unit, for a reset or PREEMPT AND ABORT of another nexus. The
    /// caller waits until those that change the unit have ended, so none of them may wait for an abort
    /// itself.
    fn abort_tasks(&self, lun: u16);
}

/// A nexus as its unit sees it.
pub(super) struct Member {
    pub id: u64,
    pub port: Arc<Port>,
    pub lun: u16,
    pub session: Weak<dyn AbortTasks>,
    /// Unit attentions are pending.
    pub alert: AtomicBool,
    /// Its commands that change the unit.
    pub gate: Gate,
    attentions: Mutex<Attentions>,
}

impl Member {
    pub fn new(id: u64, port: Arc<Port>, lun: u16, session: Weak<dyn AbortTasks>) -> Member {
        Member {
            id,
            port,
            lun,
            session,
            alert: AtomicBool::new(false),
            gate: Gate::default(),
            attentions: Mutex::default(),
        }
    }

    pub fn note(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.note(attention);
        self.alert.store(true, Release);
    }

    pub fn take(&self, resets_only: bool) -> Option<UnitAttention> {
        let mut attentions = self.attentions.lock();
        let taken = attentions.take(resets_only);
        self.alert.store(!attentions.is_empty(), Release);
        taken
    }

    pub fn forget(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.forget(attention);
        self.alert.store(!attentions.is_empty(), Release);
    }
}
