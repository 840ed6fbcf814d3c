//! Marks: which disks have writes that were answered before they are durable, and what a loss of the memory
//! that holds such writes means for their clients.
//!
//! **The rule.** An acknowledged write stays visible to its client for as long as the client lives; if that
//! is impossible, the client is refused. The writes are kept in memory that outlives the server process. This
//! module handles the loss of this memory.
//!
//! **Invariant.** Whenever a client has an answer to a change that is not durable, the log holds a mark of
//! the disk for this kind of client (local, or remote, which includes local), or the mark *lost*.
//!
//! - *Before the first such answer* the mark is made durable ([`Marks::ensure`]). The answer without waiting
//!   checks the mark under the freeze gate, in the same step in which the data goes into the buffer
//!   ([`Intake::write_sectors`](crate::commit::Intake::write_sectors)). The answer after
//!   waiting checks it when the change is in the buffer.
//! - *A mark is removed* when the gate is closed exclusively and the buffers of the disk are clean. All
//!   changes that were answered before are then durable, and all later changes find the disk without a mark,
//!   although the removal reaches the log later. One task makes and removes marks, one commit after another,
//!   so no mark is being made when a mark is removed. A pool that is closed removes marks in its last group,
//!   which holds all changes before it.
//! - A desktop's buffer is never clean. The mark of a desktop is removed when a reset replaces its contents,
//!   which requires that its clients have left. In the same way, a rollback removes the mark of a volume.
//!
//! **Opening.** The superblock names the memory that belongs to the pool, and the boot of the host in which
//! local clients were served last. If the pool is opened without that memory, [`Marks::settle`] replaces the
//! marks in one commit, and then the superblock names the new memory and the present boot, all before the
//! first client is served. If a crash interrupts this, the next opening finds one of two states: the result,
//! or the old marks and a memory that the superblock does not name. In the second state, it decides in the
//! same way again.
//!
//! | mark | the memory is lost, same boot | lost, another boot |
//! |---|---|---|
//! | local | lost: clients of this host may live | none: they died with the host |
//! | remote | lost | lost; all clients of this host are newer |
//! | lost, of local clients | lost, as of now: the writes of newer clients are lost too | none |
//! | lost, of remote clients | lost, as of now | lost; all clients of this host are newer |
//!
//! **A shared store** may have been opened by another host in between, so another boot does not mean that the
//! clients of the previous boot have ended:
//!
//! | mark | the memory is lost, another boot, shared store |
//! |---|---|
//! | local | lost, of local clients; all clients of this host are admitted, since none had the answers |
//! | remote | as above |
//! | lost | lost, as of now: this host may have had the pool, and the clients, before the other one |
//!
//! A client of the same host that started after the loss was detected is admitted ([`Marks::check`]), because
//! no answer to it was lost. Answers to this client need no further mark: at the next loss, the mark *lost*
//! gets the time of that loss.

mod settle;
mod task;

use std::sync::Arc;

use forebay_format::{CatalogueOp, Mark};
use forebay_retained::DamagedPage;
use tokio::sync::{Notify, oneshot};

use crate::catalogue::Catalogue;
use crate::client::{Client, Clientele};
use crate::commit::{Committer, Intake};
use crate::context::Context;
use crate::disk::Disk;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, RwLock};
use crate::text::shorten;
use crate::{Error, Result};

/// Makes and removes the marks of disks; see the module documentation.
pub(crate) struct Marks {
    cx: Arc<Context>,
    intake: Arc<Intake>,
    committer: Arc<Committer>,
    catalogue: Arc<RwLock<Catalogue>>,
    /// The marks of earlier openings are settled, so new marks can be made.
    is_settled: AtomicBool,
    /// Decisions about the marks of earlier openings that are not yet in the log.
    decisions: tokio::sync::Mutex<Vec<CatalogueOp>>,
    /// Pages of the retained memory that led to these decisions.
    evidence: Mutex<Vec<DamagedPage>>,
    requests: Mutex<Requests>,
    /// Wakes the task that makes and removes marks.
    wake: Notify,
}

