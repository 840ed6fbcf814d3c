//! The progress of commits, which flushes and waiting writers watch.

use std::ops::Range;

use tokio::sync::watch;

use crate::context::Context;
use crate::disk::Disk;
use crate::{Error, Result};

/// The progress of commits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Number of freezes whose group is durable and applied to the maps.
    pub done: u64,
    /// Number of freezes whose group is durable or was abandoned. The data of an abandoned group is back in
    /// the buffers.
    pub ended: u64,
    /// Number of commits that failed because the store had no room and no reclaim was expected to free any.
    pub refusals: u64,
    /// Whether the pool has latched or closed.
    pub stopped: bool,
}

/// Publishes [`Progress`]. Every event that may unblock a waiter is published here, except that a disk has
/// fewer cold writes ([`Cold::fewer`](crate::disk::Cold::fewer)).
pub(crate) struct CommitProgress(watch::Sender<Progress>);

impl Default for CommitProgress {
    fn default() -> CommitProgress {
        CommitProgress(watch::channel(Progress::default()).0)
    }
}

impl CommitProgress {
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.0.subscribe()
    }

    /// Changes the progress and wakes all waiters.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) {
        self.0.send_modify(change);
    }

    /// Wakes all waiters, which check their conditions again.
    pub fn wake_waiters(&self) {
        self.0.send_modify(|_| ());
    }

    /// Waits until no copy into `blocks` is under way.
    pub async fn wait_for_copies(&self, cx: &Context, disk: &Disk, blocks: &Range<u64>) -> Result<()> {
        let mut progress = self.subscribe();
        loop {
            progress.mark_unchanged();
            cx.check_running()?;
            if !disk.buffers.lock().is_copied_to(blocks) {
                return Ok(());
            }
            progress.changed().await.map_err(|_| Error::Closed)?;
        }
    }
}
