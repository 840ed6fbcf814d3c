//! The namespaces of a controller: the units that its target maps and that its host can use.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use forebay_wire::nvme::identify::Namespace;
use forebay_wire::scsi::{BLOCK, PortGroup};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::context::Context;
use super::discovery::admits;
use super::notices::Notices;
use crate::scsi::{AbortTasks, Followed, Nexus, NexusOwner, Port, Settings, UnitAttention};
use crate::targets::{DhChapKey, IqnName, Lun, OpenLuns, Target};
use crate::throttle::Throttle;

/// A namespace of a controller.
struct Entry {
    lun: Lun,
    nexus: Arc<Nexus>,
    /// The size in bytes when the last change was reported.
    size: u64,
}

/// The namespaces of a controller, by identifier.
pub(super) struct Namespaces {
    context: Arc<Context>,
    pub target: IqnName,
    host: IqnName,
    port: Arc<Port>,
    /// The key with which the host has authenticated itself.
    proved: OnceLock<DhChapKey>,
    entries: Mutex<BTreeMap<u32, Entry>>,
    /// The controller has ended.
    left: AtomicBool,
    /// The changes of the table that [`Namespaces::refresh`] saw.
    pub followed: Followed,
    /// What the host has to be notified of.
    pub notices: Notices,
    /// Counts the requests to end commands that gather data.
    interrupts: watch::Sender<u64>,
}

impl Namespaces {
    pub fn new(
        context: Arc<Context>,
        target: &Target,
        (host, host_id): (IqnName, [u8; 16]),
    ) -> Arc<Namespaces> {
        let [a, b, c, d, e, f, ..] = host_id;
        let port = Port {
            initiator: host.to_string(),
            isid: [a, b, c, d, e, f],
            target: target.name.to_string(),
            tpgt: 1,
            relative_port: target.number,
            host_id: Some(host_id),
        };
        Arc::new(Namespaces {
            context,
            target: target.name.clone(),
            host,
            port: Arc::new(port),
            proved: OnceLock::new(),
            entries: Mutex::default(),
            left: AtomicBool::new(false),
            followed: Followed::default(),
            notices: Notices::default(),
            interrupts: watch::Sender::default(),
        })
    }

    /// The host of the controller.
    pub fn host(&self) -> &IqnName {
        &self.host
    }

    /// Records the key with which the host has authenticated itself on the admin queue.
    pub fn has_proved(&self, key: &DhChapKey) {
        // Only the first key counts: later queues of the controller do not change what it may use.
        let _ = self.proved.set(key.clone());
    }

    /// The nexus with a namespace.
    pub fn nexus(&self, namespace: u32) -> Option<Arc<Nexus>> {
        self.entries.lock().get(&namespace).map(|entry| entry.nexus.clone())
    }

    /// The identifiers of all namespaces, in ascending order.
    pub fn all(&self) -> Vec<u32> {
        self.entries.lock().keys().copied().collect()
    }

    /// Describes a namespace.
    pub fn describe(&self, namespace: u32) -> Option<Namespace> {
        let nexus = self.nexus(namespace)?;
        let disk = nexus.disk();
        let blocks = disk.size() / u64::from(BLOCK);
        Some(Namespace { blocks, uuid: disk.uuid(), read_only: nexus.is_read_only() })
    }

    /// Whether a namespace acknowledges writes before they are durable.
    pub fn has_volatile_cache(&self) -> bool {
        self.nexuses().iter().any(|nexus| !nexus.durable(false))
    }

    /// A channel that reports requests to end commands that gather data.
    pub fn interrupts(&self) -> watch::Receiver<u64> {
        self.interrupts.subscribe()
    }

    /// Wakes all queues of the controller.
    pub fn interrupt(&self) {
        self.interrupts.send_modify(|count| *count += 1);
    }

    /// Releases all namespaces at the end of the controller.
    pub fn leave(&self) {
        let mut entries = self.entries.lock();
        self.left.store(true, Relaxed);
        let removed = std::mem::take(&mut *entries);
        drop(entries);
        drop(removed);
    }

