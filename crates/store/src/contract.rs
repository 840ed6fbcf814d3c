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

use forebay_format::{SegmentId, Superblock};

use crate::{BoxFuture, Completion, IoBuf, StoreError};

/// An object in a [`Store::list`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectStat {
    /// Number of the object.
    pub id: SegmentId,
    /// Upper bound of the object's length in bytes: a preallocated file is longer than its appended data, and
    /// reads as zeroes after the data.
    pub len: u64,
}

/// Selects objects of a store.
pub type Selection = Box<dyn Fn(SegmentId) -> bool + Send + Sync>;

/// Space of a store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Total space.
    pub total: u64,
    /// Free space, including the room that the store owns.
    pub free: u64,
    /// The store holds less room than it was requested to own ([`Store::reserve`]). The free space is then
    /// the room that it holds, which is only for operations that free room.
    pub is_short: bool,
}

impl Capacity {
    /// The space of a store that is not short of room.
    pub fn new(total: u64, free: u64) -> Capacity {
        Capacity { total, free, is_short: false }
    }
}

/// A store. All offsets and lengths of appends and reads are multiples of [`IoBuf::ALIGN`].
///
/// Every store has the *core*: the operations without a default. The others are *capabilities* of some
/// stores; their defaults describe a store without them. A wrapper implements what it changes, and forwards
/// everything else by [`forward_store`](crate::forward_store).
pub trait Store: Send + Sync + 'static {
    /// Appends `data` to object `id`, whose end must be at `offset`; offset 0 creates the object, and fails
    /// if it exists, unless it was prepared in this opening. `expected` is the final length of the object, so
    /// that space can be preallocated; a later append that ends there is the last one, and preallocated space
    /// beyond it is returned. Returns the buffer for reuse. One append to an object at a time.
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf>;

    /// Makes all completed appends to `id` durable.
    fn sync(&self, id: SegmentId) -> Completion<()>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the object.
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf>;

    /// Deletes an object; succeeds if it does not exist.
    fn delete(&self, id: SegmentId) -> Completion<()>;

    /// Lists all objects, by ascending number, with the lengths of the selected objects; the lengths of other
    /// objects may be [`u64::MAX`]. A store that must query each length separately does so for the selected
    /// objects only.
    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>>;

    /// Reads both superblock copies; `None` for a missing copy.
    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]>;

    /// Overwrites the copy `new.generation % 2` with `new`, durably, if the newest valid copy has the
    /// generation `new.generation - 1` (or if there is no valid copy and `new.generation` is 0 or 1). Returns
    /// [`StoreError::Fenced`] otherwise.
    fn swap_superblock(&self, new: &Superblock) -> Completion<()>;

    /// Returns the total and the free space. The call is cheap enough to be made after each commit.
    fn capacity(&self) -> Completion<Capacity>;

    /// Lists all objects with their lengths, by ascending number.
    fn list(&self) -> Completion<Vec<ObjectStat>> {
        self.list_lengths_of(Box::new(|_| true))
    }

    /// Creates object `id`, empty, ahead of its first append, which then is as short as another one.
    /// Space for `expected` bytes is preallocated, as by that append. The caller appends after this has
    /// completed. After a crash, the object exists or does not. A store that creates objects quickly does
    /// nothing.
    ///
    /// # Errors
    /// As a first append. Then the object is to be deleted before an append may create it.
    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        let _ = (id, expected);
        Completion::ended(Ok(()))
    }

    /// Works like [`Store::append`] to an object of which everything before `offset` is durable. The caller
    /// syncs the object next: a store that can append and sync in one operation does so, and completes that
    /// sync at once. May block its caller for as long as a small write to a fast disk takes.
    ///
    /// # Errors
    /// [`StoreError::Full`] only if the append found no room; then it was not synced.
    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.append(id, offset, data, expected)
    }

    /// Completes when an append of `len` bytes that begins now, or the creation of an object for 0 bytes, is
    /// overdue, and the store answers otherwise: the caller may drop its future and continue with another
    /// object. The append may still take effect, until another opener has the store. A store in which one
    /// object does not fail alone never completes it.
    fn overdue(&self, len: usize) -> BoxFuture<'static, ()> {
        let _ = len;
        Box::pin(std::future::pending())
    }

    /// Returns the objects of `listed` that exist, and all objects from number `from` on, by ascending
    /// number, with their lengths. Few objects have numbers from `from` on: a store that can find these
    /// objects without listing all objects does so.
    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> Completion<Vec<ObjectStat>> {
        let is_wanted = move |id: SegmentId| id >= from || listed.contains(&id);
        let is_selected = is_wanted.clone();
        let all = self.list_lengths_of(Box::new(is_selected));
        Completion::of(async move { Ok(all.await?.into_iter().filter(|o| is_wanted(o.id)).collect()) })
    }

    /// Returns the space of an object after its first `written` bytes and all others that are not zero.
    /// Nothing may be appended to it any more. Best effort: the length of the object afterwards, or `None` if
    /// the store keeps it as it is.
    fn trim(&self, id: SegmentId, written: u64) -> BoxFuture<'static, Option<u64>> {
        let _ = (id, written);
        Box::pin(std::future::ready(None))
    }

    /// Whether another host may be the next to open the pool, while clients of this host still run.
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
    fn reserve(&self, bytes: u64) -> BoxFuture<'static, ()> {
        let _ = bytes;
        Box::pin(std::future::ready(()))
    }
}

/// Panics if an offset or a length is not aligned as the contract requires.
pub(crate) fn assert_aligned(what: &str, id: SegmentId, offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(IoBuf::ALIGN as u64) && len.is_multiple_of(IoBuf::ALIGN) && len > 0,
        "{what} of {len} bytes at {offset} of object {id} is not a multiple of {}",
        IoBuf::ALIGN
    );
}

/// A completion of an operation that is refused.
pub(crate) fn refuse<T>(error: StoreError) -> Completion<T> {
    Completion::ended(Err(error))
}

/// Text that names an operation and its object.
pub(crate) fn describe(what: &str, id: SegmentId) -> impl FnOnce() -> String {
    move || format!("{what} object {id}")
}
