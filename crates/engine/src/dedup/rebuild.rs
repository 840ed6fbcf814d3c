//! Reading fingerprints back from the store.
//!
//! After a start the index is empty and the pool serves at once; a task reads the directories of all segments,
//! first of those that were of use before (the checkpoint names them), then the others from the newest on. What
//! is written meanwhile is in the index anyway. A directory is read without the log's lock and taken in under
//! it, if its segment has not been moved in between: slots that were dropped must not come back.

use forebay_format::{SegmentId, SegmentRecord, SlotKind, Stream};

use crate::limits::{INDEX_CALM, INDEX_LOOK, INDEX_WAIT};
use crate::pool::Pool;
use crate::{Error, Result};

impl Pool {
    /// The segments in which blocks can be found by their fingerprints.
    pub(crate) async fn segments_with_blocks(&self) -> Vec<SegmentId> {
        let holds_blocks = |r: &&SegmentRecord| matches!(r.stream, Stream::Data | Stream::Short);
        self.log.lock().await.table().values().filter(holds_blocks).map(|r| r.segment).collect()
    }

    /// The task that reads the index back, after the pool was opened with `warm` segments known to be of use.
    pub(crate) async fn rebuild_index(&self, warm: Vec<SegmentId>) {
        let mut segments = self.segments_with_blocks().await;
        // From behind: the warm ones come last in the list, the first of them at its end.
        segments.retain(|s| !warm.contains(s));
        segments.extend(warm.into_iter().rev());
        if !segments.is_empty() {
            self.wait_for_calm().await;
        }
        while let Some(segment) = segments.pop() {
            self.dedup.lock().segments_left = segments.len() as u64 + 1;
            if self.check_running().is_err() {
                break;
            }
            match self.read_back(segment).await {
                // Freed or damaged: its blocks will be stored again, where they are written again.
                Err(e @ (Error::Latched(_) | Error::Closed)) => {
                    tracing::debug!("reading fingerprints back ends: {e}");
                    break;
                }
                Err(e) => tracing::warn!(%segment, "the fingerprints of a segment are lost: {e}"),
                Ok(()) => {}
            }
        }
        self.dedup.lock().segments_left = 0;
    }

    /// Waits while guests boot, which read more from the store than they ever will again: they go first.
    async fn wait_for_calm(&self) {
        let until = self.host.now() + INDEX_WAIT;
        let mut reads = u64::MAX;
        while self.host.now() < until && self.check_running().is_ok() {
            let now = self.store.counts().read.ops;
            if now.checked_sub(reads).is_some_and(|new| new < INDEX_CALM) {
                return;
            }
            reads = now;
            self.host.sleep(INDEX_LOOK).await;
        }
    }

    async fn read_back(&self, segment: SegmentId) -> Result<()> {
        let found = async |id| self.log.lock().await.table().get(id).copied();
        let Some(record) = found(&segment).await else { return Ok(()) };
        let entries = self.read_directory(&record).await?;
        let log = self.log.lock().await;
        let same = log.table().get(&segment).is_some_and(|now| now.map == record.map);
        if same {
            let mut dedup = self.dedup.lock();
            for e in entries.iter().filter(|e| e.kind == SlotKind::Block) {
                dedup.insert_old(e.fingerprint, crate::log::block_at(segment, e));
            }
        }
        Ok(())
    }
}
