//! The operations of the contract on a directory.
//!
//! The effects of the end of an operation (the object's new end, its failure) are applied in the closure that
//! ends it, not in the future that reports it, because the future may be dropped earlier.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::{SegmentId, Superblock};
use tokio::sync::oneshot;

use super::errors::{directory_deleted, is_full, store_error};
use super::io::{Io, Op};
use super::open::read_copies;
use super::retry::retry_shortage;
use super::trim::trim_tail;
use super::{DirectoryStore, Shared, SuperblockFile};
use crate::contract::{assert_aligned, describe, refuse};
use crate::error::failed_before;
use crate::reserve::Purpose;
use crate::superblock::{COPY_BYTES, check_swap, copy_of, written_copies};
use crate::{
    BoxFuture, Capacity, Completion, IoBuf, ObjectStat, Result, Selection, Store, StoreError, for_good,
};

/// Maximum size of a synced append after which zeroes are written: see [`super::growing`].
const SMALL_BYTES: usize = 64 << 10;

/// Bytes of zeroes that are written to a new file at a time, few enough to hardly delay other writes.
const FILLED_AT_ONCE: usize = 256 << 10;
/// Maximum time for one such write, in the mean of the first [`FIRST_JUDGED`] writes or more. On a slower
/// disk, the zeroes would delay synced writes for longer than the journal does.
const FILL_PART_TIME: Duration = Duration::from_micros(250);
const FIRST_JUDGED: u32 = 8;
/// Maximum time for filling a file, since a commit may need the file, and a server that stops waits for the
/// thread.
const FILL_TIME: Duration = Duration::from_millis(200);

type Answer<T> = oneshot::Sender<Result<T>>;

