//! The owner of desktops, and the overflow of their write caches.

use std::sync::Arc;

use forebay_format::{BLOCK, Stream};

use crate::admin::CatalogueEditor;
use crate::commit::{Committer, Group, Intake, by_leaf};
use crate::context::Context;
use crate::disk::Disk;
use crate::limits::{COLD_READS, FULL_RETRY, OVERFLOW_BYTES};
use crate::profile::BootProfiles;
use crate::progress::CommitProgress;
use crate::space::SpaceGovernor;
use crate::stats::Counter;
use crate::write_caches::{WriteCaches, is_nearly_spent};
use crate::{DesktopStats, Error, Result};

/// One overflow takes at most one part in this number of the reserve.
const RESERVE_PART: u64 = 4;

/// Lets desktops overflow, resets them, and converts them to persistent volumes.
pub(crate) struct Desktops {
    pub(super) cx: Arc<Context>,
    pub(super) committer: Arc<Committer>,
    pub(super) intake: Arc<Intake>,
    pub(super) space: Arc<SpaceGovernor>,
    pub(super) progress: Arc<CommitProgress>,
    pub(super) caches: Arc<WriteCaches>,
    pub(super) editor: Arc<CatalogueEditor>,
    pub(super) profiles: Arc<BootProfiles>,
    /// Number of overflows, and the bytes that they freed in RAM.
    overflowed: Counter,
}

impl Desktops {
    pub fn new(
        (caches, progress): (Arc<WriteCaches>, Arc<CommitProgress>),
        space: Arc<SpaceGovernor>,
        intake: Arc<Intake>,
        committer: Arc<Committer>,
        editor: Arc<CatalogueEditor>,
        profiles: Arc<BootProfiles>,
    ) -> Desktops {
        Desktops {
            cx: committer.context().clone(),
            space,
            progress,
            caches,
            intake,
            committer,
            editor,
            profiles,
            overflowed: Counter::default(),
        }
    }

    /// The task that lets desktops overflow.
    pub(crate) async fn overflow_loop(self: Arc<Desktops>) {
        loop {
            self.caches.wake.notified().await;
            while let Some(desktop) = self.next_to_overflow() {
                let begin = self.cx.host.now();
                match self.overflow(&desktop).await {
                    Ok(_) if self.has_waiting_writers(&desktop) => {}
                    // Waits as long as the overflow took: guests' reads have priority while there is room.
                    Ok(_) => self.cx.host.sleep(self.cx.host.now().saturating_sub(begin)).await,
                    Err(Error::NoSpace) => self.cx.host.sleep(FULL_RETRY).await,
                    Err(Error::Closed) => break,
                    Err(e) => {
                        self.cx.latch(&e);
                        break;
                    }
                }
                if self.cx.check_running().is_err() {
                    break;
                }
            }
            if self.cx.check_running().is_err() {
                // Woken writers that wait for room fail with the error of the pool.
                self.progress.wake_waiters();
                return;
            }
        }
    }

    /// Chooses the desktop that overflows next: the desktop that has used the largest share of its budget,
    /// among those whose budget is nearly spent or whose writers wait (a large write may have to wait long
    /// before the budget is nearly spent). If no desktop qualifies and the common budget is short, the
    /// desktop with the largest cache is chosen. When it has overflowed, waiting writers of other desktops
    /// check again. A desktop that is due for a reset does not overflow.
    fn next_to_overflow(&self) -> Option<Arc<Disk>> {
        let mut all = self.caches.is_nearly_spent() | self.caches.take_required();
        let catalogue = self.editor.catalogue.read();
        let desktops = || catalogue.iter().filter(|d| d.is_desktop() && d.cached() > 0 && !d.is_reset_due());
        for disk in catalogue.iter().filter(|d| d.wants_room() && d.cached() == 0) {
            all |= disk.take_wants_room();
        }
        let candidates =
            desktops().filter(|d| d.take_wants_room() || is_nearly_spent(d.cached(), d.write_cache()));
        let fullest =
            candidates.max_by_key(|d| u128::from(d.cached()) * 1024 / u128::from(d.write_cache().max(1)));
        let largest = || desktops().max_by_key(|d| d.cached()).filter(|_| all);
        fullest.or_else(largest).cloned()
    }

    /// Whether a writer of the desktop waits for room, or will wait soon.
    fn has_waiting_writers(&self, desktop: &Disk) -> bool {
        desktop.wants_room() || self.caches.is_short(desktop)
    }

    /// Commits the least recently written blocks of a desktop. Returns the bytes of its write buffer that
    /// this frees.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if only the reserve is left, or less. After this error, and if a read that the
    /// commit requires fails, the desktop is unchanged. After any other error the pool has latched.
    pub(super) async fn overflow(&self, desktop: &Arc<Disk>) -> Result<u64> {
        let touched = by_leaf(desktop.buffers.lock().active().coldest_touched(OVERFLOW_BYTES / BLOCK));
        let mut warm = self.committer.warm();
        warm.read_ahead(vec![(desktop.clone(), touched)], COLD_READS).await;
        let mut log = self.committer.write_log().await?;
        self.cx.check_running()?;
        if !desktop.is_desktop() || desktop.is_reset_due() {
            return Ok(0);
        }
        let limit = self.overflow_bytes()?;
        let frozen = desktop.buffers.lock().freeze_coldest(limit / BLOCK);
        let bytes = frozen.cost();
        let mut group = Group::of(desktop.clone(), frozen);
        match self.committer.log_group(&mut log, &mut group, Stream::Short, &mut warm).await {
            Ok(()) => {
                self.overflowed.add(bytes);
                desktop.count_overflow(bytes);
            }
            Err(Error::NoSpace) => {
                self.committer.give_up_group(group);
                return Err(Error::NoSpace);
            }
            // No part of the group was written to the log, so all of it can be returned to the buffer.
            Err(e) if !group.is_written => {
                self.committer.unfreeze_group(&mut group);
                return Err(e);
            }
            Err(e) => {
                tracing::error!("the pool stops: {e}");
                self.cx.latch(&e);
                return Err(e);
            }
        }
        drop(log);
        self.committer.after_commit().await;
        Ok(bytes)
    }

    /// Maximum bytes of one overflow. Acknowledged writes of volumes, deletions and resets depend on the
    /// reserve, so the last overflow may take only a small part of the reserve.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if only the reserve is left.
    pub(super) fn overflow_bytes(&self) -> Result<usize> {
        if self.space.store.is_full() {
            return Err(Error::NoSpace);
        }
        let (above, reserve) = self.space.store.above_reserve();
        Ok((above.max(reserve / RESERVE_PART) as usize).clamp(BLOCK, OVERFLOW_BYTES))
    }

    /// The counters of desktops.
    pub(crate) fn stats(&self) -> DesktopStats {
        DesktopStats {
            count: self.editor.catalogue.read().iter().filter(|d| d.is_desktop()).count() as u64,
            cached_bytes: self.caches.cached(),
            budget: self.caches.budget(),
            overflow: self.overflowed.get(),
        }
    }
}
