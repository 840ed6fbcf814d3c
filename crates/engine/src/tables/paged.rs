//! The locations of the pages of one table. See [`super`].

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::{BlobRef, DirectoryRef, PageEncoder, PageLevel, SegmentId, Table};

/// The pages of a table, as a checkpoint references them.
#[derive(Debug, Clone)]
pub(crate) struct PagedTable {
    table: Table,
    /// References of the pages, by page number.
    pages: BTreeMap<u32, BlobRef>,
    /// References of the directory pages, by number of the directory page.
    directories: BTreeMap<u32, BlobRef>,
    /// Directory pages whose list of pages changed since they were stored.
    changed: BTreeSet<u32>,
}

impl PagedTable {
    /// A table without pages.
    pub fn new(table: Table) -> PagedTable {
        PagedTable { table, pages: BTreeMap::new(), directories: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// A table as a root and its directory pages list it.
    pub fn stored(
        table: Table,
        directories: BTreeMap<u32, BlobRef>,
        pages: BTreeMap<u32, BlobRef>,
    ) -> PagedTable {
        PagedTable { table, pages, directories, changed: BTreeSet::new() }
    }

    /// The pages by number.
    pub fn pages(&self) -> &BTreeMap<u32, BlobRef> {
        &self.pages
    }

    /// Records that a page was stored; `None`: that the page has no records any more.
    pub fn set(&mut self, page: u32, at: Option<BlobRef>) {
        match at {
            Some(at) => drop(self.pages.insert(page, at)),
            None => drop(self.pages.remove(&page)),
        }
        self.changed.insert(Table::directory_of(page));
    }

    /// The directory pages that must be stored, encoded; `None` for a directory page that lists no page any
    /// more.
    pub fn changed_directories(&self) -> Vec<(u32, Option<Vec<u8>>)> {
        let encode = |number: &u32| {
            let mut page = PageEncoder::new(self.table, PageLevel::Directory, *number);
            let first = number * Table::DIRECTORY_SPAN;
            for (key, at) in self.pages.range(first..=first + (Table::DIRECTORY_SPAN - 1)) {
                page.add(*key, |out| out.extend_from_slice(&at.encode()));
            }
            (*number, page.finish())
        };
        self.changed.iter().map(encode).collect()
    }

    /// Records that a directory page was stored; `None`: that it lists no page any more.
    pub fn set_directory(&mut self, number: u32, at: Option<BlobRef>) {
        match at {
            Some(at) => drop(self.directories.insert(number, at)),
            None => drop(self.directories.remove(&number)),
        }
        self.changed.remove(&number);
    }

    /// The directory pages, as the root lists them.
    pub fn directories(&self) -> impl Iterator<Item = DirectoryRef> {
        debug_assert!(self.changed.is_empty(), "all directory pages are stored");
        let table = self.table.id;
        self.directories.iter().map(move |(number, at)| DirectoryRef { table, number: *number, at: *at })
    }

    /// The objects in which pages are stored.
    pub fn objects(&self) -> impl Iterator<Item = SegmentId> {
        self.pages.values().chain(self.directories.values()).map(|at| at.segment)
    }
}
