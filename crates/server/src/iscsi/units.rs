//! The logical units that a session sees: what its target maps, and its initiator may see.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::connection::Context;
use super::login::PORTAL_GROUP;
use crate::scsi::{Nexus, Port, Session, Settings, UnitAttention};
use crate::targets::{Chap, IqnName, Lun, Target};

/// What a session sees; shared with the units, which ask other sessions to abort commands.
pub(super) struct View {
    context: Arc<Context>,
    target: IqnName,
    initiator: IqnName,
    /// With what the initiator authenticated itself, if it did.
    proved: Option<Chap>,
    port: Arc<Port>,
    units: Mutex<BTreeMap<u16, (Lun, Arc<Nexus>)>>,
    /// The session is over.
    left: AtomicBool,
    /// Units whose commands another nexus has aborted.
    aborted: Mutex<Vec<u16>>,
    /// Tells that there are some.
    pub abort: Notify,
}

impl View {
    pub fn new(
        context: Arc<Context>,
        target: &Target,
        initiator: IqnName,
        isid: [u8; 6],
        proved: Option<Chap>,
    ) -> Arc<View> {
        let port = Port {
            initiator: initiator.to_string(),
            isid,
            target: target.name.to_string(),
            tpgt: PORTAL_GROUP,
            relative_port: target.number,
        };
        Arc::new(View {
            context,
            target: target.name.clone(),
            initiator,
            proved,
            port: Arc::new(port),
            units: Mutex::default(),
            left: AtomicBool::new(false),
            aborted: Mutex::default(),
            abort: Notify::new(),
        })
    }

    /// The target.
    pub fn target(&self) -> &IqnName {
        &self.target
    }

    /// A unit, by its number.
    pub fn unit(&self, lun: u16) -> Option<Arc<Nexus>> {
        self.units.lock().get(&lun).map(|(_, nexus)| nexus.clone())
    }

    /// Ends the use of all units, at the end of the session: whoever takes its place begins anew.
    pub fn leave(&self) {
        let mut units = self.units.lock();
        self.left.store(true, Relaxed);
        let gone = std::mem::take(&mut *units);
        drop(units);
        drop(gone);
    }

    /// Takes the units whose commands another nexus has aborted.
    pub fn take_aborted(&self) -> Vec<u16> {
        std::mem::take(&mut self.aborted.lock())
    }

    /// Follows what administrators changed. False where the initiator may not be here any more: it is not admitted, or
    /// has to authenticate itself with another secret than it did.
    pub async fn refresh(self: &Arc<Self>) -> bool {
        let Some(target) = self.context.targets.get(&self.target) else { return false };
        let Some(admission) = target.admission(&self.initiator) else { return false };
        if admission.chap.is_some_and(|chap| self.proved.as_ref() != Some(chap)) {
            return false;
        }
        let wanted: BTreeMap<_, _> =
            target.luns.iter().filter(|(number, _)| admission.sees(**number)).collect();
        let before = self.luns();
        self.units.lock().retain(|number, (lun, _)| wanted.get(number) == Some(&&*lun));
        for (number, lun) in wanted {
            if self.unit(*number).is_some() {
                continue;
            }
            let unit = match self.context.units.open(&self.context.pool, &lun.disk).await {
                Ok(unit) => unit,
                Err(error) => {
                    tracing::warn!(disk = lun.disk, target = %self.target, %error, "cannot be served");
                    continue;
                }
            };
            let settings = Settings { lun: *number, read_only: lun.read_only, write_back: lun.write_back };
            let session: std::sync::Weak<View> = Arc::downgrade(self);
            let nexus = unit.join(self.port.clone(), settings, session);
            let mut units = self.units.lock();
            if !self.left.load(Relaxed) {
                units.insert(*number, (lun.clone(), nexus));
            }
        }
        if !before.is_empty() && self.luns() != before {
            self.nexuses().iter().for_each(|nexus| nexus.note(UnitAttention::LunsChanged));
        }
        true
    }
}

impl Session for View {
    fn luns(&self) -> Vec<u16> {
        self.units.lock().keys().copied().collect()
    }

    fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.units.lock().values().map(|(_, nexus)| nexus.clone()).collect()
    }

    fn abort_tasks(&self, lun: u16) {
        self.aborted.lock().push(lun);
        self.abort.notify_one();
    }
}
