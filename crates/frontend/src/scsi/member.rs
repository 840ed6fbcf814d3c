//! The state that a unit keeps for each nexus.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::attention::{Attentions, UnitAttention};
use super::port::Port;
use super::underway::Gate;

/// A session whose commands can be aborted by another nexus. No lock of a unit is held during the call.
pub trait AbortTasks: Send + Sync {
    /// Aborts the commands of the session to a unit that precede a reset or PREEMPT AND ABORT of another
    /// nexus ([`Nexus::has_aborted`](super::Nexus::has_aborted)). The caller waits until those that change
    /// the unit have ended, so none of them may wait for an abort itself.
    fn abort_tasks(&self, lun: u16);

    /// Informs the session of an event of reservations of a unit, in addition to the unit attention: for a
    /// transport that has no unit attentions. No lock of a unit is held during the call.
    fn noted(&self, _lun: u16, _event: UnitAttention) {}
}

/// A session that another process handed over and that has not resumed yet: it has no commands.
struct NotResumed;

impl AbortTasks for NotResumed {
    fn abort_tasks(&self, _: u16) {}
}

/// A nexus as its unit sees it.
pub(super) struct Member {
    pub id: u64,
    pub port: Arc<Port>,
    pub lun: u16,
    pub session: Weak<dyn AbortTasks>,
    /// Unit attentions are pending, or the unit is not identified.
    pub alert: AtomicBool,
    /// The gate of the commands of this nexus that change the unit.
    pub gate: Gate,
    /// Number of times that another nexus aborted the commands of this nexus. It is incremented after the
    /// gate was closed, and read before a command enters the gate, so that the abort waits for no command
    /// that it does not end.
    pub aborts: AtomicU64,
    attentions: Mutex<Attentions>,
    /// The initiator was informed of a volatile write cache. If it was not, its writes are durable when they
    /// are answered, since it would not flush them.
    pub told_volatile: AtomicBool,
    /// The LUN belonged to another disk before, and the initiator has not read the identity of this disk yet.
    unidentified: AtomicBool,
    /// Another process handed over the session of this nexus, and the session has not resumed yet.
    pub resumes: bool,
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
            aborts: AtomicU64::new(0),
            attentions: Mutex::default(),
            told_volatile: AtomicBool::new(false),
            unidentified: AtomicBool::new(false),
            resumes: false,
        }
    }

    /// The nexus of a session that another process handed over, until the session resumes.
    pub fn not_resumed(id: u64, port: Arc<Port>, lun: u16, pending: &[UnitAttention]) -> Member {
        let session: Weak<NotResumed> = Weak::new();
        let member = Member { resumes: true, ..Member::new(id, port, lun, session) };
        pending.iter().for_each(|attention| member.note(*attention));
        member
    }

    pub fn note(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.note(attention);
        self.alert.store(true, Release);
    }

    /// The unit attentions that wait for the nexus.
    pub fn pending(&self) -> Vec<UnitAttention> {
        self.attentions.lock().all().to_vec()
    }

    pub fn take(&self, resets_only: bool) -> Option<UnitAttention> {
        let mut attentions = self.attentions.lock();
        let taken = attentions.take(resets_only);
        self.update_alert(&attentions);
        taken
    }

    pub fn forget(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.forget(attention);
        self.update_alert(&attentions);
    }

    pub fn is_unidentified(&self) -> bool {
        self.unidentified.load(Acquire)
    }

    pub fn set_unidentified(&self, on: bool) {
        let attentions = self.attentions.lock();
        self.unidentified.store(on, Release);
        self.update_alert(&attentions);
    }

    fn update_alert(&self, attentions: &Attentions) {
        self.alert.store(!attentions.is_empty() || self.is_unidentified(), Release);
    }
}
