//! Resetting desktops by themselves: when their client has left, and when a pool is opened.
//!
//! **No client sees what another wrote.** A desktop that is to be reset is marked at the moment at which its last
//! client ends in good order ([`Volume::leave`]), under the lock that counts clients. From then on attaching fails with
//! [`Error::Resetting`], or waits ([`Pool::attach_when_reset`]), until the reset is durable and in the maps. Nothing
//! else takes the mark away: a reset that fails is tried again as long as the pool runs, and a pool that is opened
//! marks all of its desktops.
//!
//! A reset is a small change to the catalogue. It needs no room but the reserve, which overflow leaves alone, and it is
//! in the next commit, whatever overflows meanwhile. What a marked desktop has in RAM does not overflow any more.

use std::sync::Arc;

use forebay_format::CatalogueOp;

use crate::limits::{ATTACH_WAIT, RESET_RETRY, RESET_RETRY_MAX};
use crate::pool::Pool;
use crate::volume::Volume;
use crate::{Disk, Error, Mutation, Result};

/// What an attempt to reset all that is due has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// Desktops that an operation or a leaving client holds.
    Some,
}

impl Pool {
    /// Opens a disk by its export name, as [`Pool::attach`] does. Where it is a desktop that is being reset after its
    /// last client, waits for that, at most 10 seconds.
    ///
    /// # Errors
    /// Those of [`Pool::attach`], [`Error::Resetting`] after that time, [`Error::Latched`] and [`Error::Closed`].
    pub async fn attach_when_reset(self: &Arc<Pool>, name: &str) -> Result<Arc<Disk>> {
        let mut progress = self.commit.progress.subscribe();
        let mut patience = self.host.sleep(ATTACH_WAIT);
        loop {
            progress.mark_unchanged();
            match self.attach(name) {
                Err(Error::Resetting(_)) => self.check_running()?,
                other => return other,
            }
            tokio::select! {
                biased;
                changed = progress.changed() => changed.map_err(|_| Error::Closed)?,
                () = &mut patience => return self.attach(name),
            }
        }
    }

    /// The task that resets desktops that are due, until the pool closes or latches.
    pub(crate) async fn reset_loop(self: Arc<Pool>) {
        let mut pause = RESET_RETRY;
        loop {
            let left = self.reset_due().await;
            if self.check_running().is_err() {
                // Those who wait to attach learn why they cannot.
                self.commit.progress.send_modify(|_| ());
                return;
            }
            match left {
                Ok(Left::Nothing) => {
                    pause = RESET_RETRY;
                    self.desktops.resets.notified().await;
                    continue;
                }
                Ok(Left::Some) => pause = RESET_RETRY,
                Err(e) => tracing::warn!("cannot reset desktops, trying again: {e}"),
            }
            self.host.sleep(pause).await;
            pause = (pause * 2).min(RESET_RETRY_MAX);
        }
    }

    /// Resets all desktops that are due and free, in one commit.
    async fn reset_due(self: &Arc<Pool>) -> Result<Left> {
        let volumes: Vec<_> = {
            let catalogue = self.catalogue.read();
            catalogue.iter().filter(|v| v.is_reset_due()).cloned().collect()
        };
        let (mut taken, mut ops, mut images) = (Taken::default(), Vec::new(), Vec::new());
        let mut left = Left::Nothing;
        for volume in volumes {
            match (volume.begin_reset(), volume.record().origin) {
                (None, _) => {}
                (Some(true), Some(from)) => {
                    ops.push(CatalogueOp::Copy { disk: volume.id(), from });
                    images.push(from);
                    taken.0.push(volume);
                }
                (Some(true), None) => {
                    volume.reset_failed();
                    tracing::error!(disk = %volume.record().name, "a desktop without an image cannot be reset");
                }
                (Some(false), _) => left = Left::Some,
            }
        }
        if !ops.is_empty() {
            self.copy_contents(ops).await?;
            self.clones_may_start(images);
        }
        Ok(left)
    }

    /// Sets all desktops back to their images, when a pool is opened. Where there is no room for it they stay marked,
    /// and no client gets them before the task has done it.
    pub(crate) async fn reset_desktops(self: &Arc<Pool>) -> Result<()> {
        let desktops: Vec<_> = {
            let catalogue = self.catalogue.read();
            catalogue.iter().filter(|v| v.is_desktop()).cloned().collect()
        };
        if desktops.is_empty() || self.config.mutation == Mutation::KeepDesktops {
            return Ok(());
        }
        tracing::info!(desktops = desktops.len(), "resetting desktops to their images");
        desktops.iter().for_each(|desktop| desktop.require_reset());
        match self.reset_due().await {
            Err(Error::NoSpace) => {
                tracing::warn!("no room to reset desktops: they cannot be attached until there is");
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Desktops whose reset is in a commit. Those that are not reset when this goes are due again.
#[derive(Default)]
struct Taken(Vec<Arc<Volume>>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|volume| volume.reset_failed());
    }
}
