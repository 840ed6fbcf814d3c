//! The files of retained memory, which outlive the server: one for each pool, on a file system in RAM.
//!
//! **Names.** The file of a pool in Ceph is `forebay-POOL`. A copy of a directory has the same pool id, so
//! the file of a pool in a directory is `forebay-POOL-DEVICE-INODE-PATH`: device and inode of the superblock
//! file, and a checksum of the directory's path. The superblock file names the memory, is overwritten in
//! place, and moves with the pool when the directory is renamed; a copy of the directory has another one.
//!
//! **Whose memory it is.** A memory with the id that the superblock names is used if its name has
//!
//! - the same device and inode, whatever the path: the directory was renamed;
//! - the same inode and path on another device: the file system was mounted again, and the kernel gave it
//!   another number. A snapshot of a file system that is mounted in another place has another path;
//! - only the pool id: an earlier release made it. It is not used if the superblock file was created after
//!   the memory: the directory is a copy then. A snapshot of a file system keeps the times of its files, so
//!   it is not distinguished from the original. The file keeps its name, since an upgrade that fails returns
//!   the pool to a process of that release.
//!
//! All other files belong to other directories, and are neither opened nor changed. A pool for which there is
//! no memory gets a new file.

use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use forebay_engine::PoolId;
use forebay_format::crc32c;
use forebay_retained::{Memory, SharedFile};

/// Beginning of the names of the files.
pub(super) const FILE_PREFIX: &str = "forebay-";

/// The identity of a directory with a pool on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolDirectory {
    at: Location,
    /// When the superblock file was created, if the file system states it.
    created: Option<SystemTime>,
}

/// The part of a file's name that identifies a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    device: u64,
    inode: u64,
    /// CRC-32C of the path.
    path: u32,
}

impl PoolDirectory {
    /// The directory `path`, whose superblock file has this status.
    pub fn new(path: &Path, superblock: &Metadata) -> PoolDirectory {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = crc32c(path.as_os_str().as_bytes());
        let at = Location { device: superblock.dev(), inode: superblock.ino(), path };
        PoolDirectory { at, created: superblock.created().ok() }
    }

    /// Whether memory that was created then, by an earlier release, can be that of this directory.
    fn may_have_used(&self, memory_created: SystemTime) -> bool {
        self.created.is_none_or(|created| created <= memory_created)
    }
}

impl Location {
    fn name(&self, pool: PoolId) -> String {
        let Location { device, inode, path } = self;
        format!("{}-{device:x}-{inode}-{path:08x}", short_name(pool))
    }

    /// The location in the name of a file of this pool.
    fn parse(name: &str, pool: PoolId) -> Option<Location> {
        let mut parts = name.strip_prefix(&short_name(pool))?.strip_prefix('-')?.split('-');
        let device = u64::from_str_radix(parts.next()?, 16).ok()?;
        let inode = parts.next()?.parse().ok()?;
        let at = Location { device, inode, path: u32::from_str_radix(parts.next()?, 16).ok()? };
        (at.name(pool) == name).then_some(at)
    }

    fn is_same_file(&self, other: &Location) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    fn may_be_mounted_again(&self, other: &Location) -> bool {
        (self.inode, self.path) == (other.inode, other.path)
    }
}

/// The name without a directory.
fn short_name(pool: PoolId) -> String {
    format!("{FILE_PREFIX}{pool}")
}

/// A file to open, and the name that it gets then.
#[derive(Debug, PartialEq, Eq)]
struct Selected {
    path: PathBuf,
    rename_to: Option<PathBuf>,
}

impl Selected {
    fn as_is(path: PathBuf) -> Selected {
        Selected { path, rename_to: None }
    }
}

/// Selects the file in `files` for a pool in the directory `of` whose superblock names the memory `id`.
fn select(files: &Path, pool: PoolId, id: u64, of: &PoolDirectory) -> Selected {
    let own = files.join(of.at.name(pool));
    let peek = |path: &Path| SharedFile::peek(path).filter(|found| (found.pool, found.id) == (pool.0, id));
    if peek(&own).is_some() {
        return Selected::as_is(own);
    }
    let mut renamed = None;
    let mut foreign = None;
    for (path, at) in files_of(files, pool).into_iter().filter(|(path, _)| *path != own) {
        let is_named = peek(&path).is_some();
        if is_named && (of.at.is_same_file(&at) || of.at.may_be_mounted_again(&at)) {
            return Selected { path, rename_to: Some(own) };
        } else if of.at.is_same_file(&at) && SharedFile::peek(&path).is_some() {
            renamed = Some(path);
        } else if is_named {
            foreign = Some(path);
        }
    }
    let short = files.join(short_name(pool));
    if let Some(found) = peek(&short) {
        if of.may_have_used(found.created) {
            return Selected::as_is(short);
        }
        foreign = Some(short);
    }
    if let Some(memory) = foreign {
        let memory = memory.display();
        tracing::warn!(%memory, "this pool is a copy: the retained memory of its original is left to that");
    }
    match renamed {
        // Its contents are of no use to any pool, and would stay.
        Some(path) if !own.exists() => Selected { path, rename_to: Some(own) },
        _ => Selected::as_is(own),
    }
}

