//! The logical units that a session can use: the units that its target maps and that are visible to its
//! initiator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use forebay_wire::scsi::PortGroup;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::context::{Context, Disks, KnownDisks, StandbyStates};
use super::groups::relative_port;
use super::standby::Standby;
use crate::scsi::{
    AbortTasks, Followed, Nexus, NexusOwner, Port, Response, Settings, StandbyUnit, Surroundings,
    UnitAttention, absent,
};
use crate::targets::{Chap, IqnName, Lun, OpenLuns, Target};
use crate::throttle::Throttle;

/// The access of a session to a unit.
#[derive(Clone)]
enum Access {
    Nexus(Arc<Nexus>),
    /// Another server has the pool.
    Standby(Arc<StandbyUnit>),
}

impl Access {
    fn nexus(&self) -> Option<&Arc<Nexus>> {
        match self {
            Access::Nexus(nexus) => Some(nexus),
            Access::Standby(_) => None,
        }
    }

    fn standby(&self) -> Option<&Arc<StandbyUnit>> {
        match self {
            Access::Nexus(_) => None,
            Access::Standby(unit) => Some(unit),
        }
    }

    fn note(&self, attention: UnitAttention) {
        match self {
            Access::Nexus(nexus) => nexus.note(attention),
            Access::Standby(unit) => unit.note(attention),
        }
    }
}

/// The units of a session, by LUN. Shared with the units, which request aborts of commands through it.
pub(super) struct LunMap {
    context: Arc<Context>,
    target: IqnName,
    /// The number of the target.
    number: u16,
    initiator: IqnName,
    /// The credentials with which the initiator authenticated itself, if it did.
    proved: Option<Chap>,
    port: Arc<Port>,
    units: Mutex<BTreeMap<u16, (Lun, Access)>>,
    /// The units from the time before this server had the pool, until they are opened.
    before: Mutex<Option<StandbyStates>>,
    /// The disks that the initiator has identified under LUNs from which units were removed.
    known: Mutex<KnownDisks>,
    /// The LUNs of `known` whose units were removed by this process.
    removed: Mutex<BTreeSet<u16>>,
    /// The session has ended.
    left: AtomicBool,
    /// Signalled when another nexus aborts commands, or a nexus is withdrawn.
    pub abort: Notify,
    /// The changes of the table that [`LunMap::refresh`] saw.
    pub followed: Followed,
}

impl LunMap {
    pub fn new(
        context: Arc<Context>,
        target: &Target,
        (initiator, isid): (IqnName, [u8; 6]),
        proved: Option<Chap>,
        (before, known): (Option<StandbyStates>, KnownDisks),
    ) -> Arc<LunMap> {
        let port = Port {
            initiator: initiator.to_string(),
            isid,
            target: target.name.to_string(),
            tpgt: context.groups.own(),
            relative_port: relative_port(target.number, context.groups.own()),
            host_id: None,
        };
        Arc::new(LunMap {
            context,
            target: target.name.clone(),
            initiator,
            proved,
            number: target.number,
            port: Arc::new(port),
            units: Mutex::default(),
            before: Mutex::new(before),
            known: Mutex::new(known),
            removed: Mutex::default(),
            left: AtomicBool::new(false),
            abort: Notify::new(),
            followed: Followed::default(),
        })
    }

    /// The target to which the LUNs belong.
    pub fn target(&self) -> &IqnName {
        &self.target
    }

    /// Returns the nexus with the unit of a LUN.
    pub fn unit(&self, lun: u16) -> Option<Arc<Nexus>> {
        self.units.lock().get(&lun).and_then(|(_, access)| access.nexus().cloned())
    }

    /// The unit of a LUN, if another server has the pool.
    pub fn standby_unit(&self, lun: u16) -> Option<Arc<StandbyUnit>> {
        self.units.lock().get(&lun).and_then(|(_, access)| access.standby().cloned())
    }

