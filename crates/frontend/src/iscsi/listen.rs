//! Starting the iSCSI target.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_wire::iscsi::reply::LoginStatus;

use super::chap::Algorithm;
use super::cluster::ClusterPortals;
use super::connection::Front;
use super::context::{Context, Disks};
use super::groups::PortGroups;
use super::registry::Registry;
use super::standby::Standby;
use crate::attempts::{Attempts, KnownHosts};
use crate::iscsi::SessionLimits;
use crate::plane::{FrontEnd, ListenAddr, ListenError, Plane};
use crate::scsi::Units;
use crate::targets::{ServedTargets, Targets};

/// Settings of the iSCSI target.
pub struct Settings<'a> {
    /// Limits on sessions.
    pub limits: SessionLimits,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: &'a [Algorithm],
    /// The target port groups of the pool.
    pub groups: Arc<PortGroups>,
    /// The addresses from which hosts have proved their credentials.
    pub known: Arc<KnownHosts>,
    /// Addresses to listen on.
    pub addresses: &'a [ListenAddr],
    /// Addresses that initiators discover; `None` for the addresses on which the server listens.
    pub portals: Option<&'a [SocketAddr]>,
    /// Nodes of a cluster redirect initiators to this server. A target that this server does not have may be
    /// that of another shard, so initiators have to ask a node again: the login is refused as temporary.
    pub is_shard: bool,
}

/// Binds the addresses and lets the data plane serve targets over iSCSI. Returns the addresses with the
/// actual ports.
pub fn listen(
    plane: &mut Plane,
    disks: Disks,
    targets: Arc<ServedTargets>,
    settings: &Settings<'_>,
) -> Result<Vec<ListenAddr>, ListenError> {
    let context = Arc::new(Context {
        disks,
        targets,
        groups: settings.groups.clone(),
        registry: Registry::new(settings.limits),
        attempts: Attempts::new(settings.known.clone()),
        chap_algorithms: settings.chap_algorithms.to_vec(),
        announced: settings.portals.map(<[_]>::to_vec),
        portals: Default::default(),
        unknown_target: match settings.is_shard {
            true => LoginStatus::ServiceUnavailable,
            false => LoginStatus::NotFound,
        },
    });
    let front: Arc<dyn FrontEnd> = Arc::new(Front(context.clone()));
    let bound = plane.listen(&front, settings.addresses)?;
    // The portals are set only here. This precedes the first connection, since connections are served only
    // once the plane runs.
    let _ = context.portals.set(bound.clone());
    Ok(bound)
}

/// Works like [`listen`], for a server that waits for a pool that another server has.
pub fn listen_as_standby(
    plane: &mut Plane,
    standby: Arc<Standby>,
    settings: &Settings<'_>,
) -> Result<Vec<ListenAddr>, ListenError> {
    let targets = standby.targets().clone();
    listen(plane, Disks::OfOther(standby), targets, settings)
}

/// Works like [`listen`], for a node of a cluster, whose portals redirect logins.
pub fn listen_for_cluster(
    plane: &mut Plane,
    cluster: Arc<ClusterPortals>,
    settings: &Settings<'_>,
) -> Result<Vec<ListenAddr>, ListenError> {
    let targets = cluster.targets().clone();
    listen(plane, Disks::OfCluster(cluster), targets, settings)
}

/// Releases disks that no target maps any more; without this, registrations of absent initiators would hold
/// them open. Never returns.
pub async fn follow(targets: Arc<Targets>, units: Arc<Units>) {
    let mut changed = targets.changed();
    while changed.changed().await.is_ok() {
        let mapped = || -> HashSet<String> {
            targets.snapshot().values().flat_map(|t| t.luns.values().map(|lun| lun.disk.clone())).collect()
        };
        units.keep(mapped).await;
    }
}
