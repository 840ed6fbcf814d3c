//! Targets of iSCSI, which are the subsystems of NVMe: their disks, and access control by initiator or host.
//!
//! A *target* is a set of disks, each under a number (its LUN), and a list of initiators with access. It is
//! shared by the control plane, which changes it, and the iSCSI front end, which checks it at each login and
//! discovery. A target admits no initiator until one is allowed, or the target is made open; an initiator
//! without access to a target cannot detect that it exists ([`Target::admission`]).
//!
//! **Durability.** The table is one document of the pool ([`forebay_engine::Pool::set_document`]): a change
//! writes the whole table, and becomes visible only when it is durable.
//!
//! **An unreadable table is kept.** If the document is damaged, or of a later release, the server starts
//! nevertheless, since NBD clients are not affected. It serves no targets and refuses to change any, until an
//! administrator starts the release that can read it, or deletes it ([`Targets::remove_all`]).
//!
//! **Removal of disks.** A mapped disk cannot be removed. The removal of a disk holds the lock of the table
//! ([`Targets::unmapped`]), so that the disk cannot be mapped concurrently.
//!
//! **Sessions** belong to the front end, which registers them here for administrators
//! ([`Targets::session_began`]) and watches for changes ([`Targets::changed`]) to end sessions that have lost
//! access. [`ServedTargets::revoked`] waits for these.

mod dhchap;
mod document;
mod error;
mod name;
mod served;
mod session;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Pool, Role, SyncMode};
use parking_lot::RwLock;
use tokio::sync::watch;

pub use dhchap::DhChapKey;
pub(crate) use dhchap::hmac_of;
pub use error::TargetError;
pub use name::{BadIqn, IqnName};
pub use served::ServedTargets;
pub use session::{EndRequest, OpenLuns, SessionGuard, SessionInfo};
pub use target::{Admission, Chap, Initiator, Lun, MAX_LUN, Target};

/// Result of a change of targets.
pub type Result<T> = std::result::Result<T, TargetError>;

/// Targets by name.
pub type TargetMap = BTreeMap<IqnName, Arc<Target>>;

/// The contents of the document of targets.
#[derive(Debug, Clone)]
struct Table {
    targets: TargetMap,
    /// The number of the next target, from 1 on.
    next_number: u32,
}

impl Default for Table {
    fn default() -> Table {
        Table { targets: TargetMap::new(), next_number: 1 }
    }
}

impl Table {
    fn find(&self, name: &IqnName) -> Result<Target> {
        let found = self.targets.get(name).map(|target| (**target).clone());
        found.ok_or_else(|| TargetError::NoTarget(name.clone()))
    }

    fn put(&mut self, target: Target) {
        self.targets.insert(target.name.clone(), Arc::new(target));
    }

    /// Allocates a target number.
    fn allocate_number(&mut self) -> Result<u16> {
        let number = u16::try_from(self.next_number).map_err(|_| TargetError::NoNumber)?;
        self.next_number += 1;
        Ok(number)
    }
}

/// The table of targets, and their sessions.
pub struct Targets {
    pool: Arc<Pool>,
    /// The visible targets, and their sessions.
    served: Arc<ServedTargets>,
    /// Why the document cannot be read, if it cannot.
    unreadable: RwLock<Option<String>>,
    /// The contents of the document, or the reason why it cannot be read. The lock serialises changes.
    table: tokio::sync::Mutex<std::result::Result<Table, String>>,
}

/// While this exists, a disk that was not mapped cannot be mapped.
pub struct Unmapped<'a> {
    _table: tokio::sync::MutexGuard<'a, std::result::Result<Table, String>>,
}

impl Targets {
    /// Reads the table of a pool. If it cannot be read, there are no targets, and none can be created.
    pub async fn load(pool: Arc<Pool>) -> Targets {
        let table = crate::document::load(&pool, document::NAME, document::decode).await;
        if let Err(why) = &table {
            tracing::error!("{}", TargetError::Unreadable(why.clone()));
        }
        let served = table.as_ref().map(|table| table.targets.clone()).unwrap_or_default();
        Targets {
            pool,
            served: Arc::new(ServedTargets::new(served)),
            unreadable: RwLock::new(table.as_ref().err().cloned()),
            table: tokio::sync::Mutex::new(table),
        }
    }

    /// Why the table cannot be read, if it cannot. In that case it is not known which targets exist.
    pub fn unreadable(&self) -> Option<String> {
        self.unreadable.read().clone()
    }

    /// The visible targets, for the front end.
    pub fn served(&self) -> &Arc<ServedTargets> {
        &self.served
    }

