//! The contract between the engine and whatever keeps its bytes.
//!
//! A store holds *objects* (one for each segment or container, named by a number) and two superblock copies.
//! An object only grows: appends at its end, whole reads anywhere, deletion as a whole. There is no rename, no
//! directory, no overwrite, so that a RADOS object (append, read, remove, compare-and-swap on an attribute)
//! can implement it as well as a file can.
//!
//! **Durability.** What was appended is durable once a `sync` of that object that began after the append
//! completed has itself completed without error. Until then a crash may keep any subset of the bytes, in any
//! state. `swap_superblock` and `delete` are durable when they complete.
//!
//! **Failure.** After an append or sync fails, the bytes since the last completed sync of that object are in
//! an unknown state for ever; the caller must not sync again and take success for durability (the kernel may
//! have dropped the dirty pages). The engine latches. That holds for [`StoreError::Full`] as well: an append that
//! finds no room leaves that object with an unknown end, but never with all of its data, and the others as they were; a
//! sync that finds none (file systems that allocate late, thin volumes, quotas) is a failed sync. After a failed
//! `swap_superblock` the copy that it was to write is old, new or torn, and no other swap succeeds in this opening.
//!
//! **Ownership.** One opener at a time: a second gets [`StoreError::Busy`]. On RADOS each append asserts the
//! epoch; in a directory a lock file does.

use std::future::Future;
use std::pin::Pin;

use forebay_format::{SegmentId, Superblock};

use crate::IoBuf;

/// A future that a store hands out; it makes progress without being polled and may be dropped at any time
/// (the operation itself then still completes).
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What goes wrong in a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No room is left.
    #[error("the store is full")]
    Full,
    /// Another process has it open.
    #[error("the store is in use by another process{0}")]
    Busy(String),
    /// No such object.
    #[error("object {0} does not exist")]
    NotFound(SegmentId),
    /// The store cannot be written.
    #[error("the store is read-only")]
    ReadOnly,
    /// The place holds something, but no store.
    #[error("{0:?} holds other files and no pool: give an empty directory, or the right one")]
    NotAStore(std::path::PathBuf),
    /// The expected superblock is not the one that is there: someone else has taken the pool.
    #[error("the superblock was changed by another server; this one no longer holds the pool")]
    Fenced,
    /// Anything else that the operating system reports.
    #[error("{what}: {reason}")]
    Io {
        /// The operation and its object.
        what: String,
        /// What the system said.
        reason: String,
        /// Its errno, where there is one.
        errno: i32,
    },
}

impl StoreError {
    /// Whether an error of a read may be of that place alone: the medium or the file system reports that it cannot
    /// give these bytes (Linux: `blk_errors` in block/blk-core.c). All others are of the store, its path or this host.
    pub fn concerns_one_place(&self) -> bool {
        const OF_A_PLACE: [i32; 6] = [
            libc::EIO,
            // A medium error, a failed command, wrong protection information, ...
            libc::ENODATA,
            libc::EREMOTEIO,
            libc::EILSEQ,
            // ... and what file systems make of a wrong checksum.
            libc::EBADMSG,
            libc::EUCLEAN,
        ];
        matches!(self, StoreError::Io { errno, .. } if OF_A_PLACE.contains(errno))
    }
}

/// An object, as [`Store::list`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its number.
    pub id: SegmentId,
    /// Upper bound of its length in bytes: a preallocated file is longer than what was appended, and reads as
    /// zeroes behind it.
    pub len: u64,
}

/// Room in a store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// In all.
    pub total: u64,
    /// Still free.
    pub free: u64,
}

/// A store. All offsets and lengths of appends and reads are multiples of [`IoBuf::ALIGN`].
pub trait Store: Send + Sync + 'static {
    /// Appends `data` at the end of object `id`, which must be at `offset`; offset 0 creates the object, and
    /// fails if it exists. `expected` is the length that the object is going to have in the end, so that
    /// room may be set aside; a later append that ends there is the last one, and what was set aside beyond it
    /// comes back. Gives the buffer back for reuse. One append to an object at a time.
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>>;

    /// Makes everything durable that was appended to `id`.
    fn sync(&self, id: SegmentId) -> BoxFuture<'_, Result<()>>;

    /// Reads up to `len` bytes at `offset`; fewer only where the object ends.
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>>;

    /// Deletes an object; one that does not exist is no error.
    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>>;

    /// All objects, by ascending number.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>>;

    /// Both superblock copies as they are; `None` for one that is not there.
    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>>;

    /// Writes `new` over the copy `new.generation % 2`, durably, if the newest valid copy has the generation
    /// `new.generation - 1` (or there is no valid copy and it is 0 or 1). [`StoreError::Fenced`] otherwise.
    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>>;

    /// Room in all and free.
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>>;
}
