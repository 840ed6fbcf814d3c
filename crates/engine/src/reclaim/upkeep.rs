//! The upkeep task: makes checkpoints, and starts automatic reclaims.
//!
//! A reclaim begins if a crash has left objects behind, if an image is to be packed, or if garbage is likely:
//! a disk was deleted, much was appended or discarded since the last mark, or room is short. The next reclaim
//! does not begin immediately: the cost of a mark is spread over at least four times its duration, unless
//! room is short. [`crate::space`] decides.

use std::sync::Arc;
use std::time::Duration;

use forebay_format::SegmentId;
use forebay_store::Store;

use super::reclaimer::Reclaimer;
use crate::space::SPACE_CHECK;
use crate::sync::atomic::Ordering::Relaxed;

impl Reclaimer {
    /// Stops the upkeep task, and waits for the end of a reclaim under way. The pool is being closed, so no
    /// further reclaim begins: no reclaim changes the store any more.
    pub async fn stop(&self) {
        self.stopped.store(true, Relaxed);
        self.space.wake.notify_one();
        drop(self.counts.lock().await);
    }

    /// The task that makes checkpoints and reclaims space.
    pub(crate) async fn upkeep_loop(self: Arc<Reclaimer>) {
        self.space.reclaims.opened(self.cx.host.now());
        while !self.stopped.load(Relaxed) {
            let full = self.space.store.is_full().then_some(SPACE_CHECK);
            let wait = self.space.reclaim_in(self.cx.host.now()).into_iter().chain(full).min();
            let idle = !self.committer.checkpoint_due() && wait.is_none_or(|wait| wait > Duration::ZERO);
            if idle {
                self.wait_for_work(wait).await;
            }
            if full.is_some() {
                let _ = self.committer.check_space().await;
            }
            if self.cx.check_running().is_err() {
                if !idle {
                    self.wait_for_work(None).await;
                }
                continue;
            }
            let done = if self.space.reclaim_in(self.cx.host.now()) == Some(Duration::ZERO) {
                self.run(false, &|_| ()).await.map(drop)
            } else if self.committer.checkpoint_due() {
                self.committer.checkpoint().await
            } else {
                Ok(())
            };
            if let Err(e) = done {
                tracing::warn!("upkeep: {e}");
                // The cause of the failure is unlikely to be gone at once.
                self.wait_for_work(Some(SPACE_CHECK)).await;
            }
        }
    }

    /// Starts a reclaim if a crash has left objects that no table lists, or in which no segment is stored:
    /// the reclaim deletes them. Lists all objects, which takes long on some stores, so it is a separate
    /// task. `next_segment` was the number of the next segment when the pool was opened.
    pub(crate) async fn find_orphans(self: Arc<Reclaimer>, next_segment: u32) {
        let listed = self.reader.source.store.list_lengths_of(Box::new(|_| false)).await;
        let listed = self.cx.fencing(listed);
        if self.stopped.load(Relaxed) || self.cx.check_running().is_err() {
            return;
        }
        let objects = match listed {
            Ok(objects) => objects,
            Err(e) => return tracing::warn!("cannot list the objects of the store: {e}"),
        };
        // The table is read after the list, so that it contains the segments of all listed objects in use.
        let table = self.committer.read_log().await.table().clone();
        let is_orphan = |id: SegmentId| id.0 < next_segment && table.get(id).is_none_or(|r| r.map.is_some());
        if objects.iter().any(|object| is_orphan(object.id)) {
            self.space.reclaim_is_due();
        }
    }

    /// Waits for a wake-up; `limit` is the maximum wait.
    async fn wait_for_work(&self, limit: Option<Duration>) {
        match limit {
            None => self.space.wake.notified().await,
            Some(limit) => {
                let mut pause = self.cx.host.sleep(limit);
                tokio::select! {
                    biased;
                    () = self.space.wake.notified() => {}
                    () = &mut pause => {}
                }
            }
        }
    }
}
