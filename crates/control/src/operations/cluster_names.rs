//! The names of a cluster, if the pool is a shard of one: no two shards have disks, or targets, of the same
//! name.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::ClusterError;
use forebay_cluster::names::{Kind, of_target, target_of};
use forebay_cluster::owned::{Disks, OwnedNames};
use forebay_engine::{DiskInfo, Pool, Role, check_name};
use forebay_frontend::plane::Gate;
use forebay_frontend::targets::{IqnName, Targets};
use forebay_store::BoxFuture;

use super::{Control, Result, STRETCH};

/// Interval of looks whether the ownership is certain.
const CERTAIN: Duration = Duration::from_millis(50);

/// The disks and targets of a pool that is a shard of a cluster.
pub struct DisksOfShard {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The targets of the pool.
    pub targets: Arc<Targets>,
    /// Number of the shard.
    pub shard: u32,
    /// Open while it is certain that no other server has taken the pool.
    pub gate: Gate,
}

impl Disks for DisksOfShard {
    fn find(&self, name: &str) -> Result<Option<Kind>, ClusterError> {
        let found = match target_of(name) {
            Some(target) => self.target(name, target)?,
            None => self.pool.disk_in_brief(name).ok().and_then(|disk| kind(&disk)),
        };
        // A commit that has failed may have taken effect.
        if self.pool.has_stopped() { Err(ClusterError::Lost(self.shard)) } else { Ok(found) }
    }

    fn certain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while !self.gate.is_open() && !self.pool.has_stopped() {
                tokio::time::sleep(CERTAIN).await;
            }
        })
    }

    /// All disks, and then all targets.
    fn after(&self, after: &str) -> Vec<(String, Kind)> {
        let mut last = after.to_owned();
        loop {
            if let Some(target) = target_of(&last) {
                return self.targets_after(Some(target));
            }
            let disks = self.pool.disks_after(&last, STRETCH);
            let Some(end) = disks.last() else { return self.targets_after(None) };
            last.clone_from(&end.name);
            let named: Vec<_> =
                disks.iter().filter_map(|disk| Some((disk.name.clone(), kind(disk)?))).collect();
            if !named.is_empty() {
                return named;
            }
        }
    }
}

impl DisksOfShard {
    /// What has the name of a target.
    fn target(&self, name: &str, target: &str) -> Result<Option<Kind>, ClusterError> {
        if let Some(reason) = self.targets.unreadable() {
            return Err(ClusterError::Unknown { name: name.to_owned(), reason });
        }
        let found = target.parse().ok().and_then(|target: IqnName| self.targets.get(&target));
        Ok(found.map(|_| Kind::Target))
    }

    /// The targets whose names follow `after`.
    fn targets_after(&self, after: Option<&str>) -> Vec<(String, Kind)> {
        let all = self.targets.snapshot();
        let following =
            all.keys().map(IqnName::as_str).filter(|name| after.is_none_or(|after| *name > after));
        following.take(STRETCH).map(|name| (of_target(name), Kind::Target)).collect()
    }
}

/// Disks whose names are those of the cluster: a snapshot has the name of its volume, and others are
/// internal.
fn kind(disk: &DiskInfo) -> Option<Kind> {
    match disk.role {
        Role::Volume => Some(Kind::Volume),
        Role::Image => Some(Kind::Image),
        Role::Snapshot | Role::Import | Role::Metadata | Role::ClusterImage => None,
    }
}

impl Control {
    /// The names of disks are those of a cluster from now on.
    pub fn set_names(&self, names: Arc<OwnedNames>) {
        // They are set once, before the API is served.
        let _ = self.inner.names.set(names);
    }

    /// The names of the cluster that begin with `prefix`; `None` if the pool belongs to no cluster.
    pub(crate) async fn cluster_names(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        match self.inner.names.get() {
            Some(all) => Ok(Some(all.beginning_with(prefix).await?)),
            None => Ok(None),
        }
    }

    /// Runs `work`, which creates disks of these names: all of them, or none.
    pub(crate) async fn create_named<T>(
        &self,
        names: &[&str],
        kind: Kind,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // An invalid name must not get into the objects of the cluster.
        names.iter().try_for_each(|name| check_name(name))?;
        match self.inner.names.get() {
            Some(all) => all.create(names, kind, work).await,
            None => work.await,
        }
    }

    /// Runs `work`, which creates the target of this name.
    pub(crate) async fn create_named_target<T>(
        &self,
        target: &IqnName,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(all) = self.inner.names.get() else { return work.await };
        self.targets().check_readable().await?;
        all.create(&[&of_target(target.as_str())], Kind::Target, work).await
    }

    /// Runs `work`, which removes the target of this name, or all targets without a name.
    pub(crate) async fn remove_named_target<T>(
        &self,
        target: Option<&IqnName>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match (self.inner.names.get(), target) {
            (Some(all), Some(target)) => all.remove(&of_target(target.as_str()), work).await,
            (Some(all), None) => all.remove_all(Kind::Target, work).await,
            (None, _) => work.await,
        }
    }

    /// Runs `work`, which gives the volume `from` the name `to`.
    pub(crate) async fn rename_named<T>(
        &self,
        from: &str,
        to: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        check_name(to)?;
        match self.inner.names.get() {
            Some(all) => all.rename(from, to, Kind::Volume, work).await,
            None => work.await,
        }
    }

    /// Runs `work`, which removes the disk of this name.
    pub(crate) async fn remove_named<T>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.inner.names.get() {
            Some(all) => all.remove(name, work).await,
            None => work.await,
        }
    }
}
