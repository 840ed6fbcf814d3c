//! The contract between the engine and its stores.
//!
//! A store holds *objects* (one for each segment or container, named by a number) and two superblock copies.
//! An object only grows: the operations are appends at its end, reads at any offset and deletion as a whole.
//! Rename, directories and overwriting are not part of the contract, so that a RADOS object (append, read,
//! remove, compare-and-swap on an attribute) can implement it as well as a file.
//!
//! **Durability.** Appended bytes are durable once a `sync` of that object that began after the append
//! completed has itself completed without error. Until then a crash may keep any subset of the bytes, in any
//! state. `swap_superblock` and `delete` are durable when they complete.
//!
//! **Failure.** After an append or sync fails, the state of the bytes since the last completed sync of that
//! object is unknown permanently; the caller must not sync again and interpret success as durability (the
//! kernel may have dropped the dirty pages). The engine latches. This includes [`StoreError::Full`]: an
//! append that fails for lack of space leaves that object with an unknown end, but never with all of its
//! data, and the other objects unchanged; a sync that fails for lack of space (file systems that allocate
//! late, thin volumes, quotas) is a failed sync. After a failed `swap_superblock` the copy that was to be
//! written is old, new or torn, and no other swap succeeds until the store is opened again.
//!
//! **Ownership.** Only one opener is allowed at a time: a second gets [`StoreError::Busy`]. In a directory a
//! lock file is used; on RADOS each operation compares the number of the ownership. An opener appends only to
//! objects that it created itself.

use std::future::Future;
use std::pin::Pin;

use forebay_format::{SegmentId, Superblock};
use tokio::sync::oneshot;

use crate::IoBuf;

/// A future returned by a store. The operation progresses without being polled; dropping the future at any
/// time does not cancel it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Errors of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space is left.
    #[error("the store is full")]
    Full,
    /// Another process has the store open.
    #[error("the store is in use by another process{0}")]
    Busy(String),
    /// The object does not exist.
    #[error("object {0} does not exist")]
    NotFound(SegmentId),
    /// The store cannot be written to.
    #[error("the store is read-only")]
    ReadOnly,
    /// The directory contains files other than those of a store.
    #[error("{0:?} contains other files and no pool; use an empty directory, or the directory of a pool")]
    NotAStore(std::path::PathBuf),
    /// The superblock is not the expected one: another server has opened the pool.
    #[error("the superblock was changed by another server; this one has lost the pool")]
    Fenced,
    /// An append takes longer than it should: see [`Store::overdue`]. No operation returns this.
    #[error("an object of the store does not answer")]
    Overdue,
    /// Another error of the operating system.
    #[error("{what}: {reason}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The error text of the system.
        reason: String,
        /// Its errno, or 0 without one.
        errno: i32,
    },
}

impl StoreError {
    /// Whether an error of a read may concern only the requested range: the medium or the file system reports
    /// that it cannot read these bytes (Linux: `blk_errors` in block/blk-core.c). All other errors concern
    /// the store, its path or this host.
    pub fn concerns_one_place(&self) -> bool {
        const RANGE_ERRORS: [i32; 6] = [
            libc::EIO,
            // Reported by block devices: a medium error, a failed command, wrong protection information.
            libc::ENODATA,
            libc::EREMOTEIO,
            libc::EILSEQ,
            // Reported by file systems for a wrong checksum.
            libc::EBADMSG,
            libc::EUCLEAN,
        ];
        matches!(self, StoreError::Io { errno, .. } if RANGE_ERRORS.contains(errno))
    }
}

/// An object in a [`Store::list`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its number.
    pub id: SegmentId,
    /// Upper bound of its length in bytes: a preallocated file is longer than its appended data, and reads as
    /// zeroes after it.
    pub len: u64,
}

/// Selects objects of a store.
pub type Selection = Box<dyn Fn(SegmentId) -> bool + Send + Sync>;

/// Space of a store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Total space.
    pub total: u64,
    /// Free space, with the room that the store owns.
    pub free: u64,
    /// The store holds less room than it was requested to own ([`Store::reserve`]). Then the free space is
    /// the room that it holds: that room is for operations that make room.
    pub is_short: bool,
}

impl Capacity {
    /// The space of a store that is not short of room.
    pub fn new(total: u64, free: u64) -> Capacity {
        Capacity { total, free, is_short: false }
    }
}

