//! The segment files of a directory: their names, their creation and deletion, and a bounded cache of open
//! ones.
//!
//! Files in use stay open, however many there are; of the others, the least recently used is closed first. A
//! deleted file never stays in the cache: deletion removes it from the cache after the unlink, and insertion
//! checks afterwards whether the file still has a name. At least one of the two detects the other.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_format::SegmentId;
use parking_lot::Mutex;

use super::retry::retry_shortage;
use crate::ObjectStat;

const SUFFIX: &str = ".seg";

/// How the files are used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// Files are opened with `O_DIRECT`.
    pub direct: bool,
    /// Files are also written by writes that are durable when they complete (`RWF_DSYNC`).
    pub synced_writes: bool,
    /// Files are opened for writing, not only for reading.
    pub writable: bool,
}

/// The segment files.
pub(super) struct Files {
    dir: File,
    path: std::path::PathBuf,
    usage: Usage,
    /// The file system writes preallocated blocks in place.
    in_place: bool,
    /// The file system records which preallocated blocks were written, in a journal for which a sync waits.
    in_journal: bool,
    /// The file system does not support preallocation.
    no_fallocate: AtomicBool,
    cache: Mutex<Cache>,
    /// Errors with which the next calls to open a file fail.
    #[cfg(test)]
    pub(super) open_errors: Mutex<Vec<libc::c_int>>,
}

struct Cache {
    open: HashMap<SegmentId, Cached>,
    limit: usize,
    clock: u64,
}

struct Cached {
    file: Arc<File>,
    used: u64,
}

impl Cache {
    /// Takes out the least recently used file that is not in use. The caller drops the file without the lock
    /// of the cache, which every read takes: closing a file can take long, in particular if it was deleted.
    fn evict(&mut self) -> Option<Cached> {
        let idle = self.open.iter().filter(|(_, c)| Arc::strong_count(&c.file) == 1);
        let oldest = idle.min_by_key(|(_, c)| c.used).map(|(id, _)| *id);
        oldest.and_then(|id| self.open.remove(&id))
    }
}

/// Opens `name` in `dir`.
fn open_at(dir: &File, name: &str, flags: libc::c_int) -> io::Result<File> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the directory is open, and the name is zero-terminated.
    let fd = unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn name_of(id: SegmentId) -> String {
    format!("{id}{SUFFIX}")
}

/// The object of a file name; `None` if the name is not the name of a segment file.
fn parse_name(name: &str) -> Option<SegmentId> {
    let id = SegmentId(u32::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?);
    (name_of(id) == name).then_some(id)
}

/// The type of the file system of a file: a magic number of statfs(2).
fn file_system(file: &File) -> io::Result<i64> {
    // SAFETY: an all-zero statfs is a valid value of a plain C structure.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    retry_shortage(|| {
        // SAFETY: the descriptor is open and the structure is valid for writing.
        let answer = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })?;
    Ok(stat.f_type as i64)
}

