//! Setting attributes.

use crate::names::without_set_id;
use crate::permission::{WRITE, check, check_data, check_owner};
use crate::requests::Ticket;
use crate::table::{Change, Inode, Table};
use crate::types::{Caller, Changed, FileId, Kind, SetAttributes, SetTime};
use crate::{Error, FILE_MAX, Files, Result};

/// An inode with the times of `set`.
pub(crate) fn times(mut inode: Inode, set: &SetAttributes, now: u64) -> Inode {
    let of = |time, before| match time {
        SetTime::Keep => before,
        SetTime::Now => now,
        SetTime::To(at) => at,
    };
    inode.accessed = of(set.accessed, inode.accessed);
    inode.modified = of(set.modified, inode.modified);
    inode
}

/// Checks that a user may set attributes.
fn check_set(inode: &Inode, set: &SetAttributes, caller: &Caller) -> Result<()> {
    if set.mode.is_some() {
        check_owner(inode, caller)?;
    }
    if set.uid.is_some_and(|uid| uid != inode.uid) && !caller.is_root() {
        return Err(Error::NotOwner);
    }
    if let Some(gid) = set.gid.filter(|gid| *gid != inode.gid) {
        check_owner(inode, caller)?;
        if !caller.is_root() && !caller.is_in(gid) {
            return Err(Error::NotOwner);
        }
    }
    for time in [set.accessed, set.modified] {
        match time {
            SetTime::Keep => {}
            SetTime::Now if check_owner(inode, caller).is_ok() => {}
            SetTime::Now => check(inode, caller, WRITE)?,
            SetTime::To(_) => check_owner(inode, caller)?,
        }
    }
    if let Some(size) = set.size {
        match inode.kind {
            Some(Kind::File) => check_data(inode, caller, WRITE)?,
            Some(Kind::Directory) => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
        if size > FILE_MAX {
            return Err(Error::TooLarge);
        }
    }
    Ok(())
}

impl Files {
    /// Sets attributes of an object, durably. With `expected`, only if its last change was at this time.
    ///
    /// # Errors
    /// [`Error::NotSync`], [`Error::NotOwner`], [`Error::Access`], [`Error::TooLarge`] and others; nothing
    /// was changed, or only a part of the end of a file was zeroed that was to be removed.
    pub async fn set_attributes(
        &self,
        id: FileId,
        set: &SetAttributes,
        expected: Option<u64>,
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Changed> {
        let check_all = |table: &Table| {
            let inode = table.get(id)?;
            if expected.is_some_and(|expected| inode.changed != expected) {
                return Err(Error::NotSync);
            }
            check_set(inode, set, caller)
        };
        let mut exclusive = None;
        if set.size.is_some() {
            let open = {
                let table = self.table.read();
                check_all(&table)?;
                table.get(id)?.open.clone()
            };
            exclusive = Some(open.lock.clone().write_owned().await);
        }
        if let Some(size) = set.size {
            check_all(&self.table.read())?;
            self.prepare_size(id, size).await?;
        }
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            check_all(table)?;
            let before = table.attributes(id.number);
            if let Some(size) = set.size {
                let inode = table.at(id.number);
                let is_changed = inode.size != size;
                inode.size = size;
                if is_changed || set.modified == SetTime::Keep {
                    table.modify(id.number, now, change);
                }
            }
            let inode = table.at(id.number);
            let mut mode = inode.mode;
            if let Some(new) = set.mode {
                mode = new & 0o7777;
            } else if set.uid.is_some_and(|uid| uid != inode.uid)
                || set.gid.is_some_and(|gid| gid != inode.gid)
            {
                mode = without_set_id(mode, caller);
            }
            let kept = std::mem::take(inode);
            *inode = times(kept, set, now);
            inode.mode = mode;
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            table.touch(id.number, now, change);
            if let Some(ticket) = ticket {
                let slot = table.replies.store(ticket.key(), None, now);
                change.replies.push(slot);
            }
            Ok(Changed { before, after: table.attributes(id.number) })
        };
        let changed = self.change(make).await?;
        drop(exclusive);
        match set.size {
            Some(_) => self.flush_file(id).await?,
            None => self.flush().await?,
        }
        Ok(changed)
    }
}
