//! Operations on names: look up, create, link, rename, remove.

use std::sync::Arc;

use crate::layout::{BLOCK, Block, LINKS_MAX, NAME_MAX};
use crate::permission::{SEARCH, SET_GROUP, SET_ID, WRITE, check, check_removal};
use crate::requests::Ticket;
use crate::setattr::times;
use crate::table::{Change, Entry, FIRST_COOKIE, Inode, Table};
use crate::types::{Attributes, Caller, Changed, Create, FileId, Kind, SetAttributes};
use crate::{Error, Files, Result, TARGET_MAX};

/// An object that was created, and the change of its directory.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    /// The new object.
    pub object: Attributes,
    /// The directory.
    pub dir: Changed,
}

/// Checks a name that is to be created.
fn check_new_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::Invalid),
        b"." | b".." => Err(Error::Exists),
        name if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        name if name.len() > NAME_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

/// Checks a name that is to be removed or renamed.
fn check_old_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid),
        name if name.len() > NAME_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

fn noted(
    table: &mut Table,
    ticket: Option<&Ticket<'_>>,
    object: Option<FileId>,
    now: u64,
    change: &mut Change,
) {
    if let Some(ticket) = ticket {
        let slot = table.replies.store(ticket.key(), object, now);
        change.replies.push(slot);
    }
}

/// The inode of a new object in a directory.
fn new_inode(dir: &Inode, kind: Kind, caller: &Caller, set: &SetAttributes, mode: u16, now: u64) -> Inode {
    let inherits = dir.mode & SET_GROUP != 0;
    let gid = if inherits { dir.gid } else { caller.gid };
    let inode = Inode {
        kind: Some(kind),
        mode: set.mode.unwrap_or(mode) & 0o7777,
        links: 1,
        uid: caller.uid,
        gid,
        accessed: now,
        modified: now,
        changed: now,
        ..Inode::default()
    };
    let mut inode = times(inode, set, now);
    if caller.is_root() {
        inode.uid = set.uid.unwrap_or(inode.uid);
    }
    if caller.is_root() || set.gid.is_some_and(|gid| caller.is_in(gid)) {
        inode.gid = set.gid.unwrap_or(inode.gid);
    }
    if !caller.is_root() && !caller.is_in(inode.gid) && kind == Kind::File {
        inode.mode &= !SET_GROUP;
    }
    inode
}

impl Table {
    /// Checks that a user may add a name to a directory.
    fn check_addition(&self, dir: FileId, name: &[u8], caller: &Caller) -> Result<()> {
        let (inode, _) = self.directory(dir)?;
        check_new_name(name)?;
        check(inode, caller, WRITE | SEARCH)
    }

    /// Checks that a user may add a name to a directory, and that the name does not exist.
    fn check_vacant(&self, dir: FileId, name: &[u8], caller: &Caller) -> Result<()> {
        self.check_addition(dir, name, caller)?;
        if self.find(dir, name)?.is_some() { Err(Error::Exists) } else { Ok(()) }
    }

    /// Finds a name that a user may remove from a directory.
    fn find_removable(&self, dir: FileId, name: &[u8], caller: &Caller) -> Result<(u32, Arc<Entry>)> {
        let (parent, _) = self.directory(dir)?;
        check_old_name(name)?;
        check(parent, caller, SEARCH)?;
        let (slot, entry) = self.find(dir, name)?.ok_or(Error::NoEntry)?;
        check_removal(parent, &self.inodes[entry.child as usize], caller)?;
        Ok((slot, entry))
    }

    /// Adds a new object under a name that does not exist.
    fn create(
        &mut self,
        dir: FileId,
        name: &[u8],
        inode: Inode,
        now: u64,
        change: &mut Change,
    ) -> Result<Created> {
        self.check_room(1, 1)?;
        let before = self.attributes(dir.number);
        let number = self.add(inode, change);
        self.enter(dir.number, name, number, change);
        self.modify(dir.number, now, change);
        let after = self.attributes(dir.number);
        Ok(Created { object: self.attributes(number), dir: Changed { before, after } })
    }