    /// The response to a command for a LUN without a nexus.
    pub fn without_nexus(&self, lun: Option<u16>, cdb: &[u8]) -> Response {
        let luns = self.luns();
        let found = lun.and_then(|lun| self.units.lock().get(&lun).cloned());
        match (found, &self.context.disks) {
            (Some((lun, Access::Standby(unit))), Disks::OfOther(standby)) => {
                let groups = self.port_groups();
                let around = Surroundings { facts: standby.disk(&lun.disk), luns: &luns, groups: &groups };
                unit.answer(cdb, &around)
            }
            _ => absent(cdb, &luns),
        }
    }

    /// The units in the state standby, to be kept until this server has the pool; `None` if it has the pool
    /// already.
    pub fn standby_states(&self) -> Option<StandbyStates> {
        let Disks::OfOther(_) = self.context.disks else { return None };
        let units = self.units.lock();
        let states = units.iter().filter_map(|(lun, (_, access))| Some((*lun, access.standby()?.state())));
        Some(states.collect())
    }

    /// The disks that the initiator has identified, by LUN.
    pub fn known_disks(&self) -> KnownDisks {
        let mut known = self.known.lock().clone();
        let identified = self.nexuses().into_iter().filter(|nexus| nexus.is_identified());
        known.extend(identified.map(|nexus| (nexus.lun(), nexus.disk().uuid())));
        known
    }

    /// Releases all units at the end of the session, so that a session that replaces it does not inherit
    /// state.
    pub fn leave(&self) {
        let mut units = self.units.lock();
        self.left.store(true, Relaxed);
        let removed = std::mem::take(&mut *units);
        drop(units);
        drop(removed);
    }

    /// Applies the current table of targets. Returns false if the session has to end: the target no longer
    /// admits the initiator, or requires other credentials than the initiator used.
    pub async fn refresh(self: &Arc<Self>) -> bool {
        let change = self.context.targets.last_change();
        let stays = self.follow_table().await;
        if !stays {
            self.withdraw(|_, _| true);
        }
        self.followed.has_seen(change);
        stays
    }

    async fn follow_table(self: &Arc<Self>) -> bool {
        let Some(target) = self.context.targets.get(&self.target) else { return false };
        let Some(admission) = target.admission(&self.initiator) else { return false };
        if admission.chap.is_some_and(|chap| self.proved.as_ref() != Some(chap)) {
            return false;
        }
        let wanted: BTreeMap<_, _> =
            target.luns.iter().filter(|(number, _)| admission.sees(**number)).collect();
        let before = self.luns();
        self.withdraw(|number, lun| wanted.get(&number) != Some(&lun));
        let mut is_replaced = false;
        for (number, lun) in wanted {
            if !self.units.lock().contains_key(number) {
                is_replaced |= self.add(*number, lun).await;
            }
        }
        let observed = self.resume_standby().unwrap_or(before);
        if is_replaced || (!observed.is_empty() && self.luns() != observed) {
            self.units.lock().values().for_each(|(_, access)| access.note(UnitAttention::LunsChanged));
        }
        true
    }

    /// Removes units, and ends their commands that still gather data: such a command must not change a disk
    /// after the access to the disk was revoked.
    fn withdraw(&self, is_meant: impl Fn(u16, &Lun) -> bool) {
        let mut removed = Vec::new();
        self.units.lock().retain(|number, (lun, access)| {
            let stays = !is_meant(*number, lun);
            if !stays {
                removed.push(access.clone());
            }
            stays
        });
        for nexus in removed.iter().filter_map(Access::nexus) {
            self.followed.removed(nexus.withdraw());
            self.removed.lock().insert(nexus.lun());
            if nexus.is_identified() {
                self.known.lock().insert(nexus.lun(), nexus.disk().uuid());
            }
        }
        if !removed.is_empty() {
            self.abort.notify_one();
        }
    }