/// The requests for marks that wait.
#[derive(Default)]
struct Requests {
    waiting: Vec<Request>,
    /// The task that serves the requests has ended.
    is_over: bool,
}

/// A request for a mark.
struct Request {
    disk: Arc<Disk>,
    clients: Clientele,
    done: oneshot::Sender<Result<()>>,
}

impl Marks {
    pub fn new(intake: Arc<Intake>, committer: Arc<Committer>, catalogue: Arc<RwLock<Catalogue>>) -> Marks {
        Marks {
            cx: committer.context().clone(),
            intake,
            committer,
            catalogue,
            is_settled: AtomicBool::new(false),
            decisions: tokio::sync::Mutex::default(),
            evidence: Mutex::default(),
            requests: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Waits until the disk is marked for such clients, durably.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the store has no room for the mark; the errors of a pool that does not run.
    pub async fn ensure(&self, disk: &Arc<Disk>, clients: Clientele) -> Result<()> {
        while !disk.is_marked_for(clients) {
            if matches!(disk.record().mark, Mark::Lost { .. }) {
                // A mark would admit clients that must be refused.
                return Err(lost(disk, &disk.record().name));
            }
            let (done, result) = oneshot::channel();
            {
                let mut requests = self.requests.lock();
                if requests.is_over {
                    self.cx.check_running()?;
                    return Err(Error::Closed);
                }
                requests.waiting.push(Request { disk: disk.clone(), clients, done });
            }
            self.wake.notify_one();
            result.await.unwrap_or(Err(Error::Closed))?;
        }
        Ok(())
    }

    /// Whether a client may use a disk.
    ///
    /// # Errors
    /// [`Error::MemoryLost`] if it may have had writes answered that are lost.
    pub fn check(&self, disk: &Disk, client: Client, name: &str) -> Result<()> {
        match disk.record().mark {
            Mark::Lost { since_ms, .. } if !client.started_after(since_ms) => Err(lost(disk, name)),
            _ => Ok(()),
        }
    }

    /// Admits all clients to a disk with lost writes. Has no effect on any other disk. The caller holds the
    /// lock of the catalogue's editor.
    ///
    /// # Errors
    /// The errors of a commit.
    pub async fn resume(&self, disk: &Arc<Disk>, name: &str) -> Result<()> {
        if !matches!(disk.record().mark, Mark::Lost { .. }) {
            return Ok(());
        }
        self.ensure_settled().await?;
        // Without clients, the next commit contains all answered writes; a desktop is an exception.
        let unused = disk.exclude_clients(name).ok().filter(|_| !disk.is_desktop());
        let mark = if unused.is_some() { Mark::None } else { Mark::Local };
        self.intake.commit_ops(vec![CatalogueOp::Mark { disk: disk.id(), mark }]).await?;
        drop(unused);
        self.recheck();
        Ok(())
    }

    /// Called when a mark may have become removable.
    pub fn recheck(&self) {
        self.wake.notify_one();
    }

    /// The catalogue changes of the last commit before the pool closes: this commit makes the writes of all
    /// disks but desktops durable. The caller holds the freeze gate exclusively.
    pub fn last_ops(&self) -> Vec<CatalogueOp> {
        let catalogue = self.catalogue.read();
        let removable = catalogue.iter().filter(|disk| is_removable(disk));
        removable.map(|disk| CatalogueOp::Mark { disk: disk.id(), mark: Mark::None }).collect()
    }

    /// Ends the task because the pool no longer runs.
    pub fn stop(&self) {
        self.wake.notify_one();
    }
}

/// The error for a client whose answered writes to a disk may be lost.
fn lost(disk: &Disk, name: &str) -> Error {
    let remedy = if disk.is_desktop() { "reset" } else { "resume" };
    Error::MemoryLost { name: shorten(name), remedy }
}

/// Whether the mark of a disk is removed once its buffers are clean. A disk counts as a desktop until its
/// change to a persistent volume is in the log.
fn is_removable(disk: &Disk) -> bool {
    let record = disk.record();
    matches!(record.mark, Mark::Local | Mark::Remote) && record.write_cache == 0 && !disk.is_desktop()
}
