//! The contents of a checkpoint, and which of its pages are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{BlobRef, DiskRecord, PageEncoder, PageLevel, SegmentId, Table};
use tokio::task::yield_now;

use super::paged::PagedTable;
use crate::log::SegmentTable;

/// The contents of a checkpoint: catalogue and segment table as of one batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    /// Id of the next disk.
    pub next_disk: u32,
    /// Id of the next segment.
    pub next_segment: u32,
    /// Records of all disks.
    pub disks: Vec<DiskRecord>,
    /// Table of all segments.
    pub segments: SegmentTable,
    /// Segments in which fingerprints were found most recently.
    pub warm: Vec<SegmentId>,
    /// The fingerprint index kept one of `2^sampling` fingerprints.
    pub sampling: u8,
}

/// A page: the index of its table in [`StoredTables::tables`], and its number.
pub(crate) type PageId = (usize, u32);

const SEGMENTS: usize = 0;
const DISKS: usize = 1;

/// The tables as the current checkpoint stores them, and their contents, with which the next checkpoint
/// compares its own.
#[derive(Debug, Clone)]
pub(crate) struct StoredTables {
    /// The tables of segments and of disks.
    pub tables: [PagedTable; 2],
    segments: SegmentTable,
    /// Encoded pages of disk records.
    disk_pages: BTreeMap<u32, Arc<Vec<u8>>>,
}

impl Default for StoredTables {
    fn default() -> StoredTables {
        StoredTables {
            tables: [Table::SEGMENTS, Table::DISKS].map(PagedTable::new),
            segments: SegmentTable::default(),
            disk_pages: BTreeMap::new(),
        }
    }
}

/// Encodes the pages of the catalogue; disks are ordered by id. Other tasks run between the pages.
async fn encode_disks(disks: &[DiskRecord]) -> BTreeMap<u32, Arc<Vec<u8>>> {
    let page_of = |disk: &DiskRecord| Table::DISKS.page_of(disk.id.0);
    let encode = |disks: &[DiskRecord]| {
        let number = page_of(disks.first()?);
        let mut page = PageEncoder::new(Table::DISKS, PageLevel::Records, number);
        disks.iter().for_each(|disk| page.add(disk.id.0, |out| disk.encode(out)));
        Some((number, Arc::new(page.finish()?)))
    };
    let mut pages = BTreeMap::new();
    for of_page in disks.chunk_by(|a, b| page_of(a) == page_of(b)) {
        pages.extend(encode(of_page));
        yield_now().await;
    }
    pages
}

/// The numbers of the pages in which two lists differ.
fn differing<T: PartialEq>(old: &BTreeMap<u32, Arc<T>>, new: &BTreeMap<u32, Arc<T>>) -> Vec<u32> {
    let same = |a: &Arc<T>, b: &Arc<T>| Arc::ptr_eq(a, b) || a == b;
    let changed = new.iter().filter(|(n, page)| !old.get(n).is_some_and(|old| same(old, page)));
    let gone = old.keys().filter(|n| !new.contains_key(n));
    changed.map(|(n, _)| *n).chain(gone.copied()).collect()
}

impl StoredTables {
    /// The tables of segments and disks, as they were read from the store, with their contents.
    pub async fn read(tables: [PagedTable; 2], contents: &Contents) -> StoredTables {
        let disk_pages = encode_disks(&contents.disks).await;
        StoredTables { tables, segments: contents.segments.clone(), disk_pages }
    }

    /// Takes the contents of a new checkpoint. Returns the pages that must be stored for it, among them up to
    /// `renew` of the oldest pages, which have not changed.
    pub async fn replace(&mut self, contents: &Contents, renew: usize) -> Vec<PageId> {
        let disk_pages = encode_disks(&contents.disks).await;
        let segments = differing(self.segments.pages(), contents.segments.pages());
        let disks = differing(&self.disk_pages, &disk_pages);
        self.segments = contents.segments.clone();
        self.disk_pages = disk_pages;
        let mut pages: BTreeSet<PageId> = segments.into_iter().map(|n| (SEGMENTS, n)).collect();
        pages.extend(disks.into_iter().map(|n| (DISKS, n)));
        if renew > 0 {
            let oldest = self.oldest_but(&pages);
            pages.extend(oldest.into_iter().take(renew));
        }
        pages.into_iter().collect()
    }

    /// The stored pages except those in `except`, ordered by age.
    fn oldest_but(&self, except: &BTreeSet<PageId>) -> Vec<PageId> {
        let all = self.tables.iter().enumerate();
        let all = all.flat_map(|(table, t)| t.pages().iter().map(move |(number, at)| ((table, *number), at)));
        let mut kept: Vec<(PageId, &BlobRef)> = all.filter(|(page, _)| !except.contains(page)).collect();
        kept.sort_unstable_by_key(|(_, at)| (at.segment, at.offset));
        kept.into_iter().map(|(page, _)| page).collect()
    }