impl Shared {
    /// Returns the error for an object whose file cannot be opened.
    pub(super) fn open_error(&self, what: &'static str, id: SegmentId, error: &std::io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(libc::ENOENT) if self.files.is_deleted() => directory_deleted(describe(what, id)),
            Some(libc::ENOENT) => StoreError::NotFound(id),
            _ => store_error(describe(what, id), error),
        }
    }

    /// Continues an append, as an operation on the object's file.
    fn write_or_fail(self: &Arc<Self>, opened: Result<Arc<File>>, append: Append) -> Option<Op> {
        match opened {
            Ok(file) => Some(self.write(file, append)),
            Err(e) => {
                match e {
                    StoreError::NotFound(id) => self.growing.forget(id),
                    _ => self.growing.end(append.id, None, false),
                }
                let _ = append.answer.send(Err(e));
                None
            }
        }
    }

    fn write(self: &Arc<Self>, file: Arc<File>, append: Append) -> Op {
        let shared = self.clone();
        let Append { id, offset, len, last, synced, data, io, answer } = append;
        let same_file = file.clone();
        let finish = move |data: IoBuf, written: std::io::Result<usize>| {
            let (written, blocking) = (written.map(drop), io.clone());
            let append = Append { id, offset, len, last, synced, data, io, answer };
            match &written {
                // A failed append may be repeated here: it writes the same bytes, and no sync has failed.
                Err(e) if !synced && is_full(e) => {
                    blocking.pool.run(move || shared.write_on_loan(&same_file, append));
                }
                // The file system may wait for its journal, which would delay all operations of this thread,
                // so another thread truncates the file.
                Ok(()) if last => blocking.pool.run(move || shared.end_append(&same_file, append, written)),
                _ => shared.end_append(&same_file, append, written),
            }
        };
        match synced {
            true => Op::write_synced(file, offset, data, Box::new(finish)),
            false => Op::write(file, offset, data, Box::new(finish)),
        }
    }

    /// Repeats an append for which there was no room, with room that the pool owns. May block.
    fn write_on_loan(&self, file: &File, append: Append) {
        let write = || retry_shortage(|| file.write_all_at(&append.data, append.offset));
        let written = self.reserve.lend(append.data.len() as u64, Purpose::Data, write);
        self.end_append(file, append, written);
    }

    /// Ends an append, and answers its caller. May block after the last append of an object.
    fn end_append(&self, file: &File, append: Append, written: std::io::Result<()>) {
        let Append { id, offset, len, last, synced, data, answer, .. } = append;
        let end = written.is_ok().then_some(offset + len);
        if let Some(end) = end.filter(|_| last) {
            return_space(file, end, id);
        }
        self.growing.end(id, end, synced);
        let result = written.map(|()| data).map_err(|e| store_error(describe("append to", id), &e));
        // Either the write or the sync may have failed.
        let result = if synced { result.map_err(|e| for_good(e, "append and sync")) } else { result };
        // The caller may have dropped the future.
        let _ = answer.send(result);
    }

    fn fdatasync(self: &Arc<Self>, file: Arc<File>, id: SegmentId, appends: u64, answer: Answer<()>) -> Op {
        let shared = self.clone();
        let finish = move |_, synced: std::io::Result<usize>| {
            let result = match synced {
                Err(e) => {
                    shared.growing.fail(id);
                    Err(store_error(describe("sync of", id), &e))
                }
                // The kernel reports a lost page only once, so the success of a concurrent sync proves
                // nothing.
                Ok(_) if shared.growing.has_failed(id) => Err(failed_before(describe("sync of", id))),
                Ok(_) => {
                    shared.growing.end_sync(id, appends);
                    Ok(())
                }
            };
            let _ = answer.send(result);
        };
        Op::sync(file, Box::new(finish))
    }

    /// Creates the object for its first append. If there is no room for the whole object, allocates only
    /// `least` bytes, with room that the pool owns.
    fn create_or_lend(&self, id: SegmentId, room: u64, least: u64) -> Result<Arc<File>> {
        match self.files.create(id, room) {
            Err(e) if is_full(&e) && self.reserve.owns_room() => {
                self.growing.grows_without_room(id);
                let created = self.reserve.lend(least, Purpose::Data, || self.files.create(id, least));
                self.created(id, created)
            }
            created => self.created(id, created),
        }
    }

    /// Creates the object ahead of its first append.
    fn create(&self, id: SegmentId, room: u64) -> Result<Arc<File>> {
        self.created(id, self.files.create(id, room))
    }

    fn created(&self, id: SegmentId, created: std::io::Result<Arc<File>>) -> Result<Arc<File>> {
        created.map_err(|e| {
            self.growing.forget(id);
            match e.raw_os_error() {
                Some(libc::ENOENT) => directory_deleted(describe("create", id)),
                _ => store_error(describe("create", id), &e),
            }
        })
    }

    /// Creates the object ahead of its first append, and fills it with zeroes; returns the number of zeroes.
    fn create_filled(&self, id: SegmentId, room: u64) -> Result<u64> {
        let file = self.create(id, room)?;
        fill_with_zeroes(&file, room).or_else(|e| {
            // Without zeroes, appends would only take longer. But no later sync of this file would report
            // lost pages, so another file replaces it.
            tracing::warn!(segment = %id, "cannot fill a new segment with zeroes: {e}");
            drop(file);
            self.files.delete(id).map_err(|e| store_error(describe("delete", id), &e))?;
            self.create(id, room).map(|_| 0)
        })
    }

    /// Whether a synced write to preallocated space of this object cannot find the file system full.
    fn has_room_for_overwrites(&self, id: SegmentId) -> bool {
        self.files.preallocates_for_overwrites() && self.growing.has_room(id)
    }

    fn swap_superblock(&self, new: &Superblock) -> Result<()> {
        let what = || "writing the superblock".to_owned();
        let io = |e: std::io::Error| store_error(what, &e);
        let mut superblock = self.superblock.lock();
        if superblock.failed {
            return Err(failed_before(what));
        }
        if retry_shortage(|| superblock.file.metadata()).map_err(io)?.nlink() == 0 {
            return Err(directory_deleted(what));
        }
        let copies = superblock.read()?;
        check_swap(copies.each_ref().map(Option::as_deref), new)?;
        let block = IoBuf::from(&new.encode()[..]);
        let at = (copy_of(new) * COPY_BYTES) as u64;
        // The write may be repeated before the sync, since it writes the same bytes to the same offset. The
        // sync may not be repeated.
        let write = || retry_shortage(|| superblock.file.write_all_at(&block, at));
        let written = self
            .reserve
            .lend(block.len() as u64, Purpose::Freeing, write)
            .and_then(|()| superblock.file.sync_data());
        superblock.failed = written.is_err();
        written.map_err(io)
    }
}

impl SuperblockFile {
    /// The superblock copies that were written; a copy that was never written is all zero.
    fn read(&self) -> Result<[Option<Vec<u8>>; 2]> {
        let bytes = retry_shortage(|| read_copies(&self.file))
            .map_err(|e| store_error(|| "reading the superblock".into(), &e))?;
        Ok(written_copies(&bytes))
    }
}

