//! The data of files: reading, writing, changing the size.
//!
//! The order of the steps is argued at the head of the crate.

use std::sync::Arc;

use forebay_engine::{DiskHandle, DiskId, Fast};
use futures_util::future::try_join;
use tokio::sync::OwnedRwLockReadGuard;

use crate::layout::{BLOCK, Block, INLINE, INLINE_MAX};
use crate::permission::{READ, SET_ID, WRITE, check_data};
use crate::table::{Change, Inode, Table};
use crate::types::{Attributes, Caller, Changed, FileId, Kind};
use crate::{DATA, Error, FILE_MAX, Files, Result};

/// A file that is being read. While it exists, the file is neither shortened nor removed.
pub struct Reading {
    disk: Arc<DiskHandle>,
    /// Offset of the file's data on the disk.
    base: u64,
    /// The attributes of the file.
    pub attributes: Attributes,
    _shared: OwnedRwLockReadGuard<()>,
}

impl Reading {
    /// Number of bytes that a read of `count` bytes from `offset` on returns, and whether they are the last
    /// bytes of the file.
    pub fn extent(&self, offset: u64, count: u32) -> (usize, bool) {
        let left = self.attributes.size.saturating_sub(offset);
        let len = left.min(count.into());
        (len as usize, len == left)
    }

    /// The disk that has the data, and the offset on it.
    pub fn place(&self, offset: u64) -> (&Arc<DiskHandle>, u64) {
        (&self.disk, self.base + offset)
    }
}

/// The result of a write.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The attributes of the file.
    pub file: Changed,
}

/// Where the data of a file is.
enum Place {
    /// In the block of the inode.
    Inline,
    /// On a disk.
    Disk(Arc<DiskHandle>),
}

/// The inode of a regular file.
fn regular(table: &Table, id: FileId) -> Result<&Inode> {
    let inode = table.get(id)?;
    match inode.kind {
        Some(Kind::File) => Ok(inode),
        Some(Kind::Directory) => Err(Error::IsDirectory),
        _ => Err(Error::Invalid),
    }
}

impl Files {
    /// Opens the disk of a file, if the file has one.
    fn place(&self, table: &Table, number: u32) -> Result<Place> {
        let inode = &table.inodes[number as usize];
        if inode.disk == 0 {
            return Ok(Place::Inline);
        }
        let mut open = inode.open.disk.lock();
        let disk = match &*open {
            Some(disk) => disk.clone(),
            None => open.insert(self.pool.open_internal(DiskId(inode.disk))?).clone(),
        };
        Ok(Place::Disk(disk))
    }

    /// Begins a read of a file without a wait; `None` if the file is being shortened or removed.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::IsDirectory`], [`Error::Stale`].
    pub fn try_read(&self, id: FileId, caller: &Caller) -> Result<Option<Reading>> {
        let table = self.table.read();
        let inode = regular(&table, id)?;
        check_data(inode, caller, READ)?;
        let Ok(shared) = inode.open.lock.clone().try_read_owned() else { return Ok(None) };
        let (disk, base) = match self.place(&table, id.number)? {
            Place::Inline => (self.disk.clone(), inline_at(id.number)),
            Place::Disk(disk) => (disk, 0),
        };
        Ok(Some(Reading { disk, base, attributes: table.attributes(id.number), _shared: shared }))
    }

    /// Begins a read of a file.
    ///
    /// # Errors
    /// As [`Files::try_read`].
    pub async fn read(&self, id: FileId, caller: &Caller) -> Result<Reading> {
        loop {
            if let Some(reading) = self.try_read(id, caller)? {
                return Ok(reading);
            }
            let open = regular(&self.table.read(), id)?.open.clone();
            drop(open.lock.read().await);
        }
    }

    /// The target of a symbolic link, and its attributes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the object is no link; the errors of a read.
    pub async fn target(&self, id: FileId) -> Result<(Vec<u8>, Attributes)> {
        let attributes = self.attributes(id)?;
        if attributes.kind != Kind::Symlink {
            return Err(Error::Invalid);
        }
        let mut target = vec![0; attributes.size as usize];
        self.disk.read(inline_at(id.number), &mut target).await?;
        // The block is another object's if the link was removed during the read.
        self.attributes(id)?;
        Ok((target, attributes))
    }

