//! Paged tables: tables of a checkpoint that are stored in proportion to what changes in them.
//!
//! The records of a table are in pages by ranges of their keys ([`forebay_format::Table`]). Pages are pieces
//! in the map stream; directory pages list them, and the root of the checkpoint lists the directory pages. A
//! checkpoint writes the pages that changed, the directory pages above them, and a root. All other pages stay
//! where an earlier checkpoint wrote them.
//!
//! A [`PagedTable`] holds the locations of the pages of one table, not their contents. A table is changed in
//! a copy: the changed pages are stored ([`crate::commit::Committer::store_pages`], as often as it takes),
//! then the directory pages ([`crate::commit::Committer::store_directories`]), and the root lists
//! [`PagedTable::directories`]. The copy replaces the table when the superblock references that root; if the
//! checkpoint fails, it is discarded, and the new pages are garbage. Pages are read by
//! [`crate::read::StoreReader::read_pieces`].
//!
//! **Objects with pages.** Pages are not relocated: the segment table that would be needed to find them is
//! itself in pages. So an object that holds a page of a checkpoint must not be deleted while a superblock
//! copy references that checkpoint. A reclaim leaves all objects alone that hold a page of its first
//! checkpoint ([`PagedTable::objects`]). When it deletes anything, both superblock copies reference that
//! checkpoint or a later one. The pages of a later one are pages of the first one, or were written after it,
//! and an object to which anything was written after the first checkpoint is not deleted either.
//!
//! **No object is kept long** because of its pages: the first checkpoint of a reclaim also stores the oldest
//! pages again, a bounded number of them. So the objects that hold the oldest pages can be freed, and after
//! some reclaims all pages have moved to other objects. Directory pages need no separate rule: a directory
//! page is stored again together with any page below it, so it is never older than these pages.

mod paged;
mod stored;

pub(crate) use paged::PagedTable;
pub(crate) use stored::{Contents, PageId, StoredTables};