    /// Whether the directory `inner` is `outer` or below it.
    fn is_within(&self, mut inner: u32, outer: u32) -> bool {
        // Each step goes up; the limit ends the loop in a damaged table.
        for _ in 0..self.inodes.len() {
            let parent = self.inodes[inner as usize].parent;
            if inner == outer {
                return true;
            } else if parent == inner {
                return false;
            }
            inner = parent;
        }
        true
    }
}

impl Files {
    /// Looks a name up in a directory.
    ///
    /// # Errors
    /// [`Error::NoEntry`], [`Error::Access`], [`Error::NotDirectory`], [`Error::NameTooLong`],
    /// [`Error::Stale`].
    pub fn look_up(&self, dir: FileId, name: &[u8], caller: &Caller) -> Result<Attributes> {
        let table = self.table.read();
        let (inode, _) = table.directory(dir)?;
        check(inode, caller, SEARCH)?;
        match name {
            b"" | b"." => Ok(table.attributes(dir.number)),
            b".." => Ok(table.attributes(inode.parent)),
            name if name.len() > NAME_MAX => Err(Error::NameTooLong),
            name => match table.find(dir, name)? {
                Some((_, entry)) => Ok(table.attributes(entry.child)),
                None => Err(Error::NoEntry),
            },
        }
    }

