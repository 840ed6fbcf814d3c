//! Decides, when a pool is opened, what has become of the clients of marked disks.

use forebay_format::{CatalogueOp, Mark, check64};
use forebay_retained::DamagedPage;

use super::Marks;
use crate::recovery::MemoryLoss;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::{Error, OnMemoryLoss, Result};

/// What is known when a pool is opened.
#[derive(Debug, Clone, Copy)]
struct Opening {
    /// Writes of the disk that were answered before they were durable are lost.
    lost: bool,
    /// The host has not been restarted since it last served local clients of the pool.
    same_boot: bool,
    /// Another host may have had the pool; local clients of that host, or of this host, may still run.
    is_shared: bool,
    /// Milliseconds since the boot of the host.
    now_ms: u64,
}

/// The mark of a disk after an opening of the pool; the table is in [`super`].
fn settled(mark: Mark, opening: Opening) -> Mark {
    let Opening { lost, same_boot, is_shared, now_ms } = opening;
    match mark {
        Mark::None => Mark::None,
        Mark::Local | Mark::Remote if !lost => mark,
        // The mark is for clients of another host: no client of this host received those answers.
        Mark::Local if !same_boot && is_shared => Mark::Lost { remote: false, since_ms: 0 },
        // The mark may be for clients of this host, from when it had the pool before.
        Mark::Lost { remote, .. } if !same_boot && is_shared => Mark::Lost { remote, since_ms: now_ms },
        Mark::Local | Mark::Lost { remote: false, .. } if !same_boot => Mark::None,
        Mark::Local => Mark::Lost { remote: false, since_ms: now_ms },
        // No client of this host received an answer during this boot.
        Mark::Remote | Mark::Lost { .. } if !same_boot => Mark::Lost { remote: true, since_ms: 0 },
        Mark::Remote => Mark::Lost { remote: true, since_ms: now_ms },
        Mark::Lost { remote, .. } if lost => Mark::Lost { remote, since_ms: now_ms },
        Mark::Lost { .. } => mark,
    }
}

impl Marks {
    /// Settles the marks of earlier openings. Called before any client is served. The evidence of the loss
    /// stays in the retained memory until the decisions are durable.
    ///
    /// # Errors
    /// The errors of a commit, and of writing the superblock, apart from [`Error::NoSpace`].
    pub(crate) async fn settle(&self, loss: &MemoryLoss, evidence: Vec<DamagedPage>) -> Result<()> {
        *self.evidence.lock() = evidence;
        self.decide(loss).await;
        match self.record_decisions().await {
            Err(Error::NoSpace) => {
                tracing::warn!(
                    "no room to record what became of the clients of disks: retrying until there is"
                );
                Ok(())
            }
            other => other,
        }
    }

    /// Determines the new marks. They take effect in memory at once.
    async fn decide(&self, loss: &MemoryLoss) {
        let log = self.committer.read_log().await;
        let (same_boot, is_shared) = (log.superblock().boot == self.boot(), log.store().is_shared());
        drop(log);
        let now_ms = self.cx.host.boot_ms();
        let is_accepted = self.cx.config.on_memory_loss == OnMemoryLoss::Accept;
        let mut names = Vec::new();
        let mut decisions = self.decisions.lock().await;
        let catalogue = self.catalogue.read();
        for disk in catalogue.iter() {
            let before = disk.record().mark;
            let lost = loss.concerns(disk.id());
            let mut mark = settled(before, Opening { lost, same_boot, is_shared, now_ms });
            if matches!(mark, Mark::Lost { .. }) {
                names.push(catalogue.export_name(disk));
                mark = if is_accepted { Mark::None } else { mark };
            }
            if mark != before {
                disk.set_mark(mark);
                decisions.push(CatalogueOp::Mark { disk: disk.id(), mark });
            }
        }
        report(loss.reason().unwrap_or("a part of the retained memory is damaged"), &names, is_accepted);
    }

    /// Waits until the marks of earlier openings are settled. Until then no mark can be made or removed: the
    /// decisions about the marks would undo it. If the store had no room for the decisions, they are recorded
    /// now.
    ///
    /// # Errors
    /// The errors of [`Marks::record_decisions`].
    pub(crate) async fn ensure_settled(&self) -> Result<()> {
        if self.is_settled.load(Acquire) { Ok(()) } else { self.record_decisions().await }
    }

    /// Makes the new marks durable, then names the memory of this opening and the present boot in the
    /// superblock.
    ///
    /// # Errors
    /// The errors of a commit, and of writing the superblock.
    async fn record_decisions(&self) -> Result<()> {
        let mut decisions = self.decisions.lock().await;
        if self.is_settled.load(Relaxed) {
            return Ok(());
        }
        if !decisions.is_empty() {
            self.intake.commit_ops(decisions.clone()).await?;
            decisions.clear();
        }
        let mut log = self.committer.write_log().await?;
        let (before, boot) = (log.superblock().clone(), self.boot());
        let memory = self.cx.retained.id();
        if (memory, boot) != (before.memory, before.boot) {
            let swapped = log.swap_superblock(|s| (s.memory, s.boot) = (memory, boot)).await;
            self.committer.latching(swapped)?;
        }
        self.evidence.lock().clear();
        self.is_settled.store(true, Release);
        Ok(())
    }

    /// The present boot, as the superblock records it.
    fn boot(&self) -> u64 {
        check64(&self.cx.host.boot_id())
    }
}

/// Logs the disks whose answered writes are lost.
fn report(why: &str, names: &[String], is_accepted: bool) {
    /// Maximum number of names in one line.
    const NAMES: usize = 20;
    if names.is_empty() {
        return;
    }
    let disks = names[..names.len().min(NAMES)].join(", ");
    let others = names.len().saturating_sub(NAMES);
    if is_accepted {
        tracing::warn!(why, disks, others, "answered writes are lost: accepted");
    } else {
        tracing::warn!(
            why,
            disks,
            others,
            "answered writes are lost: clients that may have the answers are refused until 'forebay volume \
             resume', or 'reset' for desktops"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Mark = Mark::Lost { remote: false, since_ms: 5 };
    const REMOTE: Mark = Mark::Lost { remote: true, since_ms: 5 };

    fn all(lost: bool, same_boot: bool) -> [Mark; 5] {
        after(Opening { lost, same_boot, is_shared: false, now_ms: 9 })
    }

    fn after(opening: Opening) -> [Mark; 5] {
        [Mark::None, Mark::Local, Mark::Remote, LOCAL, REMOTE].map(|mark| settled(mark, opening))
    }

    #[test]
    fn each_mark_has_its_result() {
        let lost = |remote, since_ms| Mark::Lost { remote, since_ms };
        let (local, remote) = (lost(false, 9), lost(true, 9));
        assert_eq!(all(true, true), [Mark::None, local, remote, local, remote]);
        let early = lost(true, 0);
        assert_eq!(all(true, false), [Mark::None, Mark::None, early, Mark::None, early]);
        assert_eq!(all(false, true), [Mark::None, Mark::Local, Mark::Remote, LOCAL, REMOTE]);
        let elsewhere = Opening { lost: true, same_boot: false, is_shared: true, now_ms: 9 };
        assert_eq!(after(elsewhere), [Mark::None, lost(false, 0), early, local, remote]);
        let here_again = Opening { same_boot: true, ..elsewhere };
        assert_eq!(after(here_again), all(true, true));
    }
}