    /// Writes data to a file. On return it is visible, and with `stable` it is durable.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::TooLarge`], [`Error::IsDirectory`], [`Error::Stale`], and those of a
    /// write: then a part of the data may be written.
    pub async fn write(
        &self,
        id: FileId,
        offset: u64,
        data: &[u8],
        stable: bool,
        caller: &Caller,
    ) -> Result<Written> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX);
        let end = end.ok_or(Error::TooLarge)?;
        loop {
            let (open, is_inline) = {
                let table = self.table.read();
                let inode = regular(&table, id)?;
                check_data(inode, caller, WRITE)?;
                (inode.open.clone(), inode.disk == 0)
            };
            if is_inline {
                let _exclusive = open.lock.clone().write_owned().await;
                let place = self.locate(id)?;
                if let Place::Disk(_) = place {
                    continue;
                }
                if end <= INLINE_MAX {
                    let file = self.write_inline(id, offset, data, caller).await?;
                    if stable {
                        self.flush().await?;
                    }
                    return Ok(Written { file });
                }
                self.move_to_disk(id).await?;
                continue;
            }
            let _shared = open.lock.clone().read_owned().await;
            let Place::Disk(disk) = self.locate(id)? else { continue };
            let make = |table: &mut Table, change: &mut Change, now: u64| {
                let before = {
                    check_data(regular(table, id)?, caller, WRITE)?;
                    table.attributes(id.number)
                };
                if !data.is_empty() {
                    written(table, id.number, end, caller);
                    table.modify(id.number, now, change);
                }
                Ok(Changed { before, after: table.attributes(id.number) })
            };
            let file = self.change(make).await?;
            // The table's change precedes the data in the order of all changes, so one flush of the data
            // makes both durable.
            if stable || disk.try_write(offset, data)? == Fast::Wait {
                disk.write(offset, data, stable).await?;
            }
            return Ok(Written { file });
        }
    }

    fn locate(&self, id: FileId) -> Result<Place> {
        let table = self.table.read();
        regular(&table, id)?;
        self.place(&table, id.number)
    }

    /// The valid bytes of a small file, and zeroes. The caller holds the file's lock exclusively.
    async fn inline(&self, id: FileId) -> Result<Box<Block>> {
        let size = regular(&self.table.read(), id)?.size.min(INLINE_MAX) as usize;
        let mut block: Box<Block> = Box::new([0; BLOCK]);
        if size > 0 {
            self.disk.read(inline_at(id.number), &mut block[..size]).await?;
        }
        Ok(block)
    }

    /// Writes to a small file, whose lock the caller holds exclusively.
    async fn write_inline(&self, id: FileId, offset: u64, data: &[u8], caller: &Caller) -> Result<Changed> {
        let mut block = self.inline(id).await?;
        block[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        let make = |table: &mut Table, change: &mut Change, now: u64| {
            check_data(regular(table, id)?, caller, WRITE)?;
            let before = table.attributes(id.number);
            if !data.is_empty() {
                written(table, id.number, offset + data.len() as u64, caller);
                table.modify(id.number, now, change);
                change.inline = Some((id.number, block));
            }
            Ok(Changed { before, after: table.attributes(id.number) })
        };
        self.change(make).await
    }

    /// Moves the data of a small file to a disk. The caller holds the file's lock exclusively.
    async fn move_to_disk(&self, id: FileId) -> Result<()> {
        let block = self.inline(id).await?;
        let size = regular(&self.table.read(), id)?.size;
        let disk = self.pool.create_internal(DATA, FILE_MAX, None).await?;
        let made = async {
            if size > 0 {
                disk.write(0, &block[..], false).await?;
            }
            let make = |table: &mut Table, change: &mut Change, _: u64| {
                let inode = table.get_mut(id)?;
                inode.disk = disk.id().0;
                *inode.open.disk.lock() = Some(disk.clone());
                change.inode(id.number);
                Ok(())
            };
            self.change(make).await
        };
        let made = made.await;
        if made.is_err() {
            // The file was removed, or the pool has stopped. Otherwise the next opening deletes the disk.
            let _ = self.pool.remove_internal(&[disk.id()]).await;
        }
        made
    }

    /// Makes the data of a file agree with a new size that the inode will have. The caller holds the file's
    /// lock exclusively.
    pub(crate) async fn prepare_size(&self, id: FileId, size: u64) -> Result<()> {
        let before = regular(&self.table.read(), id)?.size;
        match self.locate(id)? {
            Place::Disk(disk) => {
                if size < before {
                    disk.write_zeroes(size, before - size, false, false).await?;
                }
            }
            Place::Inline if size > INLINE_MAX => self.move_to_disk(id).await?,
            Place::Inline if size > before => {
                let block = self.inline(id).await?;
                let make = |table: &mut Table, change: &mut Change, _: u64| {
                    regular(table, id)?;
                    change.inline = Some((id.number, block));
                    Ok(())
                };
                self.change(make).await?;
            }
            Place::Inline => {}
        }
        Ok(())
    }

    /// Makes all data and attributes of a file durable.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::IsDirectory`]; the errors of a flush.
    pub async fn commit(&self, id: FileId) -> Result<Attributes> {
        regular(&self.table.read(), id)?;
        self.flush_file(id).await?;
        self.attributes(id)
    }

    pub(crate) async fn flush_file(&self, id: FileId) -> Result<()> {
        let open = self.table.read().get(id)?.open.clone();
        let disk = open.disk.lock().clone();
        match disk {
            // One commit makes both durable.
            Some(disk) => try_join(disk.flush(), self.disk.flush()).await.map(|_| ()).map_err(Error::from),
            None => self.flush().await,
        }
    }
}

/// Changes the attributes of a file whose data is written up to `end`.
fn written(table: &mut Table, number: u32, end: u64, caller: &Caller) {
    let inode = table.at(number);
    inode.size = inode.size.max(end);
    if !caller.is_root() {
        inode.mode &= !SET_ID;
    }
}

/// Offset of the data of a small file on the disk of the namespace.
fn inline_at(number: u32) -> u64 {
    (INLINE + u64::from(number)) * BLOCK as u64
}
