//! Targets: who may see which disk over iSCSI.
//!
//! A *target* is a set of disks, each under a number (its LUN), and a list of initiators that may come. It is shared
//! by the control plane, which changes it, and the iSCSI front end, which asks it at each login and at each discovery.
//! A target admits nobody until an initiator is allowed, or it is made open; an initiator that may not come to a target
//! does not learn that it exists ([`Target::admission`]).
//!
//! **Durability.** The table is one document of the pool ([`forebay_engine::Pool::set_document`]): a change is written
//! whole, and is seen when it is durable, not before.
//!
//! **What cannot be read is kept.** Where the document is damaged, or of a later release, the server starts, since its
//! other clients have nothing to do with that; it serves no targets and refuses to change any, until an administrator
//! has the old release read it, or drops it ([`Targets::remove_all`]).
//!
//! **Removal of disks.** A disk that is mapped is not removed. Who removes one holds the table meanwhile
//! ([`Targets::unmapped`]), so that nobody maps it in between.
//!
//! **Sessions** are the front end's, which lists them here for administrators ([`Targets::session_began`]) and watches
//! for changes ([`Targets::changed`]) to end those that may not be there any more.

mod document;
mod error;
mod name;
mod session;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Pool, Role, SyncMode};
use parking_lot::RwLock;
use tokio::sync::watch;

pub use error::TargetError;
pub use name::{BadIqn, IqnName};
use session::Sessions;
pub use session::{SessionGuard, SessionInfo};
pub use target::{Admission, Chap, Initiator, Lun, MAX_LUN, Secret, Target};

/// Result of a change.
pub type Result<T> = std::result::Result<T, TargetError>;

/// Targets by name.
pub type TargetMap = BTreeMap<IqnName, Arc<Target>>;

/// What the document holds.
#[derive(Debug, Clone)]
struct Table {
    targets: TargetMap,
    /// The number that the next target gets, from 1 on.
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

    /// Sets a number aside.
    fn take_number(&mut self) -> Result<u16> {
        let number = u16::try_from(self.next_number).map_err(|_| TargetError::NoNumber)?;
        self.next_number += 1;
        Ok(number)
    }
}

/// The table of targets, and who is connected to them.
pub struct Targets {
    pool: Arc<Pool>,
    /// What is served.
    served: RwLock<Arc<TargetMap>>,
    /// One change at a time. What it holds is what the document holds, or why that cannot be read.
    table: tokio::sync::Mutex<std::result::Result<Table, String>>,
    changes: watch::Sender<u64>,
    sessions: Sessions,
}

/// As long as this lives, no disk is mapped.
pub struct Unmapped<'a> {
    _table: tokio::sync::MutexGuard<'a, std::result::Result<Table, String>>,
}

impl Targets {
    /// Reads the table of a pool. Where it cannot be read, there are no targets, and none can be made.
    pub async fn load(pool: Arc<Pool>) -> Targets {
        let table = match pool.document(document::NAME).await {
            Ok(Some(bytes)) => document::decode(&bytes),
            Ok(None) => Ok(Table::default()),
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = &table {
            tracing::error!("{}", TargetError::Unreadable(why.clone()));
        }
        let served = table.as_ref().map(|table| table.targets.clone()).unwrap_or_default();
        Targets {
            pool,
            served: RwLock::new(Arc::new(served)),
            table: tokio::sync::Mutex::new(table),
            changes: watch::Sender::new(0),
            sessions: Sessions::default(),
        }
    }

    /// All targets as of now.
    pub fn snapshot(&self) -> Arc<TargetMap> {
        self.served.read().clone()
    }

    /// One target as of now.
    pub fn get(&self, name: &IqnName) -> Option<Arc<Target>> {
        self.served.read().get(name).cloned()
    }

    /// Tells of each change; the number says how many there were.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Fails where the table could not be read.
    ///
    /// # Errors
    /// [`TargetError::Unreadable`]
    pub async fn check_readable(&self) -> Result<()> {
        match &*self.table.lock().await {
            Ok(_) => Ok(()),
            Err(why) => Err(TargetError::Unreadable(why.clone())),
        }
    }

    /// Lists a session until the guard is dropped.
    pub fn session_began(&self, info: SessionInfo) -> SessionGuard {
        self.sessions.begin(info)
    }

    /// The sessions of a target, in the order in which they began.
    pub fn sessions(&self, target: &IqnName) -> Vec<SessionInfo> {
        self.sessions.list(|session| session.target == *target)
    }

    /// Makes a target. Its number is chosen here.
    ///
    /// # Errors
    /// [`TargetError::Exists`]; what [`Target::check`] finds; [`TargetError::Unreadable`]; those of the pool.
    pub async fn create(&self, target: Target) -> Result<Arc<Target>> {
        let name = target.name.clone();
        self.change(|table| {
            if table.targets.contains_key(&target.name) {
                return Err(TargetError::Exists(target.name));
            }
            target.check()?;
            let number = table.take_number()?;
            table.put(Target { number, ..target });
            Ok(())
        })
        .await?;
        self.get(&name).ok_or(TargetError::NoTarget(name))
    }

    /// Removes a target; with sessions only by `force`.
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

    /// Removes all targets, also where the table cannot be read; their numbers begin anew in that case.
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
        match self.sessions(target).len() {
            sessions if sessions > 0 && !force => {
                Err(TargetError::InUse { target: target.clone(), sessions })
            }
            _ => Ok(()),
        }
    }

