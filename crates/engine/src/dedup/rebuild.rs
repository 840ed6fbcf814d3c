//! Reading fingerprints back from the store: directories for the commit, and after a start all of them.
//!
//! After a start the index is empty and the pool serves at once; a task reads the directories of all segments,
//! first of those that were of use before (the checkpoint names them), then the others from the newest on. What
//! is written meanwhile is in the index anyway. A directory is read without the log's lock and taken in under
//! it, if its segment has not been moved in between: slots that were dropped must not come back.

use forebay_format::{
    BLOCK, DirectoryEntry, Entry, RelocationMap, SegmentFooter, SegmentId, SegmentRecord, SegmentState,
    SlotKind, Stream,
};
use forebay_store::Store;

use crate::pool::Pool;
use crate::scan::scan_segment;
use crate::{Error, Result};

impl Pool {
    /// What rests in a segment, block by block: from its relocation map if it was moved, else from its footer;
    /// where a crash left it without one, from its batches.
    pub(crate) async fn read_directory(&self, record: &SegmentRecord) -> Result<Vec<DirectoryEntry>> {
        let SegmentRecord { segment, written, .. } = *record;
        if let Some((offset, len)) = record.map {
            let container = SegmentId(record.container);
            let bytes = self.read_exact(container, offset.into(), len as usize).await?;
            let map = RelocationMap::decode(&bytes, segment, container)?;
            let entry = |e: &forebay_format::Relocation| DirectoryEntry {
                slot: e.slot,
                form: e.form,
                kind: e.kind,
                crc: e.crc,
                fingerprint: e.fingerprint,
            };
            return Ok(map.entries.iter().map(entry).collect());
        }
        let at = u64::from(written);
        let head = self.store.read(segment, at, BLOCK).await?;
        if record.state == SegmentState::Sealed
            && let Ok(footer) = SegmentFooter::decode(&head, self.id, segment, written)
        {
            if footer.count == 0 {
                return Ok(Vec::new());
            }
            let bytes = self.read_exact(segment, at + BLOCK as u64, footer.directory_len()).await?;
            return Ok(footer.decode_directory(&bytes)?);
        }
        let batches = scan_segment(&*self.store, self.id, segment, Some(record.stream), 0, at).await?;
        let mut entries = Vec::new();
        for entry in batches.iter().flat_map(|b| b.entries()) {
            entries.extend(match entry? {
                Entry::Put { slot, form, crc, fingerprint, .. } => {
                    Some(DirectoryEntry { slot, form, kind: SlotKind::Block, crc, fingerprint })
                }
                Entry::Node { slot, form, crc } => {
                    let fingerprint = Default::default();
                    Some(DirectoryEntry { slot, form, kind: SlotKind::Node, crc, fingerprint })
                }
                _ => None,
            });
        }
        Ok(entries)
    }

    /// The task that reads the index back, after the pool was opened with `warm` segments known to be of use.
    pub(crate) async fn rebuild_index(&self, warm: Vec<SegmentId>) {
        let mut segments: Vec<SegmentId> = {
            let log = self.log.lock().await;
            let holds_blocks = |r: &&SegmentRecord| matches!(r.stream, Stream::Data | Stream::Short);
            log.table().values().filter(holds_blocks).map(|r| r.segment).collect()
        };
        // From behind: the warm ones come last in the list, the first of them at its end.
        segments.retain(|s| !warm.contains(s));
        segments.extend(warm.into_iter().rev());
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