    /// Applies the current table of targets. Returns the namespaces that were added, removed, replaced or
    /// resized; `None` if the host has lost its access to the target.
    pub async fn refresh(self: &Arc<Self>) -> Option<Vec<u32>> {
        let change = self.context.targets.last_change();
        let changed = self.follow_table().await;
        if changed.is_none() {
            self.withdraw(|_, _| true);
        }
        self.followed.has_seen(change);
        changed
    }

    async fn follow_table(self: &Arc<Self>) -> Option<Vec<u32>> {
        let target = self.context.targets.get(&self.target).filter(|target| admits(target, &self.host))?;
        let admission = target.admission(&self.host)?;
        // Another key than the host has proved, or the first one.
        if admission.dhchap.is_some_and(|key| self.proved.get() != Some(key)) {
            return None;
        }
        let seen = target.luns.iter().filter(|(number, _)| admission.sees(**number));
        let wanted: BTreeMap<u32, &Lun> = seen.map(|(number, lun)| (u32::from(*number) + 1, lun)).collect();
        let mut changed = self.withdraw(|id, lun| wanted.get(&id) != Some(&lun));
        for (id, lun) in wanted {
            if !self.entries.lock().contains_key(&id) && self.add(id, lun).await {
                changed.push(id);
            }
        }
        for (id, entry) in &mut *self.entries.lock() {
            let size = entry.nexus.disk().size();
            if std::mem::replace(&mut entry.size, size) != size {
                changed.push(*id);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        Some(changed)
    }

    /// Removes namespaces, and ends their commands that still gather data: such a command must not change a
    /// disk after the access to the disk was revoked.
    fn withdraw(&self, is_meant: impl Fn(u32, &Lun) -> bool) -> Vec<u32> {
        let mut removed = Vec::new();
        self.entries.lock().retain(|id, entry| {
            let stays = !is_meant(*id, &entry.lun);
            if !stays {
                removed.push((*id, entry.nexus.clone()));
            }
            stays
        });
        removed.iter().for_each(|(_, nexus)| self.followed.removed(nexus.withdraw()));
        if !removed.is_empty() {
            self.interrupt();
        }
        removed.into_iter().map(|(id, _)| id).collect()
    }

    /// Opens the unit of a namespace. If that fails, the namespace is left out.
    async fn add(self: &Arc<Self>, id: u32, lun: &Lun) -> bool {
        let number = u16::try_from(id - 1).unwrap_or(u16::MAX);
        let settings = Settings { lun: number, read_only: lun.read_only, write_back: lun.write_back };
        let unit = match self.context.units.open(&self.context.pool, &lun.disk).await {
            Ok(unit) => unit,
            Err(error) => {
                log_unserved(&lun.disk, &self.target, &error);
                return false;
            }
        };
        let owner: Weak<Namespaces> = Arc::downgrade(self);
        let nexus = unit.join(self.port.clone(), settings, owner);
        let size = nexus.disk().size();
        let mut entries = self.entries.lock();
        if self.left.load(Relaxed) {
            return false;
        }
        entries.insert(id, Entry { lun: lun.clone(), nexus, size });
        true
    }
}

/// Logs that a namespace is left out. The log is rate-limited, because each controller of a host opens the
/// units again.
fn log_unserved(disk: &str, target: &IqnName, error: &dyn std::error::Error) {
    static UNSERVED: Throttle = Throttle::new();
    if let Some(left_out) = UNSERVED.permit() {
        tracing::warn!(disk, %target, %error, left_out, "cannot serve a namespace");
    }
}

impl NexusOwner for Namespaces {
    fn luns(&self) -> Vec<u16> {
        self.nexuses().iter().map(|nexus| nexus.lun()).collect()
    }

    fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.entries.lock().values().map(|entry| entry.nexus.clone()).collect()
    }

    fn port_groups(&self) -> Vec<PortGroup> {
        Vec::new()
    }
}

impl OpenLuns for Namespaces {
    fn has_open(&self, lun: u16) -> bool {
        self.nexus(u32::from(lun) + 1).is_some()
    }
}

impl AbortTasks for Namespaces {
    fn abort_tasks(&self, _: u16) {
        self.interrupt();
    }

    fn noted(&self, lun: u16, event: UnitAttention) {
        if self.notices.note(u32::from(lun) + 1, event) {
            self.interrupt();
        }
    }
}