    /// Encodes a page; `None` if it has no records.
    pub fn encode(&self, (table, number): PageId) -> Option<Vec<u8>> {
        if table == DISKS {
            return self.disk_pages.get(&number).map(|page| page.to_vec());
        }
        let mut page = PageEncoder::new(Table::SEGMENTS, PageLevel::Records, number);
        for record in self.segments.pages().get(&number).into_iter().flat_map(|page| page.iter()) {
            page.add(record.segment.0, |out| record.encode(out));
        }
        page.finish()
    }

    /// The objects in which pages are stored.
    pub fn objects(&self) -> impl Iterator<Item = SegmentId> {
        self.tables.iter().flat_map(PagedTable::objects)
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::{SegmentRecord, SegmentState, Stream, decode_directory};

    use super::*;
    use crate::testing::volume;

    fn segment(id: u32, written: u32) -> SegmentRecord {
        SegmentRecord {
            segment: SegmentId(id),
            stream: Stream::Data,
            state: SegmentState::Sealed,
            footer: false,
            container: id,
            written,
            first_seq: 1,
            last_seq: 1,
            map: None,
        }
    }

    /// Three pages of segments, two of disks.
    fn contents() -> Contents {
        Contents {
            segments: (1..3 * Table::SEGMENTS.span).map(|n| segment(n, 4096)).collect(),
            disks: (1..2 * Table::DISKS.span).map(|n| volume(n, 4096)).collect(),
            ..Contents::default()
        }
    }

    /// Records pages as stored, one object after the other from `object` on.
    fn store(tables: &mut StoredTables, pages: &[PageId], object: u32) {
        for ((table, number), n) in pages.iter().zip(object..) {
            let stored = tables.encode((*table, *number)).map(|bytes| BlobRef {
                segment: SegmentId(n),
                offset: 4096,
                len: bytes.len() as u32,
                check: 0,
            });
            tables.tables[*table].set(*number, stored);
        }
    }

    #[tokio::test]
    async fn only_changed_pages_are_stored() {
        let (mut tables, mut contents) = (StoredTables::default(), contents());
        let all = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
        assert_eq!(tables.replace(&contents, 0).await, all);
        store(&mut tables, &all, 1);
        assert_eq!(tables.replace(&contents, 0).await, []);
        contents.segments.insert(segment(Table::SEGMENTS.span, 8192));
        contents.disks[0].size = 8192;
        assert_eq!(tables.replace(&contents, 0).await, [(0, 1), (1, 0)]);
        // A page without records is removed.
        contents.disks.truncate(Table::DISKS.span as usize - 1);
        assert_eq!(tables.replace(&contents, 0).await, [(1, 1)]);
        assert_eq!(tables.encode((1, 1)), None);
        store(&mut tables, &[(1, 1)], 10);
        assert!(!tables.tables[1].pages().contains_key(&1));
        assert!(tables.objects().all(|object| object != SegmentId(5)), "the object of the removed page");
    }

    #[tokio::test]
    async fn the_oldest_pages_are_stored_again() {
        let (mut tables, mut contents) = (StoredTables::default(), contents());
        tables.replace(&contents, 0).await;
        store(&mut tables, &[(1, 0), (0, 2), (0, 0), (1, 1), (0, 1)], 1);
        contents.segments.insert(segment(1, 8192));
        assert_eq!(tables.replace(&contents, 2).await, [(0, 0), (0, 2), (1, 0)]);
        assert_eq!(tables.replace(&contents, 9).await, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_directory_page_is_stored_with_any_page_below_it() {
        let mut table = PagedTable::new(Table::DISKS);
        let at = |n: u32| BlobRef { segment: SegmentId(n), offset: 4096, len: 64, check: 7 };
        let far = Table::DIRECTORY_SPAN;
        for page in [0, 1, far] {
            table.set(page, Some(at(page + 1)));
        }
        let changed = table.changed_directories();
        assert_eq!(changed.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1]);
        let first = decode_directory(changed[0].1.as_ref().unwrap(), Table::DISKS, 0).unwrap();
        assert_eq!(first, [(0, at(1)), (1, at(2))]);
        changed.iter().for_each(|(n, _)| table.set_directory(*n, Some(at(n + 900))));
        assert!(table.changed_directories().is_empty());
        table.set(far, None);
        assert_eq!(table.changed_directories(), [(1, None)]);
        table.set_directory(1, None);
        let left: Vec<(u32, BlobRef)> = table.directories().map(|d| (d.number, d.at)).collect();
        assert_eq!(left, [(0, at(900))]);
    }
}