/// Writes zeroes to the first `len` bytes of a new file, durably; on a slow disk, to fewer bytes. Returns the
/// number of zeroes. May block.
fn fill_with_zeroes(file: &File, len: u64) -> std::io::Result<u64> {
    let (zeroes, begun) = (IoBuf::zeroed(FILLED_AT_ONCE), Instant::now());
    let (mut at, mut parts) = (0, 0);
    while at < len && is_worth_filling(parts, begun.elapsed()) {
        let part = &zeroes[..(len - at).min(FILLED_AT_ONCE as u64) as usize];
        retry_shortage(|| file.write_all_at(part, at))?;
        at += part.len() as u64;
        parts += 1;
    }
    file.sync_data().map(|()| at)
}

/// Whether to continue filling after `parts` parts, which took `time`.
fn is_worth_filling(parts: u32, time: Duration) -> bool {
    time < FILL_TIME && (parts < FIRST_JUDGED || time <= FILL_PART_TIME * parts)
}

/// Returns the preallocated space of a file after `end`.
fn return_space(file: &File, end: u64, id: SegmentId) {
    if let Err(e) = retry_shortage(|| file.set_len(end)) {
        // A failure only wastes space; the next opening of the store tries again.
        tracing::warn!(segment = %id, "cannot return unused space: {e}");
    }
}

/// An append in progress.
struct Append {
    id: SegmentId,
    offset: u64,
    /// Bytes of the append, without the zeroes that are written after them.
    len: u64,
    /// The append ends at the expected length of the object: space that was preallocated beyond it is not
    /// needed.
    last: bool,
    /// Whether the append is durable when it completes.
    synced: bool,
    data: IoBuf,
    io: Arc<Io>,
    answer: Answer<IoBuf>,
}

impl DirectoryStore {
    fn begin_append(
        &self,
        id: SegmentId,
        offset: u64,
        mut data: IoBuf,
        expected: u64,
        synced: bool,
    ) -> Completion<IoBuf> {
        assert_aligned("append", id, offset, data.len());
        if !self.shared.writable {
            return refuse(StoreError::ReadOnly);
        }
        let Some(exists) = self.shared.growing.begin(id, offset) else {
            return refuse(failed_before(describe("append to", id)));
        };
        let (answer, result) = oneshot::channel();
        let len = data.len() as u64;
        self.shared.growing.count(len, synced);
        let small = synced && data.len() <= SMALL_BYTES && self.shared.files.waits_for_journal();
        let zeroes = self.shared.growing.zeroes_after(id, offset + len, small, expected) - offset;
        data.resize(zeroes as usize);
        let last = offset > 0 && offset + len == expected;
        let append = Append { id, offset, len, last, synced, data, io: self.io.clone(), answer };
        let shared = self.shared.clone();
        if exists {
            self.on_file("append to", id, move |opened| shared.write_or_fail(opened, append));
        } else {
            let io = self.io.clone();
            self.io.pool.run(move || {
                let least = append.data.len() as u64;
                let created = shared.create_or_lend(id, expected.max(least), least);
                if let Some(op) = shared.write_or_fail(created, append) {
                    io.start_here(op);
                }
            });
        }
        Completion::awaited(result)
    }
}

