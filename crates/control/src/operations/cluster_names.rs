//! The names of a cluster, if the pool is a shard of one: no two shards have disks of the same name.

use std::sync::Arc;

use forebay_cluster::ClusterError;
use forebay_cluster::names::Kind;
use forebay_cluster::owned::{Disks, OwnedNames};
use forebay_engine::{DiskInfo, Pool, Role, check_name};

use super::{Control, Result, STRETCH};

/// The disks of a pool that is a shard of a cluster.
pub struct DisksOfShard {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Number of the shard.
    pub shard: u32,
}

impl Disks for DisksOfShard {
    fn find(&self, name: &str) -> Result<Option<Kind>, ClusterError> {
        let found = self.pool.disk_in_brief(name).ok().and_then(|disk| kind(&disk));
        // A commit that has failed may have taken effect.
        if self.pool.has_stopped() { Err(ClusterError::Lost(self.shard)) } else { Ok(found) }
    }

    fn after(&self, after: &str) -> Vec<(String, Kind)> {
        let mut last = after.to_owned();
        loop {
            let disks = self.pool.disks_after(&last, STRETCH);
            let Some(end) = disks.last() else { return Vec::new() };
            last.clone_from(&end.name);
            let named: Vec<_> =
                disks.iter().filter_map(|disk| Some((disk.name.clone(), kind(disk)?))).collect();
            if !named.is_empty() {
                return named;
            }
        }
    }
}

/// Disks whose names are those of the cluster: a snapshot has the name of its volume, and others are internal.
fn kind(disk: &DiskInfo) -> Option<Kind> {
    match disk.role {
        Role::Volume => Some(Kind::Volume),
        Role::Image => Some(Kind::Image),
        Role::Snapshot | Role::Import | Role::Metadata => None,
    }
}

impl Control {
    /// The names of disks are those of a cluster from now on.
    pub fn set_names(&self, names: Arc<OwnedNames>) {
        // They are set once, before the API is served.
        let _ = self.inner.names.set(names);
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