/// The files of a pool's copies in a directory; none if it cannot be read.
fn files_of(directory: &Path, pool: PoolId) -> Vec<(PathBuf, Location)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let located = entries.filter_map(|entry| {
        let at = Location::parse(entry.file_name().to_str()?, pool)?;
        Some((entry.path(), at))
    });
    located.collect()
}

/// The directory of the files, and the file of the pool that is open.
#[derive(Default)]
pub(super) struct MemoryFiles {
    directory: Option<PathBuf>,
    /// The directory of the pool; `None` if it is in Ceph.
    pool_directory: Mutex<Option<PoolDirectory>>,
    open: Mutex<Option<Arc<SharedFile>>>,
}

impl MemoryFiles {
    /// Files in `directory`.
    pub fn in_directory(directory: &Path) -> MemoryFiles {
        MemoryFiles { directory: Some(directory.to_owned()), ..MemoryFiles::default() }
    }

    /// The next pool that is opened is in this directory; `None`: in Ceph.
    pub fn set_pool_directory(&self, directory: Option<PoolDirectory>) {
        *self.pool_directory.lock().unwrap_or_else(PoisonError::into_inner) = directory;
    }

    /// The memory of a pool, of at most `limit` bytes; `id` is that of the memory that its superblock names.
    /// `None` if this process retains nothing.
    ///
    /// # Errors
    /// The file cannot be created or opened, or another server has it open.
    pub fn open(&self, pool: PoolId, id: u64, limit: u64) -> io::Result<Option<Arc<dyn Memory>>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let of = *self.pool_directory.lock().unwrap_or_else(PoisonError::into_inner);
        let Selected { path, rename_to } = match of {
            Some(of) => select(directory, pool, id, &of),
            None => Selected::as_is(directory.join(short_name(pool))),
        };
        let mut file = SharedFile::open(&path, limit).map_err(|e| {
            let why = "use a directory on tmpfs that the server can write, with --memory-dir";
            io::Error::new(e.kind(), format!("{}: {e}; {why}", path.display()))
        })?;
        // Only with its lock: no other server uses it.
        if let Some(to) = rename_to {
            file.rename(&to)?;
        }
        let file = Arc::new(file);
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(file.clone());
        Ok(Some(file))
    }

    /// Lets another opening use the file. The pool was closed, so it does not change it any more.
    pub fn release(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(file) = open
            && let Err(e) = file.unlock()
        {
            tracing::warn!("cannot release the file of the retained memory: {e}");
        }
    }

    /// Removes the file of a pool that was closed and needs nothing from it.
    pub fn remove(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(file) = open
            && let Err(e) = file.remove()
        {
            tracing::warn!("cannot remove the file of the retained memory: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_retained::{Identity, Retained};

    use super::*;

    const POOL: PoolId = PoolId([0xab; 16]);
    const LIMIT: u64 = 8 << 20;
    const HERE: PoolDirectory =
        PoolDirectory { at: Location { device: 0xfd02, inode: 77, path: 0x1234 }, created: None };

    fn files() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    /// Makes the file of a memory.
    fn memory(path: &Path, id: u64) {
        let file = Arc::new(SharedFile::open(path, LIMIT).unwrap());
        let identity = Identity { pool: POOL.0, boot: [1; 16] };
        Retained::create(file, &identity, id, LIMIT).unwrap();
    }

    fn at(change: impl FnOnce(&mut Location)) -> PoolDirectory {
        let mut directory = HERE;
        change(&mut directory.at);
        directory
    }

    #[test]
    fn names_state_the_location() {
        let name = HERE.at.name(POOL);
        assert_eq!(name, format!("forebay-{}-fd02-77-00001234", "ab".repeat(16)));
        assert_eq!(Location::parse(&name, POOL), Some(HERE.at));
        for other in
            ["forebay-test-x", &short_name(POOL), &format!("{name}-1"), &name.replace("-77-", "-077-")]
        {
            assert_eq!(Location::parse(other, POOL), None, "{other}");
        }
        assert_eq!(Location::parse(&name, PoolId([1; 16])), None);
    }

    #[test]
    fn the_directory_is_identified_by_its_superblock_file() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "").unwrap();
        std::fs::copy(&a, &b).unwrap();
        let of = |file: &Path| PoolDirectory::new(dir.path(), &std::fs::metadata(file).unwrap());
        assert_eq!(of(&a), of(&a));
        assert!(!of(&a).at.is_same_file(&of(&b).at));
        let c = dir.path().join("c");
        let before = of(&a);
        std::fs::rename(&a, &c).unwrap();
        assert_eq!(of(&c), before);
    }

    #[test]
    fn memory_is_found_after_a_rename_and_after_another_mount() {
        for then in [at(|it| it.path = 9), at(|it| it.device = 0xfd07)] {
            let dir = files();
            let before = dir.path().join(HERE.at.name(POOL));
            let after = dir.path().join(then.at.name(POOL));
            memory(&before, 5);
            let expected = Selected { path: before.clone(), rename_to: Some(after.clone()) };
            assert_eq!(select(dir.path(), POOL, 5, &then), expected);
            let opened = MemoryFiles::in_directory(dir.path());
            opened.set_pool_directory(Some(then));
            opened.open(POOL, 5, LIMIT).unwrap();
            assert!(after.exists() && !before.exists());
            assert_eq!(SharedFile::peek(&after).unwrap().id, 5);
            opened.remove();
            assert!(!after.exists());
        }
    }

    #[test]
    fn memory_of_another_directory_is_neither_used_nor_changed() {
        let others = [
            at(|it| it.inode = 78),
            // The same file system, copied as a whole.
            at(|it| (it.device, it.path) = (0xfd07, 9)),
        ];
        for other in others {
            let dir = files();
            let original = dir.path().join(HERE.at.name(POOL));
            memory(&original, 5);
            let own = dir.path().join(other.at.name(POOL));
            assert_eq!(select(dir.path(), POOL, 5, &other), Selected::as_is(own));
            // Also while the original is open.
            let _held = SharedFile::open(&original, LIMIT).unwrap();
            let copy = MemoryFiles::in_directory(dir.path());
            copy.set_pool_directory(Some(other));
            copy.open(POOL, 5, LIMIT).unwrap();
            copy.remove();
            assert_eq!(SharedFile::peek(&original).unwrap().id, 5);
        }
    }

    #[test]
    fn memory_of_an_earlier_release_is_used_unless_the_directory_is_a_copy() {
        let dir = files();
        let short = dir.path().join(short_name(POOL));
        memory(&short, 5);
        let created = SharedFile::peek(&short).unwrap().created;
        let (second, own) = (Duration::from_secs(1), Selected::as_is(dir.path().join(HERE.at.name(POOL))));
        let select = |id, created| select(dir.path(), POOL, id, &PoolDirectory { created, ..HERE });
        for original in [None, Some(created), Some(created - second)] {
            assert_eq!(select(5, original), Selected::as_is(short.clone()));
        }
        assert_eq!(select(5, Some(created + second)), own);
        assert_eq!(select(6, Some(created - second)), own, "a copy from before the memory was made");
        assert_eq!(select(0, None), own);
    }

    #[test]
    fn the_memory_that_the_superblock_names_is_preferred() {
        let dir = files();
        let (own, short) = (dir.path().join(HERE.at.name(POOL)), dir.path().join(short_name(POOL)));
        memory(&own, 4);
        memory(&short, 5);
        assert_eq!(select(dir.path(), POOL, 5, &HERE), Selected::as_is(short));
        assert_eq!(select(dir.path(), POOL, 4, &HERE), Selected::as_is(own.clone()));
        assert_eq!(select(dir.path(), POOL, 6, &HERE), Selected::as_is(own.clone()));
        // A file that cannot be opened is an error, not a reason to use another one.
        std::fs::remove_file(&own).unwrap();
        std::fs::create_dir(&own).unwrap();
        assert_eq!(select(dir.path(), POOL, 6, &HERE), Selected::as_is(own));
    }

    #[test]
    fn stale_memory_of_a_renamed_directory_is_replaced() {
        let dir = files();
        let before = dir.path().join(HERE.at.name(POOL));
        memory(&before, 4);
        let then = at(|it| it.path = 9);
        let rename_to = Some(dir.path().join(then.at.name(POOL)));
        assert_eq!(select(dir.path(), POOL, 5, &then), Selected { path: before, rename_to });
    }

    #[test]
    fn a_pool_in_ceph_has_the_short_name() {
        let dir = files();
        let opened = MemoryFiles::in_directory(dir.path());
        opened.open(POOL, 5, LIMIT).unwrap();
        assert!(dir.path().join(short_name(POOL)).exists());
    }
}