/// Allocates a range of a file, and extends the file to the end of the range.
pub(super) fn fallocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let offset = libc::off_t::try_from(offset).map_err(too_large)?;
    let len = libc::off_t::try_from(len).map_err(too_large)?;
    retry_shortage(|| {
        // SAFETY: the descriptor is open; the call accesses no memory.
        let answer = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// Whether a file system writes preallocated blocks in place. One that copies on write (btrfs, ZFS) needs new
/// space for the second write to a block, and some accept a preallocation and reserve nothing. A network or
/// FUSE file system may leave the sync of a synced write to its server, which may ignore it.
fn writes_in_place(file_system: i64) -> bool {
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::TMPFS_MAGIC].contains(&file_system)
}

impl Files {
    /// The files in `path`; up to `limit` are kept open.
    pub(super) fn new(path: &std::path::Path, usage: Usage, limit: usize) -> io::Result<Files> {
        let cache = Mutex::new(Cache { open: HashMap::new(), limit: limit.max(1), clock: 0 });
        let no_fallocate = AtomicBool::new(false);
        let dir = retry_shortage(|| File::open(path))?;
        let file_system = file_system(&dir)?;
        Ok(Files {
            in_place: writes_in_place(file_system),
            in_journal: file_system != libc::TMPFS_MAGIC,
            dir,
            path: path.into(),
            usage,
            no_fallocate,
            cache,
            #[cfg(test)]
            open_errors: Mutex::default(),
        })
    }

    /// The file of an object, if it is open; never blocks.
    pub(super) fn cached(&self, id: SegmentId) -> Option<Arc<File>> {
        let mut cache = self.cache.lock();
        cache.clock += 1;
        let now = cache.clock;
        cache.open.get_mut(&id).map(|cached| {
            cached.used = now;
            cached.file.clone()
        })
    }

    /// Opens an object's file; may block.
    pub(super) fn open(&self, id: SegmentId) -> io::Result<Arc<File>> {
        if let Some(file) = self.cached(id) {
            return Ok(file);
        }
        let access = if self.usage.writable { libc::O_RDWR } else { libc::O_RDONLY };
        let file = Arc::new(self.open_flags(id, access)?);
        self.keep(id, file)
    }

    /// Opens an object's file for one use; may block.
    pub(super) fn open_uncached(&self, id: SegmentId) -> io::Result<File> {
        self.open_flags(id, libc::O_RDWR)
    }

    /// Creates an object's file, durably, with space for `expected` bytes preallocated; fails if it exists.
    /// May block. If preallocation fails, the file is removed.
    pub(super) fn create(&self, id: SegmentId, expected: u64) -> io::Result<Arc<File>> {
        let file = Arc::new(self.open_flags(id, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?);
        if let Err(e) = self.preallocate(&file, expected).and_then(|()| self.dir.sync_all()) {
            let _ = self.unlink(id);
            return Err(e);
        }
        self.keep(id, file)
    }

    /// Deletes an object's file, durably; may block. Succeeds if the file does not exist.
    pub(super) fn delete(&self, id: SegmentId) -> io::Result<()> {
        let unlinked = match self.unlink(id) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        let closed = self.cache.lock().open.remove(&id);
        drop(closed);
        // The directory is synced even if the file did not exist: an earlier deletion may have failed
        // half-way.
        unlinked.and_then(|()| self.dir.sync_all())
    }

    /// Lists all objects, by ascending number, with the lengths of the selected objects; may block. A length
    /// costs a query of the file system, which takes much longer than reading a name.
    pub(super) fn list(&self, selected: &dyn Fn(SegmentId) -> bool) -> io::Result<Vec<ObjectStat>> {
        retry_shortage(|| self.list_once(selected))
    }

    fn list_once(&self, selected: &dyn Fn(SegmentId) -> bool) -> io::Result<Vec<ObjectStat>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(parse_name) else { continue };
            if !selected(id) {
                found.push(ObjectStat { id, len: u64::MAX });
                continue;
            }
            match entry.metadata() {
                Ok(metadata) => found.push(ObjectStat { id, len: metadata.len() }),
                // The file was deleted after the directory was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        found.sort_by_key(|stat| stat.id);
        Ok(found)
    }

    /// Whether the directory itself was deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.dir.metadata().map_or(true, |m| m.nlink() == 0)
    }

    /// Free and total bytes of the file system.
    pub(super) fn capacity(&self) -> io::Result<crate::Capacity> {
        // SAFETY: an all-zero statvfs is a valid value of a plain C structure.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        retry_shortage(|| {
            // SAFETY: the descriptor is open and the structure is valid for writing.
            let answer = unsafe { libc::fstatvfs(self.dir.as_raw_fd(), &raw mut stat) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })?;
        let unit = stat.f_frsize;
        Ok(crate::Capacity::new(stat.f_blocks * unit, stat.f_bavail * unit))
    }

    fn open_flags(&self, id: SegmentId, flags: libc::c_int) -> io::Result<File> {
        let flags = if self.usage.direct { flags | libc::O_DIRECT } else { flags };
        let name = name_of(id);
        retry_shortage(|| {
            loop {
                match self.open_once(&name, flags) {
                    // The process is out of descriptors: idle files of the cache are closed first.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                        let evicted = self.cache.lock().evict();
                        if evicted.is_none() {
                            return Err(e);
                        }
                    }
                    other => return other,
                }
            }
        })
    }

    fn open_once(&self, name: &str, flags: libc::c_int) -> io::Result<File> {
        #[cfg(test)]
        if let Some(errno) = self.open_errors.lock().pop() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        open_at(&self.dir, name, flags)
    }

    fn keep(&self, id: SegmentId, file: Arc<File>) -> io::Result<Arc<File>> {
        let mut evicted = Vec::new();
        {
            let mut cache = self.cache.lock();
            while cache.open.len() >= cache.limit
                && let Some(one) = cache.evict()
            {
                evicted.push(one);
            }
            cache.clock += 1;
            let used = cache.clock;
            evicted.extend(cache.open.insert(id, Cached { file: file.clone(), used }));
        }
        drop(evicted);
        if retry_shortage(|| file.metadata())?.nlink() == 0 {
            self.cache.lock().open.remove(&id);
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        Ok(file)
    }

    /// Whether preallocated space suffices for any number of writes to it. If so, such a write cannot find
    /// the file system full, and `RWF_DSYNC`, which is supported here, makes it durable.
    pub(super) fn preallocates_for_overwrites(&self) -> bool {
        self.usage.synced_writes && self.in_place && !self.no_fallocate.load(Ordering::Relaxed)
    }

    /// Whether the file system is in memory: its room cannot be reserved without using memory.
    pub(super) fn is_in_memory(&self) -> bool {
        !self.in_journal
    }

    /// Whether the first synced write to preallocated space waits for the journal, while a later write to it
    /// does not: see [`super::growing`].
    pub(super) fn waits_for_journal(&self) -> bool {
        self.in_journal && self.preallocates_for_overwrites()
    }

    fn preallocate(&self, file: &File, len: u64) -> io::Result<()> {
        if len == 0 || self.no_fallocate.load(Ordering::Relaxed) {
            return Ok(());
        }
        match fallocate(file, 0, len) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                if !self.no_fallocate.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        path = %self.path.display(),
                        "preallocation is not supported here; a full disk is detected only when it is written to"
                    );
                }
                Ok(())
            }
            other => other,
        }
    }

    fn unlink(&self, id: SegmentId) -> io::Result<()> {
        let name = std::ffi::CString::new(name_of(id))?;
        retry_shortage(|| {
            // SAFETY: the directory is open, and the name is zero-terminated.
            let answer = unsafe { libc::unlinkat(self.dir.as_raw_fd(), name.as_ptr(), 0) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFERED: Usage = Usage { direct: false, synced_writes: true, writable: true };

    #[test]
    fn only_names_of_segment_files_are_parsed() {
        assert_eq!(parse_name("0000002a.seg"), Some(SegmentId(42)));
        for name in ["2a.seg", "0000002A.seg", "0000002a", "+000002a.seg", "0000002a.seg~", "10000002a.seg"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_files_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path(), BUFFERED, 2).unwrap();
        let in_use = files.create(SegmentId(1), 0).unwrap();
        for id in 2..6 {
            files.create(SegmentId(id), 0).unwrap();
        }
        let cache = files.cache.lock();
        let mut open = cache.open.keys().copied().collect::<Vec<_>>();
        open.sort();
        assert_eq!(open, [SegmentId(1), SegmentId(5)]);
        drop((cache, in_use));
    }

    #[test]
    fn a_deleted_file_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path(), BUFFERED, 2).unwrap();
        let file = files.create(SegmentId(1), 0).unwrap();
        files.delete(SegmentId(1)).unwrap();
        assert!(files.cached(SegmentId(1)).is_none());
        // A concurrent reader opened the file before the deletion, and inserts it only now.
        assert_eq!(files.keep(SegmentId(1), file).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(files.cached(SegmentId(1)).is_none());
    }
    #[test]
    fn a_shortage_of_descriptors_or_memory_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path(), BUFFERED, 2).unwrap();
        let shortage = || *files.open_errors.lock() = [libc::EMFILE, libc::ENFILE, libc::ENOMEM].repeat(2);
        shortage();
        drop(files.create(SegmentId(1), 0).unwrap());
        files.cache.lock().open.clear();
        shortage();
        drop(files.open(SegmentId(1)).unwrap());
        *files.open_errors.lock() = vec![libc::EIO];
        files.cache.lock().open.clear();
        assert_eq!(files.open(SegmentId(1)).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
