//! Damage in the log that loses flushed writes: reports the loss, and opens the pool without these writes if
//! its administrator accepts that.
//!
//! [`crate::recovery`] distinguishes damage from the end of the log. A pool with a damaged log is not opened:
//! the unreachable part may be restored with the segment from a backup. Without a backup, the administrator
//! accepts the loss by the number of the first missing batch, which the report contains: so only a reported
//! loss can be accepted. The pool is then at the last group before the damage, and a checkpoint of that state
//! is made, which both superblock copies reference. With it all earlier segments are sealed and not scanned
//! again, so no part of the accepted loss can reappear. A stop in between leaves either the damage as it was,
//! or history before the damage followed by a batch of a higher epoch, to which the remaining batches do not
//! belong.

use std::sync::Arc;

use forebay_store::{Metered, Store};
use serde::Serialize;

use crate::components::Components;
use crate::log_damage::LogDamage;
use crate::recovery::{Mode, OnLoss, recover};
use crate::{Error, Host, PoolConfig, Result};

/// The result of [`recover_log`].
#[derive(Debug, Clone, Serialize)]
pub struct LossReport {
    /// The damage; `None` if the log can be followed to its end.
    pub damage: Option<LogDamage>,
    /// The loss was accepted: the pool opens in the state before the damage.
    pub accepted: bool,
}

/// Reports whether the log of a pool that no server has open is damaged, and the resulting loss. `accept` is
/// the [`LogDamage::id`] of the damage whose loss is accepted: the pool is then modified to open without the
/// lost writes.
///
/// # Errors
/// [`Error::OtherLoss`] if `accept` does not name the existing damage; the errors of opening a pool.
pub async fn recover_log(
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    accept: Option<u64>,
) -> Result<LossReport> {
    let clock = host.clone();
    let store = Arc::new(Metered::new(store, Arc::new(move || clock.now())));
    let config = PoolConfig { dedup_index: 0, ..PoolConfig::default() };
    let found = recover(store.clone(), host.clone(), config.clone(), Mode::Look, OnLoss::Report).await?;
    let Some(id) = accept else {
        return Ok(LossReport { damage: found.damage, accepted: false });
    };
    match &found.damage {
        Some(damage) if damage.id == id => {}
        Some(damage) => {
            return Err(Error::OtherLoss(format!("the damage has the number {}, not {id}", damage.id)));
        }
        None => return Err(Error::OtherLoss("the log is not damaged, so there is no loss to accept".into())),
    }
    drop(found);
    let mut opened = recover(store, host, config, Mode::Own, OnLoss::Accept(id)).await?;
    let damage = opened.damage.take();
    let components = Components::assemble(opened);
    {
        // The retained memory is removed: it refers to batches by their numbers, which later batches will
        // have again.
        let mut log = components.committer.write_log().await?;
        if log.superblock().memory != 0 {
            log.swap_superblock(|s| s.memory = components.cx.retained.id()).await?;
        }
    }
    components.committer.checkpoint_in_both_copies().await?;
    if let Some(damage) = &damage {
        tracing::warn!(id, until = damage.intact_until, "accepted the loss of flushed writes: {damage}");
    }
    Ok(LossReport { damage, accepted: true })
}
