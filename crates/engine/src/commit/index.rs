//! Rebuilds the dedup index from the fingerprints in the store.
//!
//! When a pool is opened, the index is empty and the pool serves requests at once. A task reads the
//! directories of all segments: first the segments that had hits before (the checkpoint lists them), then all
//! others, newest first. Blocks that are written during this time are indexed as usual. A directory is read
//! without the log's lock. Its entries are inserted under the lock, unless the segment was moved in the
//! meantime: slots that the move dropped must not be indexed again.

use forebay_format::{SegmentId, SegmentRecord, SlotKind, Stream};
use hashbrown::HashSet;

use super::committer::Committer;
use crate::limits::{INDEX_CALM, INDEX_LOOK, INDEX_WAIT};
use crate::log::{SegmentTable, block_at};
use crate::{Error, Result};

/// The segments in which blocks can be found by their fingerprints.
pub(crate) fn segments_with_blocks(table: &SegmentTable) -> Vec<SegmentId> {
    let holds_blocks = |r: &&SegmentRecord| matches!(r.stream, Stream::Data | Stream::Short);
    table.iter().filter(holds_blocks).map(|r| r.segment).collect()
}

impl Committer {
    /// The task that rebuilds the index after the pool was opened; `warm` are the segments that had hits
    /// before.
    pub async fn rebuild_index(&self, warm: Vec<SegmentId>) {
        let table = self.read_log().await.table().clone();
        let mut segments = segments_with_blocks(&table);
        drop(table);
        // Segments are taken from the end of the list, so the warm segments are appended in reverse.
        let listed: HashSet<SegmentId> = warm.iter().copied().collect();
        segments.retain(|s| !listed.contains(s));
        segments.extend(warm.into_iter().rev());
        if !segments.is_empty() {
            self.wait_for_calm().await;
        }
        while let Some(segment) = segments.pop() {
            self.reducer.dedup.lock().segments_left = segments.len() as u64 + 1;
            if self.cx.check_running().is_err() {
                break;
            }
            match self.index_segment(segment).await {
                Err(e @ (Error::Latched(_) | Error::Fenced | Error::Closed)) => {
                    tracing::debug!("rebuilding the dedup index has stopped: {e}");
                    break;
                }
                // The segment is freed or damaged: if its blocks are written again, they are stored again.
                Err(e) => tracing::warn!(%segment, "cannot read the fingerprints of a segment: {e}"),
                Ok(()) => {}
            }
        }
        self.reducer.dedup.lock().segments_left = 0;
    }

    /// Waits while guests boot: booting causes the most store reads, and they have priority.
    async fn wait_for_calm(&self) {
        let until = self.cx.host.now() + INDEX_WAIT;
        let mut reads = u64::MAX;
        while self.cx.host.now() < until && self.cx.check_running().is_ok() {
            let now = self.reader.source.store.counts().read.ops;
            if now.checked_sub(reads).is_some_and(|new| new < INDEX_CALM) {
                return;
            }
            reads = now;
            self.cx.host.sleep(INDEX_LOOK).await;
        }
    }

    /// Inserts the fingerprints of a segment into the index.
    async fn index_segment(&self, segment: SegmentId) -> Result<()> {
        let found = self.read_log().await.table().get(segment).copied();
        let Some(record) = found else { return Ok(()) };
        let entries = self.reader.source.read_directory(&record).await?;
        let log = self.read_log().await;
        let same = log.table().get(segment).is_some_and(|now| now.map == record.map);
        if same {
            let mut dedup = self.reducer.dedup.lock();
            for e in entries.iter().filter(|e| e.kind == SlotKind::Block) {
                dedup.insert_old(e.fingerprint, block_at(segment, e));
            }
        }
        Ok(())
    }
}
