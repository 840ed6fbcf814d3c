//! Lists of all disks, in stretches of a bounded number: a client that reads such a list slowly holds one
//! stretch in the memory of the server, not the list.
//!
//! **Consistency.** The next stretch begins after the name of the last disk of the previous one. A disk that
//! exists during the whole list is in the list exactly once. A disk that is created or removed at the same
//! time may be in the list or not.

use forebay_api::{ActivityView, DiskView};
use forebay_engine::{DiskInfo, Pool, Role};
use forebay_frontend::plane::Gate;

use super::{Control, ControlError, Result, STRETCH};
use crate::view::{View, disk_view};

/// Number of disks that a stretch examines.
const EXAMINED: usize = 64;

/// A list of disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskList {
    /// The list of all images.
    Images,
    /// The list of all volumes.
    Volumes,
    /// The snapshots of this volume.
    Snapshots(String),
}

/// The stretches of a list of disks.
pub struct DiskStretches {
    control: Control,
    role: Role,
    /// All names of the list begin with this prefix.
    prefix: String,
    /// The name after which the next stretch of the list begins.
    after: String,
}

/// The names of the disks of a pool, in order and in stretches: other requests are served in between.
pub(crate) struct Names<'a> {
    pool: &'a Pool,
    last: String,
}

impl Names<'_> {
    /// Returns the names that follow this name.
    pub fn after<'a>(pool: &'a Pool, name: &str) -> Names<'a> {
        Names { pool, last: name.to_owned() }
    }

    /// Returns the next names; `None` after the last name.
    pub async fn next(&mut self) -> Option<Vec<String>> {
        tokio::task::yield_now().await;
        let names = self.pool.names_after(&self.last, STRETCH);
        self.last.clone_from(names.last()?);
        Some(names)
    }
}

impl Control {
    /// The number of disks, snapshots and images included, for whose names `is_meant` is true.
    pub(super) async fn count_disks(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let (mut names, mut count) = (Names::after(self.pool(), ""), 0);
        while let Some(stretch) = names.next().await {
            count += stretch.iter().filter(|name| is_meant(name)).count();
        }
        count
    }

    /// Begins a list of disks after this name, which need not exist.
    ///
    /// # Errors
    /// The server is stopping, or the volume does not exist.
    pub fn disk_stretches(&self, list: &DiskList, after: Option<&str>) -> Result<DiskStretches> {
        self.check_running()?;
        let (role, prefix) = match list {
            DiskList::Images => (Role::Image, String::new()),
            DiskList::Volumes => (Role::Volume, String::new()),
            DiskList::Snapshots(volume) => {
                self.expect(volume, Role::Volume)?;
                (Role::Snapshot, format!("{volume}@"))
            }
        };
        let after = after.filter(|after| **after > *prefix).unwrap_or(&prefix).to_owned();
        Ok(DiskStretches { control: self.clone(), role, prefix, after })
    }

    /// The activity of the disks after this name: one stretch; `None` after the last disk.
    ///
    /// # Errors
    /// [`forebay_api::ErrorKind::NotOwner`]
    pub fn activity_after(&self, name: &str) -> Result<Option<Vec<ActivityView>>> {
        self.check_owner()?;
        let found = self.pool().guest_stats_after(name, EXAMINED);
        Ok((!found.is_empty()).then(|| found.into_iter().map(View::view).collect()))
    }

    /// Refuses a list while the server is stopping.
    pub fn check_running(&self) -> Result<()> {
        if *self.inner.stopping.borrow() { Err(self.ended()) } else { Ok(()) }
    }

    /// Refuses a query if the server is not certain to own the pool: what the server remembers may be older
    /// than what another owner has done.
    pub(super) fn check_owner(&self) -> Result<()> {
        let is_owner = self.inner.gate.get().is_none_or(Gate::is_open);
        if is_owner { Ok(()) } else { Err(ControlError::not_owner()) }
    }
}

impl DiskStretches {
    /// The disks of the next stretch for whose names `is_visible` is true, which may be none; `None` after
    /// the last disk of the list.
    ///
    /// # Errors
    /// [`forebay_api::ErrorKind::NotOwner`]
    pub fn next(&mut self, is_visible: impl Fn(&str) -> bool) -> Result<Option<Vec<DiskView>>> {
        self.control.check_owner()?;
        let pool = self.control.pool();
        let mut found = pool.disks_after(&self.after, EXAMINED);
        let Some(last) = found.last().filter(|_| found[0].name.starts_with(&self.prefix)) else {
            return Ok(None);
        };
        self.after.clone_from(&last.name);
        let is_meant = |disk: &DiskInfo| disk.role == self.role && disk.name.starts_with(&self.prefix);
        found.retain(|disk| is_meant(disk) && is_visible(&disk.name));
        pool.count_dependants(&mut found);
        Ok(Some(found.iter().filter_map(disk_view).collect()))
    }
}
