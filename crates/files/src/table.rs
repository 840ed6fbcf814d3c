//! The namespace in memory: all inodes, the directories, and the free slots. Data of files is not here.
//!
//! Operations change the table first and note what they changed in a [`Change`]; [`crate::journal`] encodes
//! the noted objects as they are then. An operation validates everything before its first change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::layout::{Block, FILES_MAX, NAMES_MAX, Superblock};
use crate::open_file::OpenFile;
use crate::replies::Replies;
use crate::types::{Attributes, FileId, Kind};
use crate::{Error, Result};

/// The inode of the root directory.
pub(crate) const ROOT: u32 = 1;
/// The first cookie of an entry; lower ones are the beginning, `.` and `..`.
pub(crate) const FIRST_COOKIE: u64 = 3;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub dir: u32,
    pub child: u32,
    pub cookie: u64,
    pub name: Arc<[u8]>,
}

/// The names of a directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The slots of the entries, by name.
    pub names: HashMap<Arc<[u8]>, u32>,
    /// The slots of the entries, by cookie. Cookies increase and are never used again, so a position in a
    /// listing stays valid while other entries come and go.
    pub cookies: BTreeMap<u64, u32>,
}

/// A file, a directory, a link, or a free slot.
#[derive(Debug, Default)]
pub(crate) struct Inode {
    /// `None` if the slot is free.
    pub kind: Option<Kind>,
    pub generation: u32,
    pub mode: u16,
    /// Number of names; 0 of a file that is being removed.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// The disk with the data; 0 if the data is in the namespace.
    pub disk: u32,
    pub size: u64,
    pub accessed: u64,
    pub modified: u64,
    pub changed: u64,
    /// The verifier of the exclusive create that made the file.
    pub verifier: Option<[u8; 8]>,
    /// Of a directory: the directory in which its name is.
    pub parent: u32,
    /// Of a directory: the cookie of its next entry.
    pub next_cookie: u64,
    pub dir: Option<Box<Directory>>,
    /// State of the requests on a file.
    pub open: Arc<OpenFile>,
}

/// What an operation has changed.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub inodes: Vec<u32>,
    pub entries: Vec<u32>,
    pub replies: Vec<usize>,
    pub superblock: bool,
    /// The data of a small file or the target of a link, which precedes the change.
    pub inline: Option<(u32, Box<Block>)>,
    /// Files whose disks have to be deleted after the change.
    pub orphans: Vec<u32>,
}

impl Change {
    pub fn inode(&mut self, number: u32) {
        if !self.inodes.contains(&number) {
            self.inodes.push(number);
        }
    }

    pub fn entry(&mut self, slot: u32) {
        if !self.entries.contains(&slot) {
            self.entries.push(slot);
        }
    }
}

/// The namespace.
#[derive(Debug)]
pub(crate) struct Table {
    pub identity: u64,
    /// Slot 0 is not used.
    pub inodes: Vec<Inode>,
    pub free_inodes: Vec<u32>,
    pub entries: Vec<Option<Arc<Entry>>>,
    pub free_entries: Vec<u32>,
    pub replies: Replies,
    /// Number of the last change in the journal.
    pub sequence: u64,
    /// A change of the table did not reach the disk.
    pub is_broken: bool,
    /// Number of objects.
    pub used: usize,
}

impl Table {
    /// A namespace with an empty root directory.
    pub fn new(identity: u64, now: u64) -> (Table, Change) {
        let mut table = Table {
            identity,
            inodes: vec![Inode::default()],
            free_inodes: Vec::new(),
            entries: Vec::new(),
            free_entries: Vec::new(),
            replies: Replies::default(),
            sequence: 0,
            is_broken: false,
            used: 1,
        };
        table.inodes.push(Inode {
            kind: Some(Kind::Directory),
            generation: 1,
            mode: 0o755,
            links: 2,
            accessed: now,
            modified: now,
            changed: now,
            parent: ROOT,
            next_cookie: FIRST_COOKIE,
            dir: Some(Box::default()),
            ..Inode::default()
        });
        let change = Change { inodes: vec![ROOT], superblock: true, ..Change::default() };
        (table, change)
    }

    pub fn superblock(&self) -> Superblock {
        Superblock {
            identity: self.identity,
            inodes: self.inodes.len() as u32,
            entries: self.entries.len() as u32,
        }
    }

    /// The inode of an object that has a name.
    pub fn get(&self, id: FileId) -> Result<&Inode> {
        let inode = self.inodes.get(id.number as usize).ok_or(Error::Stale)?;
        match inode.kind.is_some() && inode.generation == id.generation && inode.links > 0 {
            true => Ok(inode),
            false => Err(Error::Stale),
        }
    }

    /// As [`Table::get`], to change the inode.
    pub fn get_mut(&mut self, id: FileId) -> Result<&mut Inode> {
        self.get(id)?;
        Ok(self.at(id.number))
    }

    /// The inode in a slot that is known to exist.
    pub fn at(&mut self, number: u32) -> &mut Inode {
        &mut self.inodes[number as usize]
    }