    /// Creates a regular file, durably.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Access`], [`Error::TooManyFiles`] and others; nothing was changed.
    pub async fn create(
        &self,
        dir: FileId,
        name: &[u8],
        how: Create,
        set: &SetAttributes,
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Created> {
        let created = self.change(|table, change, now| {
            let (inode, _) = table.directory(dir)?;
            check_new_name(name)?;
            check(inode, caller, SEARCH)?;
            if let Some((_, entry)) = table.find(dir, name)? {
                let existing = table.at(entry.child);
                let is_same = match how {
                    Create::Unchecked if existing.kind == Some(Kind::File) => true,
                    Create::Exclusive(verifier) => existing.verifier == Some(verifier),
                    _ => false,
                };
                if !is_same {
                    return Err(Error::Exists);
                }
                let unchanged = table.attributes(dir.number);
                let object = table.attributes(entry.child);
                return Ok((Created { object, dir: Changed { before: unchanged, after: unchanged } }, true));
            }
            table.check_addition(dir, name, caller)?;
            if set.size.is_some_and(|size| size > crate::FILE_MAX) {
                return Err(Error::TooLarge);
            }
            let parent = table.get(dir)?;
            let mut inode = match how {
                // The client sets the attributes afterwards (RFC 1813, section 3.3.8).
                Create::Exclusive(_) => {
                    new_inode(parent, Kind::File, caller, &SetAttributes::default(), 0, now)
                }
                _ => new_inode(parent, Kind::File, caller, set, 0o600, now),
            };
            if let Create::Exclusive(verifier) = how {
                inode.verifier = Some(verifier);
            }
            let created = table.create(dir, name, inode, now, change)?;
            noted(table, ticket, Some(created.object.id), now, change);
            Ok((created, false))
        });
        let (mut created, existed) = created.await?;
        let size = set.size.filter(|size| {
            !matches!(how, Create::Exclusive(_)) && (existed || *size > 0) && *size != created.object.size
        });
        if let Some(size) = size {
            let only_size = SetAttributes { size: Some(size), ..SetAttributes::default() };
            let changed = self.set_attributes(created.object.id, &only_size, None, (caller, None)).await?;
            created.object = changed.after;
        }
        self.flush().await?;
        Ok(created)
    }

    /// Creates a directory, durably.
    ///
    /// # Errors
    /// As [`Files::create`].
    pub async fn make_directory(
        &self,
        dir: FileId,
        name: &[u8],
        set: &SetAttributes,
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Created> {
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            table.check_vacant(dir, name, caller)?;
            let parent = table.get(dir)?;
            if parent.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            let mut inode = new_inode(parent, Kind::Directory, caller, set, 0o700, now);
            inode.mode |= parent.mode & SET_GROUP;
            inode.links = 2;
            inode.parent = dir.number;
            inode.next_cookie = FIRST_COOKIE;
            inode.dir = Some(Box::default());
            let mut created = table.create(dir, name, inode, now, change)?;
            table.at(dir.number).links += 1;
            created.dir.after = table.attributes(dir.number);
            noted(table, ticket, Some(created.object.id), now, change);
            Ok(created)
        };
        self.change_durably(make).await
    }

    /// Creates a symbolic link, durably.
    ///
    /// # Errors
    /// As [`Files::create`]; [`Error::NameTooLong`] for the target.
    pub async fn make_link(
        &self,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttributes,
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Created> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid);
        } else if target.len() > TARGET_MAX {
            return Err(Error::NameTooLong);
        }
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            table.check_vacant(dir, name, caller)?;
            let mut inode = new_inode(table.get(dir)?, Kind::Symlink, caller, set, 0o777, now);
            inode.size = target.len() as u64;
            let created = table.create(dir, name, inode, now, change)?;
            let mut block: Box<Block> = Box::new([0; BLOCK]);
            block[..target.len()].copy_from_slice(target);
            change.inline = Some((created.object.id.number, block));
            noted(table, ticket, Some(created.object.id), now, change);
            Ok(created)
        };
        self.change_durably(make).await
    }

    /// Adds a name to a file, durably. Returns the attributes of the file.
    ///
    /// # Errors
    /// As [`Files::create`]; [`Error::IsDirectory`]; [`Error::TooManyLinks`].
    pub async fn link(
        &self,
        file: FileId,
        dir: FileId,
        name: &[u8],
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Created> {
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            let inode = table.get(file)?;
            if inode.kind == Some(Kind::Directory) {
                return Err(Error::IsDirectory);
            } else if inode.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            table.check_vacant(dir, name, caller)?;
            table.check_room(0, 1)?;
            let before = table.attributes(dir.number);
            table.at(file.number).links += 1;
            table.touch(file.number, now, change);
            table.enter(dir.number, name, file.number, change);
            table.modify(dir.number, now, change);
            noted(table, ticket, None, now, change);
            let after = table.attributes(dir.number);
            Ok(Created { object: table.attributes(file.number), dir: Changed { before, after } })
        };
        self.change_durably(make).await
    }

    /// Removes the name of a file or of a link, durably, and the file with its last name.
    ///
    /// # Errors
    /// [`Error::NoEntry`], [`Error::IsDirectory`], [`Error::Access`] and others; nothing was changed.
    pub async fn remove(
        &self,
        dir: FileId,
        name: &[u8],
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Changed> {
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            let (slot, entry) = table.find_removable(dir, name, caller)?;
            if table.inodes[entry.child as usize].kind == Some(Kind::Directory) {
                return Err(Error::IsDirectory);
            }
            let before = table.attributes(dir.number);
            table.leave(slot, &entry, change);
            table.unlink(entry.child, now, change);
            table.modify(dir.number, now, change);
            noted(table, ticket, None, now, change);
            Ok(Changed { before, after: table.attributes(dir.number) })
        };
        self.change_durably(make).await
    }

    /// Removes an empty directory, durably.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotDirectory`], and the errors of [`Files::remove`].
    pub async fn remove_directory(
        &self,
        dir: FileId,
        name: &[u8],
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<Changed> {
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            table.directory(dir)?;
            if name == b".." {
                return Err(Error::Exists);
            }
            let (slot, entry) = table.find_removable(dir, name, caller)?;
            let child = &table.inodes[entry.child as usize];
            let entries = child.dir.as_deref().ok_or(Error::NotDirectory)?;
            if !entries.names.is_empty() {
                return Err(Error::NotEmpty);
            }
            let before = table.attributes(dir.number);
            table.leave(slot, &entry, change);
            table.free(entry.child, change);
            table.at(dir.number).links -= 1;
            table.modify(dir.number, now, change);
            noted(table, ticket, None, now, change);
            Ok(Changed { before, after: table.attributes(dir.number) })
        };
        self.change_durably(make).await
    }

    /// Gives an object another name, durably and atomically. An object that has the new name is removed.
    /// Returns the changes of both directories.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Exists`] if only one of both objects is a directory;
    /// [`Error::NotEmpty`]; [`Error::Invalid`] if a directory would be within itself; and others. Nothing was
    /// changed.
    pub async fn rename(
        &self,
        (from, old): (FileId, &[u8]),
        (to, new): (FileId, &[u8]),
        (caller, ticket): (&Caller, Option<&Ticket<'_>>),
    ) -> Result<(Changed, Changed)> {
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            let (from_dir, _) = table.directory(from)?;
            let (to_dir, _) = table.directory(to)?;
            check_old_name(old)?;
            check_old_name(new)?;
            check_new_name(new)?;
            check(from_dir, caller, SEARCH)?;
            check(to_dir, caller, WRITE | SEARCH)?;
            let (slot, entry) = table.find(from, old)?.ok_or(Error::NoEntry)?;
            let moved = &table.inodes[entry.child as usize];
            check_removal(from_dir, moved, caller)?;
            let moves_directory = moved.kind == Some(Kind::Directory);
            let (from_before, to_before) = (table.attributes(from.number), table.attributes(to.number));
            let replaced = table.find(to, new)?;
            if let Some((_, there)) = &replaced {
                let target = &table.inodes[there.child as usize];
                if there.child == entry.child {
                    // Two names of the same file: nothing is done (RFC 1813, section 3.3.14).
                    noted(table, ticket, None, now, change);
                    return Ok((
                        Changed { before: from_before, after: from_before },
                        Changed { before: to_before, after: to_before },
                    ));
                }
                check_removal(to_dir, target, caller)?;
                match (moves_directory, target.dir.as_deref()) {
                    (true, Some(entries)) if !entries.names.is_empty() => return Err(Error::NotEmpty),
                    (true, Some(_)) | (false, None) => {}
                    _ => return Err(Error::Exists),
                }
            }
            if moves_directory && table.is_within(to.number, entry.child) {
                return Err(Error::Invalid);
            }
            let gains_directory = moves_directory && replaced.is_none() && from != to;
            if gains_directory && to_dir.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            // Nothing fails from here on: the slot of the old name is free for the new one.
            table.leave(slot, &entry, change);
            if let Some((slot, there)) = replaced {
                table.leave(slot, &there, change);
                if moves_directory {
                    table.free(there.child, change);
                    table.at(to.number).links -= 1;
                } else {
                    table.unlink(there.child, now, change);
                }
            }
            table.enter(to.number, new, entry.child, change);
            if moves_directory {
                table.at(entry.child).parent = to.number;
                table.at(from.number).links -= 1;
                table.at(to.number).links += 1;
            }
            table.touch(entry.child, now, change);
            table.modify(from.number, now, change);
            if from != to {
                table.modify(to.number, now, change);
            }
            noted(table, ticket, None, now, change);
            Ok((
                Changed { before: from_before, after: table.attributes(from.number) },
                Changed { before: to_before, after: table.attributes(to.number) },
            ))
        };
        self.change_durably(make).await
    }
}

/// Whether attributes take the bits away that change the user or the group of a program.
pub(crate) fn without_set_id(mode: u16, caller: &Caller) -> u16 {
    if caller.is_root() { mode } else { mode & !SET_ID }
}
