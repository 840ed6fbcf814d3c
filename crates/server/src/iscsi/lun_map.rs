//! The logical units that a session can use: those that its target maps and that are visible to its
//! initiator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::context::{Context, PORTAL_GROUP};
use crate::scsi::{AbortTasks, Nexus, NexusOwner, Port, Settings, UnitAttention};
use crate::targets::{Chap, IqnName, Lun, Target};

/// The units of a session, by LUN. Shared with the units, which request aborts of commands through it.
pub(super) struct LunMap {
    context: Arc<Context>,
    target: IqnName,
    initiator: IqnName,
    /// The credentials with which the initiator authenticated itself, if it did.
    proved: Option<Chap>,
    port: Arc<Port>,
    units: Mutex<BTreeMap<u16, (Lun, Arc<Nexus>)>>,
    /// The session has ended.
    left: AtomicBool,
    /// LUNs whose commands another nexus aborted.
    aborted: Mutex<Vec<u16>>,
    /// Signalled when a LUN is added to `aborted`.
    pub abort: Notify,
}

impl LunMap {
    pub fn new(
        context: Arc<Context>,
        target: &Target,
        initiator: IqnName,
        isid: [u8; 6],
        proved: Option<Chap>,
    ) -> Arc<LunMap> {
        let port = Port {
            initiator: initiator.to_string(),
            isid,
            target: target.name.to_string(),
            tpgt: PORTAL_GROUP,
            relative_port: target.number,
        };
        Arc::new(LunMap {
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

    /// The nexus of a LUN.
    pub fn unit(&self, lun: u16) -> Option<Arc<Nexus>> {
        self.units.lock().get(&lun).map(|(_, nexus)| nexus.clone())
    }

    /// Releases all units at the end of the session, so that a session that replaces it starts without its
    /// state.
    pub fn leave(&self) {
        let mut units = self.units.lock();
        self.left.store(true, Relaxed);
        let removed = std::mem::take(&mut *units);
        drop(units);
        drop(removed);
    }

    /// Takes the LUNs whose commands another nexus aborted.
    pub fn take_aborted(&self) -> Vec<u16> {
        std::mem::take(&mut self.aborted.lock())
    }

    /// Applies the current table of targets. False if the session has to end: the target no longer admits the
    /// initiator, or requires other credentials than it used.
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
            if self.unit(*number).is_none() {
                self.add(*number, lun).await;
            }
        }
        if !before.is_empty() && self.luns() != before {
            self.nexuses().iter().for_each(|nexus| nexus.note(UnitAttention::LunsChanged));
        }
        true
    }

    /// Opens the unit of a LUN. If that fails, the LUN is left out.
    async fn add(self: &Arc<Self>, number: u16, lun: &Lun) {
        let unit = match self.context.units.open(&self.context.pool, &lun.disk).await {
            Ok(unit) => unit,
            Err(error) => {
                tracing::warn!(disk = lun.disk, target = %self.target, %error, "cannot serve a LUN");
                return;
            }
        };
        let settings = Settings { lun: number, read_only: lun.read_only, write_back: lun.write_back };
        let owner: Weak<LunMap> = Arc::downgrade(self);
        let nexus = unit.join(self.port.clone(), settings, owner);
        let mut units = self.units.lock();
        if !self.left.load(Relaxed) {
            units.insert(number, (lun.clone(), nexus));
        }
    }
}

impl NexusOwner for LunMap {
    fn luns(&self) -> Vec<u16> {
        self.units.lock().keys().copied().collect()
    }

    fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.units.lock().values().map(|(_, nexus)| nexus.clone()).collect()
    }
}

impl AbortTasks for LunMap {
    fn abort_tasks(&self, lun: u16) {
        self.aborted.lock().push(lun);
        self.abort.notify_one();
    }
}