    pub fn id(&self, number: u32) -> FileId {
        FileId { number, generation: self.inodes[number as usize].generation }
    }

    /// A directory with its inode.
    pub fn directory(&self, id: FileId) -> Result<(&Inode, &Directory)> {
        let inode = self.get(id)?;
        let dir = inode.dir.as_deref().ok_or(Error::NotDirectory)?;
        Ok((inode, dir))
    }

    /// The slot and the entry of a name.
    pub fn find(&self, dir: FileId, name: &[u8]) -> Result<Option<(u32, Arc<Entry>)>> {
        let (_, directory) = self.directory(dir)?;
        let slot = directory.names.get(name).copied();
        Ok(slot.and_then(|slot| Some((slot, self.entries.get(slot as usize)?.clone()?))))
    }

    pub fn attributes(&self, number: u32) -> Attributes {
        let inode = &self.inodes[number as usize];
        let entries = inode.dir.as_ref().map(|dir| dir.names.len() as u64);
        Attributes {
            id: FileId { number, generation: inode.generation },
            kind: inode.kind.unwrap_or(Kind::File),
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size: entries.map_or(inode.size, |entries| 4096 + entries.saturating_sub(64) * 64),
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        }
    }

    /// Checks that the table has room for `files` objects and `names` names more.
    pub fn check_room(&self, files: usize, names: usize) -> Result<()> {
        let has_files = self.free_inodes.len() + (FILES_MAX - self.inodes.len()) >= files;
        let has_names = self.free_entries.len() + (NAMES_MAX - self.entries.len()) >= names;
        if has_files && has_names { Ok(()) } else { Err(Error::TooManyFiles) }
    }

    /// Adds an object, for which there is room.
    pub fn add(&mut self, inode: Inode, change: &mut Change) -> u32 {
        let number = match self.free_inodes.pop() {
            Some(number) => number,
            None => {
                self.inodes.push(Inode::default());
                change.superblock = true;
                self.inodes.len() as u32 - 1
            }
        };
        let slot = self.at(number);
        let generation = slot.generation.wrapping_add(1);
        *slot = Inode { generation, ..inode };
        self.used += 1;
        change.inode(number);
        number
    }

    /// Frees the slot of an object.
    pub fn free(&mut self, number: u32, change: &mut Change) {
        let slot = self.at(number);
        *slot = Inode { generation: slot.generation, ..Inode::default() };
        self.free_inodes.push(number);
        self.used -= 1;
        change.inode(number);
    }

    /// Adds a name, for which there is room.
    pub fn enter(&mut self, dir: u32, name: &[u8], child: u32, change: &mut Change) {
        let slot = match self.free_entries.pop() {
            Some(slot) => slot,
            None => {
                self.entries.push(None);
                change.superblock = true;
                self.entries.len() as u32 - 1
            }
        };
        let parent = self.at(dir);
        let cookie = parent.next_cookie;
        parent.next_cookie += 1;
        let entry = Entry { dir, child, cookie, name: Arc::from(name) };
        self.put_entry(slot, entry);
        change.inode(dir);
        change.entry(slot);
    }

    /// Puts an entry into a slot and into its directory. Returns false if the directory does not exist, or
    /// has the name or the cookie.
    pub fn put_entry(&mut self, slot: u32, entry: Entry) -> bool {
        let Some(dir) = self.inodes.get_mut(entry.dir as usize).and_then(|inode| inode.dir.as_mut()) else {
            return false;
        };
        let is_new = dir.names.insert(entry.name.clone(), slot).is_none()
            && dir.cookies.insert(entry.cookie, slot).is_none();
        self.entries[slot as usize] = Some(Arc::new(entry));
        is_new
    }

    /// Removes a name.
    pub fn leave(&mut self, slot: u32, entry: &Entry, change: &mut Change) {
        if let Some(dir) = self.at(entry.dir).dir.as_mut() {
            dir.names.remove(&entry.name);
            dir.cookies.remove(&entry.cookie);
        }
        self.entries[slot as usize] = None;
        self.free_entries.push(slot);
        change.inode(entry.dir);
        change.entry(slot);
    }

    /// Records the time of a change of the contents of a directory or a file.
    pub fn modify(&mut self, number: u32, now: u64, change: &mut Change) {
        let inode = self.at(number);
        inode.changed = now.max(inode.changed + 1);
        inode.modified = inode.changed;
        change.inode(number);
    }

    /// Records the time of a change of attributes.
    pub fn touch(&mut self, number: u32, now: u64, change: &mut Change) {
        let inode = self.at(number);
        inode.changed = now.max(inode.changed + 1);
        change.inode(number);
    }

    /// Removes one name of a file, and the file with its last name.
    pub fn unlink(&mut self, number: u32, now: u64, change: &mut Change) {
        let inode = self.at(number);
        inode.links = inode.links.saturating_sub(1);
        if inode.links > 0 {
            return self.touch(number, now, change);
        }
        if inode.disk == 0 {
            return self.free(number, change);
        }
        change.orphans.push(number);
        change.inode(number);
    }
}
