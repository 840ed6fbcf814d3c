//! The directory of a segment: its slots.

use forebay_format::{
    BLOCK, DirectoryEntry, Entry, Fingerprint, SegmentFooter, SegmentRecord, SegmentState, SlotKind,
};

use super::relocation::RelocationRef;
use super::store::StoreReader;
use crate::log::{directory_entry, scan_segment};
use crate::{Error, Result};

impl StoreReader {
    /// Reads the slots of a segment: from its relocation map if it was moved, otherwise from its footer. If
    /// the footer is damaged, or missing after a crash, the slots are collected from the batches.
    pub async fn read_directory(&self, record: &SegmentRecord) -> Result<Vec<DirectoryEntry>> {
        if let Some(map_ref) = RelocationRef::of(record) {
            let map = self.read_relocation_map(record.segment, &map_ref).await?;
            return Ok(map.entries.iter().map(directory_entry).collect());
        }
        if record.state == SegmentState::Sealed {
            match self.read_footer(record).await {
                Err(Error::Format(e)) => {
                    tracing::debug!(segment = %record.segment, "the footer is damaged; reading the directory from the batches: {e}");
                }
                other => return other,
            }
        }
        let (segment, until) = (record.segment, u64::from(record.written));
        let batches = scan_segment(&*self.store, self.pool, segment, Some(record.stream), until).await?;
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

    /// Reads the slots of a segment from its footer.
    pub async fn read_footer(&self, record: &SegmentRecord) -> Result<Vec<DirectoryEntry>> {
        let at = u64::from(record.written);
        let head = self.read(record.segment, at, BLOCK).await?;
        let footer = SegmentFooter::decode(&head, self.pool, record.segment, record.written)?;
        let len = footer.directory_len().next_multiple_of(BLOCK);
        let bytes = if len == 0 {
            Vec::new()
        } else {
            self.read(record.segment, at + BLOCK as u64, len).await?.to_vec()
        };
        Ok(footer.decode_directory(&bytes)?)
    }
}