    /// Returns all targets, as they are now.
    pub fn snapshot(&self) -> Arc<TargetMap> {
        self.served.snapshot()
    }

    /// Returns one target, as it is now.
    pub fn get(&self, name: &IqnName) -> Option<Arc<Target>> {
        self.served.get(name)
    }

    /// A channel that reports each change; its value is the number of changes.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.served.changed()
    }

    /// Fails if the table could not be read.
    ///
    /// # Errors
    /// [`TargetError::Unreadable`]
    pub async fn check_readable(&self) -> Result<()> {
        match &*self.table.lock().await {
            Ok(_) => Ok(()),
            Err(why) => Err(TargetError::Unreadable(why.clone())),
        }
    }

    /// Registers a session until the guard is dropped.
    pub fn session_began(&self, info: SessionInfo) -> SessionGuard {
        self.served.session_began(info)
    }

    /// The number of iSCSI sessions, and of NVMe controllers, at all targets.
    pub fn session_counts(&self) -> (usize, usize) {
        self.served.session_counts()
    }

    /// The sessions of a target, in the order of their login.
    pub fn sessions(&self, target: &IqnName) -> Vec<SessionInfo> {
        self.served.sessions(target)
    }

    /// The sessions of all targets, each as [`Targets::sessions`] lists them.
    pub fn sessions_by_target(&self) -> BTreeMap<IqnName, Vec<SessionInfo>> {
        self.served.sessions_by_target()
    }

    /// Wakes all sessions, since properties of disks have changed, such as a size.
    pub async fn disks_changed(&self) {
        // The lock excludes a concurrent change of the table.
        let _table = self.table.lock().await;
        self.served.replace_with_disks((*self.snapshot()).clone());
    }

    /// Creates a target, and chooses its number.
    ///
    /// # Errors
    /// [`TargetError::Exists`]; those of [`Target::check`]; [`TargetError::Unreadable`]; those of the pool.
    pub async fn create(&self, target: Target) -> Result<Arc<Target>> {
        let name = target.name.clone();
        self.change(|table| {
            if table.targets.contains_key(&target.name) {
                return Err(TargetError::Exists(target.name));
            }
            target.check()?;
            let number = table.allocate_number()?;
            table.put(Target { number, ..target });
            Ok(())
        })
        .await?;
        self.get(&name).ok_or(TargetError::NoTarget(name))
    }

    /// Removes a target; with `force` also if it has sessions.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::InUse`]; those of a change.
    pub async fn remove(&self, name: &IqnName, force: bool) -> Result<()> {
        self.change(|table| {
            table.find(name)?;
            self.check_unused(name, force)?;
            table.targets.remove(name);
            Ok(())
        })
        .await
    }

    /// Removes all targets, also if the table cannot be read; in that case numbers start from 1 again.
    ///
    /// # Errors
    /// [`TargetError::InUse`]; those of the pool.
    pub async fn remove_all(&self, force: bool) -> Result<()> {
        let mut table = self.table.lock().await;
        let next_number = table.as_ref().map_or(1, |table| table.next_number);
        for name in self.snapshot().keys() {
            self.check_unused(name, force)?;
        }
        self.store(&mut table, Table { next_number, ..Table::default() }).await
    }

    fn check_unused(&self, target: &IqnName, force: bool) -> Result<()> {
        if force {
            return Ok(());
        }
        match self.sessions(target).len() {
            0 => Ok(()),
            sessions => Err(TargetError::InUse { target: target.clone(), sessions }),
        }
    }

    /// Adds or updates an initiator's ACL entry.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; those of [`Target::check`]; those of a change.
    pub async fn allow(&self, target: &IqnName, initiator: Initiator) -> Result<()> {
        self.edit(target, |target| {
            match target.initiators.iter_mut().find(|i| i.name == initiator.name) {
                Some(entry) => *entry = initiator,
                None => target.initiators.push(initiator),
            }
            Ok(())
        })
        .await
    }

    /// Removes an initiator's ACL entry.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::NoInitiator`]; those of a change.
    pub async fn deny(&self, target: &IqnName, initiator: &IqnName) -> Result<()> {
        self.edit(target, |target| {
            let at = target.initiators.iter().position(|i| i.name == *initiator).ok_or_else(|| {
                TargetError::NoInitiator { target: target.name.clone(), initiator: initiator.clone() }
            })?;
            target.initiators.remove(at);
            Ok(())
        })
        .await
    }

    /// Maps a disk under `lun`, or under the lowest free number; returns the mapping. A disk that cannot be
    /// written is mapped read-only. A disk that is mapped under this number already gets the new options.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::Mapped`] if the target has the disk;
    /// [`TargetError::LunTaken`]; [`TargetError::Volatile`]; those of a change.
    pub async fn map(&self, target: &IqnName, lun: Option<u16>, mapped: Lun) -> Result<(u16, Lun)> {
        self.edit(target, |target| {
            let mapped = self.checked(mapped)?;
            Ok((target.map(lun, mapped.clone())?, mapped))
        })
        .await
    }

    /// Unmaps a disk of a target.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::NoLun`]; those of a change.
    pub async fn unmap(&self, target: &IqnName, lun: u16) -> Result<()> {
        self.edit(target, |target| target.unmap(lun)).await
    }

    /// Creates the targets in `wanted`, or changes existing ones to match; other targets stay. Disks that
    /// cannot be mapped are skipped with a warning, because a new pool has no disks yet. Writes nothing if
    /// all targets match already.
    ///
    /// # Errors
    /// Those of [`Target::check`]; those of a change.
    pub async fn apply(&self, wanted: &[Target]) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        self.change(|table| {
            for target in wanted {
                target.check()?;
                let mut target = target.clone();
                for (lun, mapped) in std::mem::take(&mut target.luns) {
                    target.luns.insert(lun, mapped.clone());
                    match self.checked(mapped) {
                        Ok(mapped) => drop(target.luns.insert(lun, mapped)),
                        Err(e) => {
                            tracing::warn!("skipping LUN {lun} of target {}: {e}", target.name);
                            target.unmap(lun)?;
                        }
                    }
                }
                target.number = match table.targets.get(&target.name) {
                    Some(existing) => existing.number,
                    None => table.allocate_number()?,
                };
                table.put(target);
            }
            Ok(())
        })
        .await
    }

    /// Prevents a disk from being mapped until the returned guard is dropped.
    ///
    /// # Errors
    /// [`TargetError::Mapped`] if it is mapped already.
    pub async fn unmapped(&self, disk: &str) -> Result<Unmapped<'_>> {
        self.unmapped_if(|mapped| mapped == disk).await
    }

    /// Works like [`Targets::unmapped`], for a volume and all of its snapshots.
    ///
    /// # Errors
    /// [`TargetError::Mapped`] if one of them is mapped already.
    pub async fn unmapped_with_snapshots(&self, volume: &str) -> Result<Unmapped<'_>> {
        let is_snapshot = |rest: &str| rest.is_empty() || rest.starts_with('@');
        self.unmapped_if(|mapped| mapped.strip_prefix(volume).is_some_and(is_snapshot)).await
    }

    async fn unmapped_if(&self, is_meant: impl Fn(&str) -> bool) -> Result<Unmapped<'_>> {
        let table = self.table.lock().await;
        for target in self.snapshot().values() {
            if let Some((number, lun)) = target.luns.iter().find(|(_, lun)| is_meant(&lun.disk)) {
                let (disk, target) = (lun.disk.clone(), target.name.clone());
                return Err(TargetError::Mapped { disk, lun: *number, target });
            }
        }
        Ok(Unmapped { _table: table })
    }

    /// Adapts the options of a mapping to its disk.
    fn checked(&self, lun: Lun) -> Result<Lun> {
        let disk = self.pool.disk(&lun.disk)?;
        let read_only = lun.read_only || disk.role != Role::Volume;
        let volatile = disk.sync == SyncMode::Never || disk.write_cache > 0;
        if volatile && !read_only && !lun.write_back {
            return Err(TargetError::Volatile(disk.name));
        }
        Ok(Lun { disk: disk.name, read_only, write_back: lun.write_back && !read_only })
    }

    /// Changes one target, and checks the result.
    async fn edit<T>(&self, name: &IqnName, edit: impl FnOnce(&mut Target) -> Result<T>) -> Result<T> {
        self.change(|table| {
            let mut target = table.find(name)?;
            let done = edit(&mut target)?;
            target.check()?;
            table.put(target);
            Ok(done)
        })
        .await
    }

    /// Changes the table: first durably, then visibly.
    async fn change<T>(&self, change: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut table = self.table.lock().await;
        let mut changed = table.clone().map_err(TargetError::Unreadable)?;
        let done = change(&mut changed)?;
        self.store(&mut table, changed).await?;
        Ok(done)
    }

    async fn store(&self, table: &mut std::result::Result<Table, String>, changed: Table) -> Result<()> {
        if table.as_ref().is_ok_and(|t| t.targets == changed.targets) {
            return Ok(());
        }
        self.pool.set_document(document::NAME, Some(&document::encode(&changed))).await?;
        self.served.replace(changed.targets.clone());
        *self.unreadable.write() = None;
        *table = Ok(changed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
