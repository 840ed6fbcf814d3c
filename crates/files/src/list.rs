//! Listing directories.
//!
//! The cookie of an entry is a number that its directory assigns once. A listing that continues after a
//! cookie shows the entries with higher cookies, in their order: an entry that stays is shown exactly once,
//! whatever is added or removed at the same time, and also if the entry of the cookie itself is removed.

use std::ops::Bound::{Excluded, Unbounded};

use crate::layout::BLOCK;
use crate::permission::{READ, check};
use crate::table::FIRST_COOKIE;
use crate::types::{Attributes, Caller, FileId, Listed};
use crate::{Files, Result};

/// A part of a listing.
#[derive(Debug, Clone)]
pub struct Page {
    /// The attributes of the directory.
    pub dir: Attributes,
    /// The entries.
    pub entries: Vec<Listed>,
    /// Whether no entries follow.
    pub is_last: bool,
}

impl Files {
    /// Lists the entries of a directory after a cookie (0: from the beginning), `.` and `..` first: at most
    /// `max` entries.
    ///
    /// # Errors
    /// [`crate::Error::Access`], [`crate::Error::NotDirectory`], [`crate::Error::Stale`].
    pub fn list(&self, dir: FileId, after: u64, max: usize, caller: &Caller) -> Result<Page> {
        let table = self.table.read();
        let (inode, directory) = table.directory(dir)?;
        check(inode, caller, READ)?;
        let own = [(&b"."[..], dir.number), (b"..", inode.parent)];
        let own = own.into_iter().zip(1..).filter(|(_, cookie)| *cookie > after);
        let own = own.map(|((name, number), cookie)| Listed {
            name: name.to_vec(),
            cookie,
            attributes: table.attributes(number),
        });
        let following = directory.cookies.range((Excluded(after.max(FIRST_COOKIE - 1)), Unbounded));
        let named = following.filter_map(|(cookie, slot)| {
            let entry = table.entries.get(*slot as usize)?.as_ref()?;
            let attributes = table.attributes(entry.child);
            Some(Listed { name: entry.name.to_vec(), cookie: *cookie, attributes })
        });
        let mut all = own.chain(named);
        let entries: Vec<Listed> = all.by_ref().take(max).collect();
        let is_last = all.next().is_none();
        Ok(Page { dir: table.attributes(dir.number), entries, is_last })
    }

    /// Checks whether a user has permissions to an object: bits of a mode, 4 to read, 2 to write, 1 to
    /// execute or search. Returns the permissions and the attributes.
    ///
    /// # Errors
    /// [`crate::Error::Stale`].
    pub fn permissions(&self, id: FileId, caller: &Caller) -> Result<(u16, Attributes)> {
        let table = self.table.read();
        Ok((crate::permission::permitted(table.get(id)?, caller), table.attributes(id.number)))
    }

    /// Bytes that the data of a file occupies at most.
    pub fn occupied(attributes: &Attributes) -> u64 {
        attributes.size.next_multiple_of(BLOCK as u64)
    }
}
