//! The segment table: a record for each segment.
//!
//! The records are in *pages* by ranges of segment numbers. A copy of the table shares its pages, and a
//! change to a shared page copies that page first. A copy of the table of a large pool therefore takes less
//! than a millisecond, and loops over all records use a copy, without the log's lock. A checkpoint stores the
//! same pages: it writes the pages that differ from the pages of the last checkpoint.
//!
//! Sums over all records are kept up to date with each change.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{SegmentId, SegmentRecord, Table};

/// The records of consecutive segment numbers, in order.
type SegmentPage = Arc<Vec<SegmentRecord>>;

/// The records of all segments.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentTable {
    /// Pages, by page number; no page is empty.
    pages: BTreeMap<u32, SegmentPage>,
    len: usize,
    in_place: u64,
}

/// Bytes of a segment that are stored in the segment's own object.
fn in_place(record: &SegmentRecord) -> u64 {
    if record.map.is_none() { record.written.into() } else { 0 }
}

fn page_of(id: SegmentId) -> u32 {
    Table::SEGMENTS.page_of(id.0)
}

fn position(page: &[SegmentRecord], id: SegmentId) -> Result<usize, usize> {
    // Segments are opened by ascending number, and the newest record is changed most often.
    match page.last() {
        Some(last) if last.segment == id => Ok(page.len() - 1),
        Some(last) if last.segment < id => Err(page.len()),
        _ => page.binary_search_by_key(&id, |r| r.segment),
    }
}

impl SegmentTable {
    /// Number of segments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all segments that were not moved.
    pub fn in_place_bytes(&self) -> u64 {
        self.in_place
    }

    /// The record of a segment.
    pub fn get(&self, id: SegmentId) -> Option<&SegmentRecord> {
        let page = self.pages.get(&page_of(id))?;
        page.get(position(page, id).ok()?)
    }

    /// Whether there is a record of this segment.
    pub fn contains(&self, id: SegmentId) -> bool {
        self.get(id).is_some()
    }

    /// All records, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SegmentRecord> {
        self.pages.values().flat_map(|page| page.iter())
    }

    /// The pages, by page number.
    pub fn pages(&self) -> &BTreeMap<u32, SegmentPage> {
        &self.pages
    }

    /// Adds a record, or replaces the record of the same segment.
    pub fn insert(&mut self, record: SegmentRecord) {
        let page = Arc::make_mut(self.pages.entry(page_of(record.segment)).or_default());
        self.in_place += in_place(&record);
        match position(page, record.segment) {
            Ok(at) => self.in_place -= in_place(&std::mem::replace(&mut page[at], record)),
            Err(at) => {
                page.insert(at, record);
                self.len += 1;
            }
        }
    }

    /// Changes the record of a segment, if it exists.
    pub fn change(&mut self, id: SegmentId, change: impl FnOnce(&mut SegmentRecord)) {
        if let Some(record) = self.get(id) {
            let mut record = *record;
            change(&mut record);
            self.insert(record);
        }
    }

    /// Removes the record of a segment.
    pub fn remove(&mut self, id: SegmentId) {
        let Some(page) = self.pages.get_mut(&page_of(id)) else { return };
        let Ok(at) = position(page, id) else { return };
        self.in_place -= in_place(&Arc::make_mut(page).remove(at));
        self.len -= 1;
        if page.is_empty() {
            self.pages.remove(&page_of(id));
        }
    }

    /// Removes all records of segments from `first` on.
    pub fn remove_from(&mut self, first: SegmentId) {
        let last = self.pages.range(page_of(first)..).flat_map(|(_, page)| page.iter());
        let removed: Vec<SegmentId> = last.map(|r| r.segment).filter(|id| *id >= first).collect();
        removed.into_iter().for_each(|id| self.remove(id));
    }
}

impl FromIterator<SegmentRecord> for SegmentTable {
    fn from_iter<I: IntoIterator<Item = SegmentRecord>>(records: I) -> SegmentTable {
        let mut table = SegmentTable::default();
        records.into_iter().for_each(|record| table.insert(record));
        table
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::{SegmentState, Stream};

    use super::*;

    const SEGMENTS_OF_PAGE: u32 = Table::SEGMENTS.span;

    fn record(segment: u32, written: u32) -> SegmentRecord {
        SegmentRecord {
            segment: SegmentId(segment),
            stream: Stream::Data,
            state: SegmentState::Sealed,
            footer: false,
            container: segment,
            written,
            first_seq: 1,
            last_seq: 1,
            map: None,
        }
    }

    fn ids(table: &SegmentTable) -> Vec<u32> {
        table.iter().map(|r| r.segment.0).collect()
    }

    #[test]
    fn records_are_in_order_and_sums_follow_every_change() {
        let far = 3 * SEGMENTS_OF_PAGE + 1;
        let mut table: SegmentTable = [far, 5, 1, 2, 5].iter().map(|id| record(*id, 4096)).collect();
        assert_eq!(ids(&table), [1, 2, 5, far]);
        assert_eq!((table.len(), table.in_place_bytes()), (4, 4 * 4096));
        table.change(SegmentId(2), |r| r.written = 8192);
        table.change(SegmentId(3), |r| r.written = 8192);
        assert_eq!(table.in_place_bytes(), 5 * 4096);
        table.change(SegmentId(5), |r| (r.container, r.map) = (far, Some((4096, 72))));
        assert_eq!(table.in_place_bytes(), 4 * 4096);
        table.remove(SegmentId(3));
        table.remove(SegmentId(1));
        assert_eq!((ids(&table), table.len(), table.in_place_bytes()), (vec![2, 5, far], 3, 3 * 4096));
        table.remove_from(SegmentId(3));
        assert_eq!((ids(&table), table.pages().len()), (vec![2], 1));
        assert_eq!((table.len(), table.in_place_bytes()), (1, 8192));
    }

    #[test]
    fn a_copy_keeps_its_records_and_shares_unchanged_pages() {
        let mut table: SegmentTable = (1..3 * SEGMENTS_OF_PAGE).map(|id| record(id, 4096)).collect();
        let copy = table.clone();
        table.change(SegmentId(1), |r| r.written = 8192);
        table.remove(SegmentId(SEGMENTS_OF_PAGE));
        assert_eq!(copy.get(SegmentId(1)).map(|r| r.written), Some(4096));
        assert!(copy.contains(SegmentId(SEGMENTS_OF_PAGE)));
        let shared = |page: u32| Arc::ptr_eq(&copy.pages()[&page], &table.pages()[&page]);
        assert_eq!((shared(0), shared(1), shared(2)), (false, false, true));
    }
}