/// A store. All offsets and lengths of appends and reads are multiples of [`IoBuf::ALIGN`].
pub trait Store: Send + Sync + 'static {
    /// Creates object `id`, empty, ahead of its first append, which then is as short as another one.
    /// Space for `expected` bytes is preallocated, as by that append. The caller appends after this has
    /// completed. After a crash, the object exists or does not. A store that creates objects quickly does
    /// nothing.
    ///
    /// # Errors
    /// As a first append. Then the object is to be deleted before an append may create it.
    fn prepare(&self, id: SegmentId, expected: u64) -> BoxFuture<'static, Result<()>> {
        let _ = (id, expected);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Appends `data` to object `id`, whose end must be at `offset`; offset 0 creates the object, and fails
    /// if it exists, unless it was prepared in this opening. `expected` is the final length of the object, so
    /// that space can be preallocated; a later append that ends there is the last one, and preallocated space
    /// beyond it is returned. Returns the buffer for reuse. One append to an object at a time.
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>>;

    /// Makes all completed appends to `id` durable.
    fn sync(&self, id: SegmentId) -> BoxFuture<'_, Result<()>>;

    /// As [`Store::append`] to an object of which everything before `offset` is durable, and then
    /// [`Store::sync`]: in one operation, if the store can. If the future is dropped, the sync may not take
    /// place. May block its caller for as long as a small write to a fast disk takes.
    ///
    /// # Errors
    /// [`StoreError::Full`] only if the append found no room; then it was not synced.
    fn append_synced(
        &self,
        id: SegmentId,
        offset: u64,
        data: IoBuf,
        expected: u64,
    ) -> BoxFuture<'_, Result<IoBuf>> {
        append_then_sync(self, id, offset, data, expected)
    }

    /// Completes when an append of `len` bytes that begins now, or the creation of an object for 0 bytes, is
    /// overdue, and the store answers otherwise: the caller may drop its future and continue with another
    /// object. The append may still take effect, until another opener has the store. A store in which one
    /// object does not fail alone never completes it.
    fn overdue(&self, len: usize) -> BoxFuture<'static, ()> {
        let _ = len;
        Box::pin(std::future::pending())
    }

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the object.
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>>;

    /// Deletes an object; succeeds if it does not exist.
    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>>;

    /// All objects, by ascending number.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>>;

    /// As [`Store::list`], with the lengths of selected objects; those of others may be [`u64::MAX`]. A store
    /// that must query each length separately does so for these objects only.
    fn list_lengths_of(&self, selected: Selection) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        drop(selected);
        self.list()
    }

    /// The objects of `listed` that exist, and all from number `from` on, by ascending number, with their
    /// lengths. The numbers from `from` on are few: a store that can find these objects without listing all
    /// does so.
    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        let is_wanted = move |id: SegmentId| id >= from || listed.contains(&id);
        let is_selected = is_wanted.clone();
        let all = self.list_lengths_of(Box::new(is_selected));
        Box::pin(async move { Ok(all.await?.into_iter().filter(|o| is_wanted(o.id)).collect()) })
    }

    /// Returns the space of an object after its first `written` bytes and all others that are not zero.
    /// Nothing may be appended to it any more. Best effort: the length of the object afterwards, or `None` if
    /// the store keeps it as it is.
    fn trim(&self, id: SegmentId, written: u64) -> BoxFuture<'_, Option<u64>> {
        let _ = (id, written);
        Box::pin(std::future::ready(None))
    }

    /// Reads both superblock copies; `None` for a missing one.
    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>>;

    /// Overwrites the copy `new.generation % 2` with `new`, durably, if the newest valid copy has the
    /// generation `new.generation - 1` (or if there is no valid copy and `new.generation` is 0 or 1). Returns
    /// [`StoreError::Fenced`] otherwise.
    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>>;

    /// Whether another host may open the pool next, while clients of this one live.
    fn is_shared(&self) -> bool {
        false
    }

    /// The length that no object may exceed.
    fn max_object_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Requests that the store own `bytes` of room, so that an append, a superblock or a deletion that finds
    /// no room can take place nevertheless: the free space that a store reports may not be there, because of
    /// quotas and other writers. The store gives up the room when it has to, reports itself as short
    /// ([`Capacity::is_short`]), and tries to hold the room again whenever its capacity is queried. Best
    /// effort: a store may own less, or nothing.
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, ()> {
        let _ = bytes;
        Box::pin(std::future::ready(()))
    }

    /// Returns the total and the free space. Cheap enough to be asked after each commit.
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>>;
}

/// The error of an operation after which the state of the store is unknown: lack of space is as permanent
/// there as any other failure, and never [`StoreError::Full`].
pub fn for_good(e: StoreError, what: &str) -> StoreError {
    match e {
        StoreError::Full => StoreError::Io {
            what: what.to_owned(),
            reason: "no space left on the store".to_owned(),
            errno: libc::ENOSPC,
        },
        other => other,
    }
}

/// [`Store::append_synced`] as two operations.
pub(crate) fn append_then_sync<S: Store + ?Sized>(
    store: &S,
    id: SegmentId,
    offset: u64,
    data: IoBuf,
    expected: u64,
) -> BoxFuture<'_, Result<IoBuf>> {
    let appended = store.append(id, offset, data, expected);
    Box::pin(async move {
        let data = appended.await?;
        store.sync(id).await.map_err(|e| for_good(e, "sync of an object"))?;
        Ok(data)
    })
}

/// Panics if an offset or a length is not aligned as the contract requires.
pub(crate) fn assert_aligned(what: &str, id: SegmentId, offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(IoBuf::ALIGN as u64) && len.is_multiple_of(IoBuf::ALIGN) && len > 0,
        "{what} of {len} bytes at {offset} of object {id} is not a multiple of {}",
        IoBuf::ALIGN
    );
}

/// The error after an earlier append or sync of the same object failed: no later one may succeed.
pub(crate) fn failed_before(what: impl FnOnce() -> String) -> StoreError {
    let reason = "an earlier write or sync of it failed, so the state of its last bytes is unknown".into();
    StoreError::Io { what: what(), reason, errno: libc::EIO }
}

/// The future of an operation that runs independently.
pub(crate) fn receive<T: Send + 'static>(
    result: oneshot::Receiver<Result<T>>,
) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move {
        let gone = |_| StoreError::Io {
            what: "waiting for the store".into(),
            reason: "the store was closed".into(),
            errno: libc::ESHUTDOWN,
        };
        result.await.map_err(gone)?
    })
}

/// The future of an operation that is refused.
pub(crate) fn refuse<T: Send + 'static>(error: StoreError) -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(error)))
}

/// Names an operation and its object.
pub(crate) fn describe(what: &str, id: SegmentId) -> impl FnOnce() -> String {
    move || format!("{what} object {id}")
}
