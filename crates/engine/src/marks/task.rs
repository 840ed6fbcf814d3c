//! The task that makes and removes marks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{CatalogueOp, DiskId, Mark};

use super::{Marks, Request, is_removable};
use crate::client::Clientele;
use crate::disk::Disk;
use crate::limits::{FULL_RETRY, MARK_IDLE};
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Error, Result};

/// Number of changes that were made to each disk, and when the last change was noticed.
type Activity = BTreeMap<DiskId, (u64, Duration)>;

impl Marks {
    /// The task that makes and removes marks, until the pool closes or latches. It sleeps unless marks are
    /// requested or could be removed.
    pub(crate) async fn mark_loop(self: Arc<Marks>) {
        let mut activity = Activity::new();
        // An earlier opening may have left marks, so the timer runs from the start.
        let mut timer = Some(self.cx.host.sleep(MARK_IDLE / 2));
        loop {
            if let Err(e) = self.cx.check_running() {
                return self.end(&e);
            }
            if !self.is_settled.load(Relaxed) {
                self.settle_again().await;
                continue;
            }
            let requests = std::mem::take(&mut self.requests.lock().waiting);
            if !requests.is_empty() {
                self.mark(requests).await;
                continue;
            }
            let is_due = match &mut timer {
                Some(check) => tokio::select! {
                    biased;
                    () = self.wake.notified() => false,
                    () = check => true,
                },
                None => {
                    self.wake.notified().await;
                    false
                }
            };
            // The search for marks to be removed visits all disks. Only the timer triggers this search, even
            // if there are many wakes. Each wake starts the timer, since it may announce a mark.
            if is_due {
                timer = None;
            }
            if !is_due || self.remove_idle(&mut activity).await {
                timer.get_or_insert_with(|| self.cx.host.sleep(MARK_IDLE / 2));
            }
        }
    }

    /// Fails all present and later requests.
    fn end(&self, why: &Error) {
        let waiting = {
            let mut requests = self.requests.lock();
            requests.is_over = true;
            std::mem::take(&mut requests.waiting)
        };
        for request in waiting {
            // The client may have left, so the error is ignored.
            let _ = request.done.send(Err(why.clone()));
        }
    }

    /// Tries again to record the marks of earlier openings, if the store had no room for them. Requests fail
    /// until there is room.
    async fn settle_again(&self) {
        let Err(why) = self.ensure_settled().await else { return };
        let waiting = std::mem::take(&mut self.requests.lock().waiting);
        for request in waiting {
            let _ = request.done.send(Err(why.clone()));
        }
        self.cx.host.sleep(FULL_RETRY).await;
    }

    /// Makes the marks of all requests in one commit. If one of the disks is a desktop, all desktops with
    /// clients are marked: they boot together and are about to write, and each would need a commit.
    async fn mark(&self, requests: Vec<Request>) {
        let mut wanted = BTreeMap::new();
        for request in &requests {
            let clients = wanted.entry(request.disk.id()).or_insert((&request.disk, request.clients));
            clients.1 = clients.1.max(request.clients);
        }
        let attached = if requests.iter().any(|request| request.disk.is_desktop()) {
            self.attached_desktops()
        } else {
            Vec::new()
        };
        for disk in &attached {
            wanted.entry(disk.id()).or_insert((disk, Clientele::Local));
        }
        let missing = wanted.into_values().filter(|(disk, clients)| !disk.is_marked_for(*clients));
        let ops: Vec<_> = missing
            .map(|(disk, clients)| {
                let mark = match clients {
                    Clientele::Local => Mark::Local,
                    Clientele::Remote => Mark::Remote,
                };
                CatalogueOp::Mark { disk: disk.id(), mark }
            })
            .collect();
        let done = if ops.is_empty() { Ok(()) } else { self.intake.commit_ops(ops).await };
        for request in requests {
            let _ = request.done.send(done.clone());
        }
    }

    fn attached_desktops(&self) -> Vec<Arc<Disk>> {
        let catalogue = self.catalogue.read();
        let is_meant =
            |disk: &&Arc<Disk>| disk.is_desktop() && disk.is_open() && disk.record().mark == Mark::None;
        catalogue.iter().filter(is_meant).cloned().collect()
    }

    /// Removes the marks of disks that are clean and have not changed for some time, in one commit. Returns
    /// whether there are marks that this task can remove now or later.
    async fn remove_idle(&self, activity: &mut Activity) -> bool {
        let now = self.cx.host.now();
        let marked: Vec<Arc<Disk>> = {
            let catalogue = self.catalogue.read();
            catalogue.iter().filter(|disk| disk.is_marked() && is_removable(disk)).cloned().collect()
        };
        // The disks of the catalogue are ordered by id.
        activity.retain(|id, _| marked.binary_search_by_key(id, |disk| disk.id()).is_ok());
        let has_marks = !marked.is_empty();
        let is_idle = |disk: &Arc<Disk>| {
            let changes = disk.guest.write.get().ops + disk.guest.discard.get().ops;
            let seen = activity.entry(disk.id()).or_insert((changes, now));
            if seen.0 != changes {
                *seen = (changes, now);
            }
            now.saturating_sub(seen.1) >= MARK_IDLE
        };
        let mut idle: Vec<_> = marked.into_iter().filter(is_idle).collect();
        if let Err(e) = self.unmark_clean(&mut idle).await {
            tracing::debug!("cannot remove the marks of disks, retrying: {e}");
        }
        has_marks
    }

    /// Removes the marks of those disks whose buffers are clean.
    async fn unmark_clean(&self, disks: &mut Vec<Arc<Disk>>) -> Result<()> {
        if disks.is_empty() {
            return Ok(());
        }
        let choose = || {
            disks.retain(|disk| {
                let buffers = disk.buffers.lock();
                buffers.active().is_empty() && !buffers.is_committing() && is_removable(disk)
            });
            disks.iter().for_each(|disk| disk.begin_unmark());
            let unmark = |disk: &Arc<Disk>| CatalogueOp::Mark { disk: disk.id(), mark: Mark::None };
            disks.iter().map(unmark).collect()
        };
        let done = self.intake.commit_chosen_ops(choose).await;
        if done.is_err() {
            // The removal did not reach the log. No other task makes marks.
            disks.iter().for_each(|disk| disk.keep_mark());
        }
        done
    }
}