impl Store for DirectoryStore {
    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        if !self.shared.writable {
            return refuse(StoreError::ReadOnly);
        }
        let (answer, result) = oneshot::channel();
        let shared = self.shared.clone();
        let fills = shared.growing.gains_from_zeroes()
            && self.io.synced_writes_are_fast()
            && shared.files.waits_for_journal();
        self.io.pool.run(move || {
            let created = match fills {
                true => shared.create_filled(id, expected),
                false => shared.create(id, expected).map(|_| 0),
            };
            let _ = answer.send(created.map(|filled| shared.growing.prepare(id, filled)));
        });
        Completion::awaited(result)
    }

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.begin_append(id, offset, data, expected, false)
    }

    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let end = offset + data.len() as u64;
        // A lack of room must be distinguished from a failed sync where it can occur: at the creation, beyond
        // the preallocated space, and if none was preallocated. The last append returns space before the
        // sync.
        let syncs = offset > 0 && end < expected && self.shared.has_room_for_overwrites(id);
        self.begin_append(id, offset, data, expected, syncs)
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        if !self.shared.writable {
            return refuse(StoreError::ReadOnly);
        }
        if self.shared.growing.has_failed(id) {
            return refuse(failed_before(describe("sync of", id)));
        }
        let Some(appends) = self.shared.growing.begin_sync(id) else { return Completion::ended(Ok(())) };
        let (answer, result) = oneshot::channel();
        let shared = self.shared.clone();
        self.on_file("sync of", id, move |opened| match opened {
            Ok(file) => Some(shared.fdatasync(file, id, appends, answer)),
            Err(e) => answer.send(Err(e)).err().and(None),
        });
        Completion::awaited(result)
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        assert_aligned("read", id, offset, len);
        let (answer, result) = oneshot::channel();
        self.on_file("read of", id, move |opened| match opened {
            Ok(file) => {
                let finish = move |data, read: std::io::Result<usize>| {
                    let _ =
                        answer.send(read.map(|_| data).map_err(|e| store_error(describe("read of", id), &e)));
                };
                Some(Op::read(file, offset, len, Box::new(finish)))
            }
            Err(e) => answer.send(Err(e)).err().and(None),
        });
        Completion::awaited(result)
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        if !self.shared.writable {
            return refuse(StoreError::ReadOnly);
        }
        self.blocking(move |shared| {
            let deleted = shared.reserve.lend(0, Purpose::Freeing, || shared.files.delete(id));
            deleted.map_err(|e| store_error(describe("delete", id), &e))?;
            shared.growing.forget(id);
            Ok(())
        })
    }

    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>> {
        self.blocking(move |shared| {
            let what = || "listing the objects".to_owned();
            if shared.files.is_deleted() {
                return Err(directory_deleted(what));
            }
            shared.files.list(&*selected).map_err(|e| store_error(what, &e))
        })
    }

    fn trim(&self, id: SegmentId, written: u64) -> BoxFuture<'static, Option<u64>> {
        if !self.shared.writable {
            return Box::pin(std::future::ready(None));
        }
        let trimmed = self.blocking(move |shared| {
            let trimmed = trim_tail(&shared.files, id, written);
            Ok(trimmed.inspect_err(|e| tracing::warn!(segment = %id, "cannot return unused space: {e}")).ok())
        });
        // The thread that trims the file ends only with the store.
        Box::pin(async move { trimmed.await.ok().flatten() })
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        self.blocking(|shared| shared.superblock.lock().read())
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        if !self.shared.writable {
            return refuse(StoreError::ReadOnly);
        }
        let new = new.clone();
        self.blocking(move |shared| shared.swap_superblock(&new))
    }

    /// A file system in memory holds no room: its size has no hidden limit, and held room would use memory.
    fn reserve(&self, bytes: u64) -> BoxFuture<'static, ()> {
        if !self.shared.writable || self.shared.files.is_in_memory() {
            return Box::pin(std::future::ready(()));
        }
        let held = self.blocking(move |shared| {
            shared.reserve.hold(bytes);
            Ok(())
        });
        // The thread that allocates the room ends only with the store.
        Box::pin(async move { drop(held.await) })
    }

    fn capacity(&self) -> Completion<Capacity> {
        self.blocking(|shared| {
            let owned = shared.reserve.replenish();
            let found = shared.files.capacity();
            let found = found.map_err(|e| store_error(|| "querying free space".into(), &e))?;
            Ok(owned.capacity(found.total, found.free))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_filled_on_a_fast_disk_only() {
        let after = |parts, each| is_worth_filling(parts, Duration::from_micros(each) * parts);
        assert!(after(0, 0) && after(FIRST_JUDGED - 1, 700), "too few to judge");
        assert!(after(FIRST_JUDGED, 100) && after(256, 240));
        assert!(!after(FIRST_JUDGED, 700) && !after(256, 260));
        assert!(!is_worth_filling(1, FILL_TIME), "a commit may wait for the file");
    }

    #[test]
    fn a_new_file_is_filled_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        for len in [0, 4096, FILLED_AT_ONCE as u64, 1 << 20, (1 << 20) + 4096] {
            file.set_len(0).unwrap();
            let begun = Instant::now();
            let filled = fill_with_zeroes(&file, len).unwrap();
            assert!(filled == len || begun.elapsed() >= FILL_TIME, "{filled} of {len} bytes");
            let mut read = vec![1; filled as usize];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(file.metadata().unwrap().len() == filled && read.iter().all(|b| *b == 0));
        }
    }
}