    /// Lets an initiator come, or changes what it may.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; what [`Target::check`] finds; those of a change.
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

    /// Takes that back.
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

    /// Maps a disk under `lun`, or under the lowest number that is free; what it is then. What cannot be written is
    /// mapped read-only by itself. A disk that has this very number gets the new options.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::Mapped`] where the target has the disk; [`TargetError::LunTaken`];
    /// [`TargetError::Volatile`]; those of a change.
    pub async fn map(&self, target: &IqnName, lun: Option<u16>, mapped: Lun) -> Result<(u16, Lun)> {
        self.edit(target, |target| {
            let mapped = self.checked(mapped)?;
            Ok((target.map(lun, mapped.clone())?, mapped))
        })
        .await
    }

    /// Takes a disk away from a target.
    ///
    /// # Errors
    /// [`TargetError::NoTarget`]; [`TargetError::NoLun`]; those of a change.
    pub async fn unmap(&self, target: &IqnName, lun: u16) -> Result<()> {
        self.edit(target, |target| target.unmap(lun)).await
    }

    /// Makes targets, or brings them in line with what is `wanted`; others stay. Disks that cannot be mapped are left
    /// out and told of: a new pool has none yet. Nothing is written where all is as wanted.
    ///
    /// # Errors
    /// What [`Target::check`] finds; those of a change.
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
                            tracing::warn!("LUN {lun} of target {} is left out: {e}", target.name);
                            target.unmap(lun)?;
                        }
                    }
                }
                target.number = match table.targets.get(&target.name) {
                    Some(there) => there.number,
                    None => table.take_number()?,
                };
                table.put(target);
            }
            Ok(())
        })
        .await
    }

    /// Keeps a disk from being mapped for as long as the answer lives.
    ///
    /// # Errors
    /// [`TargetError::Mapped`] where it is mapped already.
    pub async fn unmapped(&self, disk: &str) -> Result<Unmapped<'_>> {
        let table = self.table.lock().await;
        for target in self.snapshot().values() {
            if let Some(lun) = target.lun_of(disk) {
                return Err(TargetError::Mapped { disk: disk.to_owned(), lun, target: target.name.clone() });
            }
        }
        Ok(Unmapped { _table: table })
    }

    /// How a disk of the pool can be mapped.
    fn checked(&self, lun: Lun) -> Result<Lun> {
        let disk = self.pool.disk(&lun.disk)?;
        let read_only = lun.read_only || disk.role != Role::Volume;
        let volatile = disk.sync == SyncMode::Never || disk.write_cache > 0;
        if volatile && !read_only && !lun.write_back {
            return Err(TargetError::Volatile(disk.name));
        }
        Ok(Lun { disk: disk.name, read_only, write_back: lun.write_back && !read_only })
    }

    /// Changes one target, and checks what comes of it.
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

    /// Changes the table: durably, then visibly.
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
        *self.served.write() = Arc::new(changed.targets.clone());
        *table = Ok(changed);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
