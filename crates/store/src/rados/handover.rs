//! The end of a handover: the server that released a pool to an heir waits until a server serves the pool, or
//! takes it back.
//!
//! **Invariant.** In the end some server serves the pool: the heir, another standby, or this server. This
//! server takes the pool back if the heir does not take it, or dies before it serves clients.

use std::time::Duration;

use super::cluster::{Cluster, Errno};
use super::header::Header;
use super::ownership::{
    Claimant, LOOK_EVERY, LOOK_FOR_HEIR, Taken, is_free, name, swap_owner, taking_failed,
};
use super::watch::Watch;
use super::{Claim, Waiting};
use crate::{Result, StoreError};

/// Time in which the heir must take the pool. It is shorter than the time for other servers, so that this
/// server is before them.
const HEIR_TAKES: Duration = Duration::from_secs(2);
/// Time in which the heir should serve clients. After it, this server waits no longer if the heir is alive.
const HEIR_SERVES: Duration = Duration::from_secs(15);

/// The outcome of a handover.
pub(super) enum Fate {
    /// Another server has the pool.
    Taken { owner: String, term: u64, is_serving: bool },
    /// This server has the pool back.
    Back(Taken),
}

/// Waits until the pool that was released in `term` is served by another server, or takes it back.
///
/// # Errors
/// `ECANCELED` as [`StoreError::Io`] if cancelled; the error of the cluster if the pool cannot be taken back.
pub(super) async fn settle(
    cluster: &dyn Cluster,
    here: &Claimant,
    term: u64,
    waiting: &Waiting<'_>,
) -> Result<Fate> {
    let mut watch = loop {
        match Header::read(cluster).await {
            Ok(header) => break Watch::new(header),
            Err(Errno(libc::EUCLEAN | libc::ENOENT)) => return Err(taking_failed(Errno(libc::EUCLEAN))),
            Err(_) if (waiting.is_cancelled)() => return Err(cancelled()),
            Err(_) => cluster.sleep(LOOK_FOR_HEIR).await,
        }
    };
    // When the present owner, or its release of the pool, was first seen: a release may arrive late.
    let mut since = cluster.now();
    let mut ownership = (watch.seen.term, watch.seen.owner.clone());
    loop {
        let seen = &watch.seen;
        if (seen.term, &seen.owner) != (ownership.0, &ownership.1) {
            ownership = (seen.term, seen.owner.clone());
            since = cluster.now();
        }
        let waited = cluster.now().saturating_sub(since);
        let is_taken = seen.term != term;
        if is_taken && !seen.owner.is_empty() && (seen.is_serving || waited >= HEIR_SERVES) {
            let (owner, term, is_serving) = (name(&seen.owner), seen.term, seen.is_serving);
            return Ok(Fate::Taken { owner, term, is_serving });
        }
        let claim = if waited >= HEIR_TAKES { Claim::Back { term } } else { Claim::Wait };
        // The release by this server may not have arrived yet.
        let is_mine = !is_taken && seen.owner == here.owner.text() && waited < HEIR_TAKES;
        if (is_free(seen, &here.owner, claim) && !is_mine) || watch.is_silent() {
            here.membership.check(seen)?;
            match swap_owner(cluster, seen, here, Vec::new()).await {
                Ok(taken) => return Ok(Fate::Back(taken)),
                Err(Errno(libc::ECANCELED)) => {}
                Err(e) => return Err(taking_failed(e)),
            }
        }
        if (waiting.is_cancelled)() {
            return Err(cancelled());
        }
        // An error is logged; it ends with the outage of the cluster.
        let _ = watch.look(cluster, LOOK_FOR_HEIR).await;
    }
}

/// Waits until an heir on this host gives no sign of life: it does not take the pool that was released to it,
/// or it is the owner without a heartbeat. Other servers would soon take the pool over. Returns false if
/// cancelled.
pub(super) async fn is_abandoned(cluster: &dyn Cluster, waiting: &Waiting<'_>) -> bool {
    let mut watch: Option<Watch> = None;
    while !(waiting.is_cancelled)() {
        match &mut watch {
            Some(watch) if watch.is_silent_for(HEIR_TAKES) => return true,
            // An error is logged, and is not a sign that the heir has ended.
            Some(watch) => {
                let _ = watch.look(cluster, LOOK_EVERY).await;
            }
            None => {
                cluster.sleep(LOOK_EVERY).await;
                watch = Header::read(cluster).await.ok().map(Watch::new);
            }
        }
    }
    false
}

fn cancelled() -> StoreError {
    let (what, reason) = ("handing the pool over".into(), "cancelled".into());
    StoreError::Io { what, reason, errno: libc::ECANCELED }
}
