//! Automatic resets of desktops: after their last client disconnected, and when a pool is opened.
//!
//! **No client sees another client's data.** A desktop with reset at disconnect is marked when its last
//! client disconnects in good order ([`Disk::record_clean_disconnect`]), under the lock that counts clients.
//! From then on attaching fails with [`Error::Resetting`], or waits ([`crate::Pool::attach_when_reset`]),
//! until the reset is durable and applied to the maps. Only that, or the completed conversion to a persistent
//! volume, removes the mark: a reset that fails is retried as long as the pool is open, and opening a pool
//! marks all its desktops.
//!
//! A reset is a small change to the catalogue. It needs no room beyond the reserve, which overflows do not
//! use up, and it is in the next commit, whatever overflows concurrently. The write buffer of a marked
//! desktop does not overflow any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId};
use forebay_retained::Flag;

use super::desktops::Desktops;
use crate::disk::Disk;
use crate::limits::{RESET_RETRY, RESET_RETRY_MAX};
use crate::{Error, Mutation, Result};

/// Why some due desktops remain after an attempt to reset all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    None,
    /// An operation or a disconnecting client uses the remaining desktops.
    InUse,
}

impl Desktops {
    /// The task that resets desktops that are due, until the pool closes or latches.
    pub(crate) async fn reset_loop(self: Arc<Desktops>) {
        let mut pause = RESET_RETRY;
        loop {
            let remaining = self.reset_due().await;
            if self.cx.check_running().is_err() {
                // Clients that wait to attach fail with the error of the pool.
                self.progress.wake_waiters();
                return;
            }
            match remaining {
                Ok(Remaining::None) => {
                    pause = RESET_RETRY;
                    self.caches.resets.notified().await;
                    continue;
                }
                Ok(Remaining::InUse) => pause = RESET_RETRY,
                Err(e) => tracing::warn!("cannot reset desktops, retrying: {e}"),
            }
            self.cx.host.sleep(pause).await;
            pause = (pause * 2).min(RESET_RETRY_MAX);
        }
    }

    /// Resets all desktops that are due and not in use, in one commit.
    async fn reset_due(self: &Arc<Desktops>) -> Result<Remaining> {
        let due: Vec<_> = {
            let catalogue = self.editor.catalogue.read();
            catalogue.iter().filter(|d| d.is_reset_due()).cloned().collect()
        };
        let (mut running, mut ops, mut images) = (RunningResets::default(), Vec::new(), Vec::new());
        let mut remaining = Remaining::None;
        for desktop in due {
            match (desktop.begin_reset(), desktop.record().origin) {
                (None, _) => {}
                (Some(true), Some(from)) => {
                    ops.push(CatalogueOp::Copy { disk: desktop.id(), from });
                    images.push(from);
                    running.0.push(desktop);
                }
                (Some(true), None) => {
                    desktop.reset_failed();
                    tracing::error!(disk = %desktop.record().name, "a desktop without an image cannot be reset");
                }
                (Some(false), _) => remaining = Remaining::InUse,
            }
        }
        if !ops.is_empty() {
            self.editor.copy_contents(ops).await?;
            self.profiles.prefetch_images(images);
        }
        Ok(remaining)
    }

    /// Whether a desktop is known to have the contents of its image.
    fn is_pristine(&self, desktop: &Disk) -> bool {
        desktop.record().origin.is_some_and(|image| self.editor.have_same_map(desktop.id(), image))
    }

    /// Called when a pool is opened. `valid` are the desktops whose contents are valid according to the
    /// retained memory. All other desktops are reset to their images. If there is no room for their reset
    /// they stay marked, and no client can attach them before the task has reset them.
    pub(crate) async fn restore(
        self: &Arc<Desktops>,
        valid: Vec<(Arc<Disk>, Flag)>,
        memory_lost: bool,
    ) -> Result<()> {
        if self.cx.config.mutation == Mutation::KeepInvalid {
            return Ok(());
        }
        let kept: BTreeSet<DiskId> = valid.iter().map(|(desktop, _)| desktop.id()).collect();
        valid.into_iter().for_each(|(desktop, flag)| desktop.set_valid(flag));
        let desktops: Vec<_> = {
            let catalogue = self.editor.catalogue.read();
            let others = catalogue.iter().filter(|d| d.is_desktop() && !kept.contains(&d.id()));
            // What such a desktop had in memory is lost, also if its image and its map are the same.
            let others = others.inspect(|desktop| desktop.count_replacement());
            others.filter(|d| memory_lost || !self.is_pristine(d)).cloned().collect()
        };
        if desktops.is_empty() || self.cx.config.mutation == Mutation::KeepDesktops {
            return Ok(());
        }
        tracing::info!("resetting {} desktops to their images", desktops.len());
        for desktop in &desktops {
            desktop.require_reset();
        }
        match self.reset_due().await {
            Err(Error::NoSpace) => {
                tracing::warn!(
                    "no room to reset desktops: they cannot be attached until room is freed and they are reset"
                );
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Desktops whose reset is in a commit. When this guard is dropped, the desktops that were not reset are due
/// again.
#[derive(Default)]
struct RunningResets(Vec<Arc<Disk>>);

impl Drop for RunningResets {
    fn drop(&mut self) {
        self.0.iter().for_each(|desktop| desktop.reset_failed());
    }
}
