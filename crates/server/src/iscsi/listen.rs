//! Starting the iSCSI target.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_engine::Pool;

use super::chap::Algorithm;
use super::connection::Front;
use super::context::Context;
use super::registry::Registry;
use crate::config::SessionLimits;
use crate::plane::{FrontEnd, ListenAddr, ListenError, Plane};
use crate::scsi::Units;
use crate::targets::Targets;

/// Binds the addresses and lets the data plane serve targets over iSCSI. Returns the addresses with the
/// actual ports.
pub fn listen(
    plane: &mut Plane,
    pool: Arc<Pool>,
    targets: Arc<Targets>,
    units: Arc<Units>,
    limits: SessionLimits,
    chap_algorithms: &[Algorithm],
    addresses: &[ListenAddr],
) -> Result<Vec<ListenAddr>, ListenError> {
    let context = Arc::new(Context {
        pool,
        targets,
        units,
        registry: Registry::new(limits),
        attempts: Default::default(),
        chap_algorithms: chap_algorithms.to_vec(),
        portals: Default::default(),
    });
    let front: Arc<dyn FrontEnd> = Arc::new(Front(context.clone()));
    let bound = plane.listen(&front, addresses)?;
    // This is the only call, and precedes the first connection: those are served once the plane runs.
    let _ = context.portals.set(bound.clone());
    Ok(bound)
}

/// Releases disks that no target maps any more: otherwise registrations of absent initiators hold them open.
/// Never returns.
pub async fn follow(targets: Arc<Targets>, units: Arc<Units>) {
    let mut changed = targets.changed();
    while changed.changed().await.is_ok() {
        let mapped: HashSet<String> =
            targets.snapshot().values().flat_map(|t| t.luns.values().map(|lun| lun.disk.clone())).collect();
        units.keep(|disk| mapped.contains(disk)).await;
    }
}
