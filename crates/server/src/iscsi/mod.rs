//! The iSCSI target (RFC 7143): initiators on one side, the logical units of [`crate::scsi`] on the other.
//!
//! A connection logs in (`login`, with `chap` and `attempts`), which begins a session (`registry`); there is one connection in a
//! session, and error recovery level 0. Then what it says is served (`session`), commands above all (`command`): their
//! numbers and the way back are `link`'s, their data is gathered by `gather`, they run in `task`. `units` is what an
//! initiator sees, `discovery` tells it what it may come to, `watch` tells the session what is not the initiator's doing.

mod attempts;
mod chap;
mod command;
mod connection;
mod discovery;
mod gather;
mod link;
mod login;
mod registry;
mod session;
mod task;
mod units;
mod watch;

use std::collections::HashSet;
use std::sync::Arc;

use forebay_engine::Pool;

use crate::config::SessionLimits;
use crate::plane::{FrontEnd, ListenAddr, ListenError, Plane};
use crate::scsi::Units;
use crate::targets::Targets;
pub use chap::Algorithm;
use connection::{Context, Front};
use registry::Registry;

/// Has the data plane serve targets over iSCSI. Takes the addresses, and returns them with the ports that were taken.
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
    let taken = plane.listen(&front, addresses)?;
    // Nobody is served before the plane runs.
    let _ = context.portals.set(taken.clone());
    Ok(taken)
}

/// Lets go of disks that no target maps any more: registrations of initiators that are not there hold them open.
/// Never ends.
pub async fn follow(targets: Arc<Targets>, units: Arc<Units>) {
    let mut changed = targets.changed();
    while changed.changed().await.is_ok() {
        let mapped: HashSet<String> =
            targets.snapshot().values().flat_map(|t| t.luns.values().map(|lun| lun.disk.clone())).collect();
        units.keep(|disk| mapped.contains(disk)).await;
    }
}