    /// Gives units that were opened the state that the initiator observed while another server had the pool.
    /// Returns the LUNs that the initiator observed.
    fn resume_standby(&self) -> Option<Vec<u16>> {
        let before = self.before.lock().take()?;
        for nexus in self.nexuses() {
            if let Some(state) = before.get(&nexus.lun()) {
                nexus.after_standby(state);
            }
        }
        Some(before.into_keys().collect())
    }

    /// Informs the initiator that a LUN that it has used has a new unit. Returns whether the new unit is
    /// another disk.
    fn replace(&self, nexus: &Nexus) -> bool {
        let known = self.known.lock().get(&nexus.lun()).copied();
        let is_other = known.is_some_and(|uuid| uuid != nexus.disk().uuid());
        if is_other || self.removed.lock().contains(&nexus.lun()) {
            nexus.replaces(is_other);
        }
        is_other
    }

    /// Opens the unit of a LUN. If that fails, the LUN is left out. Returns whether the LUN belonged to
    /// another disk before.
    async fn add(self: &Arc<Self>, number: u16, lun: &Lun) -> bool {
        let settings = Settings { lun: number, read_only: lun.read_only, write_back: lun.write_back };
        let access = match &self.context.disks {
            Disks::Own { pool, units } => match units.open(pool, &lun.disk).await {
                Ok(unit) => {
                    let owner: Weak<LunMap> = Arc::downgrade(self);
                    Access::Nexus(unit.join(self.port.clone(), settings, owner))
                }
                Err(error) => {
                    log_unserved(&lun.disk, &self.target, &error);
                    return false;
                }
            },
            Disks::OfOther(standby) => match self.describe(standby, settings, &lun.disk) {
                Some(unit) => Access::Standby(unit),
                None => return false,
            },
            // No session begins here.
            Disks::OfCluster(_) => return false,
        };
        let is_other = access.nexus().is_some_and(|nexus| self.replace(nexus));
        let mut units = self.units.lock();
        if !self.left.load(Relaxed) {
            units.insert(number, (lun.clone(), access));
        }
        is_other
    }

    /// A unit of a disk that another server has; `None` if that server did not publish the disk.
    fn describe(&self, standby: &Standby, settings: Settings, disk: &str) -> Option<Arc<StandbyUnit>> {
        let facts = standby.disk(disk)?;
        Some(Arc::new(StandbyUnit::new(self.port.clone(), settings, &facts)))
    }
}

/// Logs that a LUN is left out. The log is rate-limited, because each login of an initiator opens the units
/// again.
fn log_unserved(disk: &str, target: &IqnName, error: &dyn std::error::Error) {
    static UNSERVED: Throttle = Throttle::new();
    if let Some(left_out) = UNSERVED.permit() {
        tracing::warn!(disk, %target, %error, left_out, "cannot serve a LUN");
    }
}

impl NexusOwner for LunMap {
    fn luns(&self) -> Vec<u16> {
        self.units.lock().keys().copied().collect()
    }

    fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.units.lock().values().filter_map(|(_, access)| access.nexus().cloned()).collect()
    }

    fn port_groups(&self) -> Vec<PortGroup> {
        self.context.groups.of_target(self.number)
    }
}

impl OpenLuns for LunMap {
    fn has_open(&self, lun: u16) -> bool {
        self.unit(lun).is_some()
    }
}

impl AbortTasks for LunMap {
    fn abort_tasks(&self, _: u16) {
        self.abort.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::log_of;

    #[test]
    fn logins_to_a_target_with_a_missing_disk_do_not_fill_the_log() {
        let target = "iqn.2026-11.org.example:disk".parse().unwrap();
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let text = log_of(|| (0..1000).for_each(|_| log_unserved("missing", &target, &error)));
        let logged = text.lines().filter(|line| line.contains("cannot serve a LUN")).count();
        // The lines fall into at most two intervals of the limit.
        assert!((1..=20).contains(&logged), "{logged}");
    }
}
