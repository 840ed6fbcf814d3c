//! What rests in a segment, slot by slot.

use forebay_format::{
    BLOCK, DirectoryEntry, Entry, Fingerprint, SegmentFooter, SegmentRecord, SegmentState, SlotKind,
};
use forebay_store::Store;

use crate::clean::directory_entry;
use crate::places::Rest;
use crate::pool::Pool;
use crate::scan::scan_segment;
use crate::{Error, Result};

impl Pool {
    /// The slots of a segment: from its relocation map if it was moved, else from its footer; where a crash left
    /// it without one, or the footer is damaged, from its batches.
    pub(crate) async fn read_directory(&self, record: &SegmentRecord) -> Result<Vec<DirectoryEntry>> {
        if let Some(rest) = Rest::of(record) {
            let map = self.read_relocation_map(record.segment, &rest).await?;
            return Ok(map.entries.iter().map(directory_entry).collect());
        }
        if record.state == SegmentState::Sealed {
            match self.read_footer(record).await {
                Err(Error::Format(e)) => {
                    tracing::debug!(segment = %record.segment, "its directory is made from its batches: {e}");
                }
                other => return other,
            }
        }
        let (segment, until) = (record.segment, u64::from(record.written));
        let batches = scan_segment(&*self.store, self.id, segment, Some(record.stream), until).await?;
        let mut entries = Vec::new();
        for entry in batches.iter().flat_map(|b| b.entries()) {
            entries.extend(match entry? {
                Entry::Put { slot, form, crc, fingerprint, .. } => {
                    Some(DirectoryEntry { slot, form, kind: SlotKind::Block, crc, fingerprint })
                }
                Entry::Node { slot, form, crc } => {
                    let fingerprint = Fingerprint::default();
                    Some(DirectoryEntry { slot, form, kind: SlotKind::Node, crc, fingerprint })
                }
                _ => None,
            });
        }
        Ok(entries)
    }

    /// The slots of a segment, from its footer.
    pub(crate) async fn read_footer(&self, record: &SegmentRecord) -> Result<Vec<DirectoryEntry>> {
        let at = u64::from(record.written);
        let head = self.store.read(record.segment, at, BLOCK).await?;
        let footer = SegmentFooter::decode(&head, self.id, record.segment, record.written)?;
        let len = footer.directory_len().next_multiple_of(BLOCK);
        let bytes = if len == 0 {
            Vec::new()
        } else {
            self.store.read(record.segment, at + BLOCK as u64, len).await?.to_vec()
        };
        Ok(footer.decode_directory(&bytes)?)
    }
}
