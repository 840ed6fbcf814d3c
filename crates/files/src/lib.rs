//! A namespace of directories, files and symbolic links above the disks of a pool. It has the semantics that
//! NFS needs, and is independent of protocols.
//!
//! **Data.** Each file of more than 4 KiB is an internal disk of the pool (`engine/pool/internal.rs`), as
//! large as a file can be, of which only the written blocks exist. So files are deduplicated, compressed and
//! cloned like volumes, and a write that extends a file changes no disk's size. The data of a smaller file,
//! and the target of a symbolic link, is a block of the namespace's disk.
//!
//! **The table.** Another internal disk has the namespace ([`layout`]): inodes, entries of directories,
//! replies. All of it apart from small files is in memory ([`table`]), so a look-up needs no store. A change
//! is made in memory under a lock, and written to the disk's buffers under the same lock, behind a record of
//! a journal ([`journal`]). So the table on the disk is always a prefix of the changes.
//!
//! **Namespace and data agree.** After a crash all internal disks are at one moment of the order in which
//! they were changed, without a flush in between. The operations need only the right order:
//!
//! | operation | order | after a crash in between |
//! |---|---|---|
//! | write | size and times, then the data | the file is longer, and the missing data is zero |
//! | truncation | zeroes from the new end on, then the size | the file has its size, and ends with zeroes |
//! | a small file grows | create the disk durably, copy the data, then the inode refers to the disk | the disk belongs to no inode; the next opening deletes it |
//! | removal | the name and the inode's last link, durably, then delete the disk, then free the inode | the next opening continues |
//!
//! So the *invariant* of a file with a disk: the disk is zero from the file's size on. A later extension
//! shows zeroes, never data of before. Of a small file only the bytes within its size are valid, whatever the
//! block has beyond.
//!
//! **Durability.** Changes of names and attributes are durable when they are answered. Data is durable when
//! [`Files::commit`] is answered, or when the write was stable. [`Files::verifier`] changes when answered
//! data may be lost: it is the identity of the memory that holds the write buffers, so it stays the same if a
//! killed server finds the buffers again.
//!
//! **Locks.** The table's lock is held for a look-up or a change in memory, never across an await. Each file
//! has an asynchronous lock for its data ([`open_file`]). Reads of data hold neither the table nor each other
//! up.

mod clone;
mod data;
mod error;
mod journal;
mod layout;
mod list;
mod names;
mod open;
mod open_file;
mod permission;
mod replies;
mod requests;
mod setattr;
mod table;
mod types;

use std::sync::Arc;

use forebay_engine::{DiskHandle, Pool};
use parking_lot::RwLock;
use tokio::sync::mpsc;

pub use data::{Reading, Written};
pub use error::{Error, Result};
pub use layout::{FILE_MAX, FILES_MAX, LINKS_MAX, NAME_MAX, NAMES_MAX};
pub use list::Page;
pub use names::Created;
pub use replies::{KEPT, REPLIES_MAX};
pub use requests::{Begun, Ticket};
pub use types::{
    Attributes, Caller, Changed, Create, FileId, HANDLE, Kind, Listed, RequestKey, SetAttributes, SetTime,
};

use crate::journal::CHANGE_BLOCKS;
use crate::table::{Change, ROOT, Table};

/// The purpose of the internal disk with the table.
const TABLE: &str = "files";
/// The purpose of the internal disks with the data of files.
const DATA: &str = "file";
/// Maximum bytes of the target of a symbolic link.
pub const TARGET_MAX: usize = 1024;

/// The namespace of a pool.
pub struct Files {
    pool: Arc<Pool>,
    disk: Arc<DiskHandle>,
    identity: u64,
    table: RwLock<Table>,
    /// Files without a name whose disks are to be deleted.
    orphans: mpsc::UnboundedSender<u32>,
}

impl Files {
    /// The root directory.
    pub fn root(&self) -> FileId {
        self.table.read().id(ROOT)
    }

    /// The handle of an object.
    pub fn handle(&self, id: FileId) -> [u8; HANDLE] {
        types::handle(self.identity, id)
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`Error::BadHandle`]; whether the object exists is not checked.
    pub fn object(&self, handle: &[u8]) -> Result<FileId> {
        types::object(self.identity, handle).ok_or(Error::BadHandle)
    }

    /// Identity of the namespace.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// A number that changes when unstable writes that were answered may be lost, and only then.
    pub fn verifier(&self) -> u64 {
        self.pool.memory_identity()
    }

    /// The pool that has the files.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Number of objects.
    pub fn used(&self) -> usize {
        self.table.read().used
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn attributes(&self, id: FileId) -> Result<Attributes> {
        let table = self.table.read();
        table.get(id)?;
        Ok(table.attributes(id.number))
    }

    /// The present time, in nanoseconds since 1970.
    fn now(&self) -> u64 {
        self.pool.host().unix_ms().saturating_mul(1_000_000)
    }

    /// Makes a change of the table, and writes it to the buffers. It is durable after [`Files::flush`].
    async fn change<T>(&self, make: impl FnOnce(&mut Table, &mut Change, u64) -> Result<T>) -> Result<T> {
        let mut room = self.disk.admit_blocks(CHANGE_BLOCKS).await?;
        let (done, orphans) = {
            let mut table = self.table.write();
            let mut change = Change::default();
            let done = make(&mut table, &mut change, self.now())?;
            table.write(&self.disk, &mut room, &change)?;
            (done, change.orphans)
        };
        for orphan in orphans {
            // The task that receives it exists as long as the pool runs; otherwise the next opening deletes
            // the file's disk.
            let _ = self.orphans.send(orphan);
        }
        Ok(done)
    }

    /// As [`Files::change`], and waits until the change is durable.
    async fn change_durably<T>(
        &self,
        make: impl FnOnce(&mut Table, &mut Change, u64) -> Result<T>,
    ) -> Result<T> {
        let done = self.change(make).await?;
        self.flush().await?;
        Ok(done)
    }

    /// Waits until all changes of the table are durable.
    async fn flush(&self) -> Result<()> {
        Ok(self.disk.flush().await?)
    }
}
