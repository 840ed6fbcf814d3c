//! The files of retained memory, which outlive the server: one for each pool, on a file system in RAM. New
//! files are made in a directory that only this user can write; see [`Directories`].
//!
//! **Names.** The file of a pool in Ceph is `forebay-POOL`. A copy of a directory has the same pool id, so
//! the file of a pool in a directory is `forebay-POOL-DEVICE-INODE-PATH`: device and inode of the superblock
//! file, and a checksum of the directory's path. The superblock file names the memory, is overwritten in
//! place, and moves with the pool when the directory is renamed; a copy of the directory has another
//! superblock file.
//!
//! **Whose memory it is.** A memory with the id that the superblock names is used if its name has
//!
//! - the same device and inode, whatever the path: the directory was renamed;
//! - the same path: the file system was mounted again, and the kernel gave it another number, or the
//!   superblock file was restored. Recovery refuses the memory if the log is older;
//! - only the pool id: an earlier release made it. If the superblock file was created after the memory, the
//!   directory may be a copy. A snapshot of a file system keeps the times of its files, so it is not
//!   distinguished from the original. The file keeps its name, since an upgrade that fails returns the pool
//!   to a process of that release.
//!
//! If there is any other memory with this id, one of two things is the case: the directory is a copy, and the
//! memory belongs to the original; or the directory was moved in a way that is not recognised. If a server
//! has the memory open, the directory is a copy, and gets a new file. Otherwise the pool is not opened, since
//! opening it would lose acknowledged writes in the second case. The pool is not opened either if the file
//! that it would use cannot be read.
//!
//! **Files of other users** are never used, and have no effect, since any user can make files in a shared
//! directory. There is an exception: if such a file may be the memory that the superblock names, the pool is
//! not opened, because a server of another user has left acknowledged writes. It may be if root owns the
//! file, or if this process can read the file and finds the id of that memory.

use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use forebay_engine::PoolId;
use forebay_format::crc32c;
use forebay_retained::{Memory, Peeked, SharedFile};

use super::retained_directories::Directories;

/// The user id of root.
const ROOT: u32 = 0;
/// Beginning of the names of the files.
const FILE_PREFIX: &str = "forebay-";

/// The identity of a directory with a pool on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDirectory {
    at: Location,
    /// When the superblock file was created, if the file system states it.
    created: Option<SystemTime>,
}

/// The part of a file's name that identifies a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Device of the superblock file.
    pub device: u64,
    /// Inode of the superblock file.
    pub inode: u64,
    /// CRC-32C of the pool's path.
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

    /// The name of the file of a pool in this directory.
    pub fn file_name(&self, pool: PoolId) -> String {
        self.at.name(pool)
    }

    /// Whether memory that an earlier release created at this time can belong to this directory.
    fn may_have_used(&self, memory_created: SystemTime) -> bool {
        self.created.is_none_or(|created| created <= memory_created)
    }
}

impl Location {
    fn name(&self, pool: PoolId) -> String {
        let Location { device, inode, path } = self;
        format!("{}-{device:x}-{inode}-{path:08x}", short_name(pool))
    }

    /// The pool and the location in the name of a file.
    pub fn parse_name(name: &str) -> Option<(PoolId, Location)> {
        let pool = pool_of_name(name)?;
        Some((pool, Location::parse(name, pool)?))
    }

    /// The location in the name of a file of this pool.
    fn parse(name: &str, pool: PoolId) -> Option<Location> {
        let mut parts = name.strip_prefix(&short_name(pool))?.strip_prefix('-')?.split('-');
        let device = u64::from_str_radix(parts.next()?, 16).ok()?;
        let inode = parts.next()?.parse().ok()?;
        let at = Location { device, inode, path: u32::from_str_radix(parts.next()?, 16).ok()? };
        (at.name(pool) == name).then_some(at)
    }

    /// Whether both belong to the same superblock file, or to the same path.
    pub fn is_of(&self, directory: &PoolDirectory) -> bool {
        self.is_same_file(&directory.at) || self.path == directory.at.path
    }

    fn is_same_file(&self, other: &Location) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// The file name without the part for a directory.
pub fn short_name(pool: PoolId) -> String {
    format!("{FILE_PREFIX}{pool}")
}

/// The pool in the name of a file, with or without a directory.
pub fn pool_of_name(name: &str) -> Option<PoolId> {
    let digits = name.strip_prefix(FILE_PREFIX)?.split('-').next()?;
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(|id| PoolId(id.to_be_bytes()))
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

/// The search for the memory that a superblock names.
struct Search<'a> {
    directories: &'a Directories,
    pool: PoolId,
    /// Id of the memory; 0 if the superblock names none.
    id: u64,
}

impl Search<'_> {
    /// The identity of the memory in a file, if the superblock names this memory. `None` if it does not, or
    /// if the file is ignored because it belongs to another user (see `is_without_effect`).
    fn named(&self, path: &Path) -> io::Result<Option<Peeked>> {
        if self.is_without_effect(path)? {
            return Ok(None);
        }
        let found = SharedFile::peek(path)?;
        Ok(found.filter(|found| (found.pool, found.id) == (self.pool.0, self.id)))
    }

    /// Whether a file belongs to another user, and cannot be the memory that the superblock names.
    fn is_without_effect(&self, path: &Path) -> io::Result<bool> {
        let Some(owner) = SharedFile::other_owner(path)? else { return Ok(false) };
        // Only the servers of a pool know its id.
        let states_id =
            || SharedFile::examine(path).is_ok_and(|found| found.memory == Some((self.pool.0, self.id)));
        let may_be_named = self.id != 0 && (owner == ROOT || states_id());
        Ok(!may_be_named)
    }

    /// The files with this name, of which that in the directory for new files is the first.
    fn paths(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        self.directories.all().map(|directory| directory.join(name)).collect::<Vec<_>>().into_iter()
    }

    /// The file with this name whose memory the superblock names. A file that cannot be read is selected as
    /// well, so that opening it reports why.
    fn find(&self, name: &str) -> Option<(PathBuf, io::Result<Peeked>)> {
        self.paths(name).find_map(|path| self.named(&path).transpose().map(|found| (path, found)))
    }

    /// The file with this name that is overwritten, or made, if no memory is found.
    fn default(&self, name: &str) -> PathBuf {
        let is_usable = |path: &PathBuf| {
            std::fs::symlink_metadata(path).is_ok() && !self.is_without_effect(path).unwrap_or(false)
        };
        self.paths(name).find(is_usable).unwrap_or_else(|| self.directories.own.join(name))
    }

    /// The files of the pool whose names state a location.
    fn located(&self) -> io::Result<Vec<(PathBuf, Location)>> {
        let mut files = Vec::new();
        for directory in self.directories.all() {
            for entry in std::fs::read_dir(directory).map_err(|e| unusable(directory, &e))? {
                let entry = entry.map_err(|e| unusable(directory, &e))?;
                let at = entry.file_name().to_str().and_then(|name| Location::parse(name, self.pool));
                let Some(at) = at else { continue };
                if !self.is_without_effect(&entry.path())? {
                    files.push((entry.path(), at));
                }
            }
        }
        Ok(files)
    }

    /// Selects the file for a pool in Ceph.
    fn select_short(&self) -> Selected {
        let short = short_name(self.pool);
        let found = self.find(&short).map(|(path, _)| path);
        Selected::as_is(found.unwrap_or_else(|| self.default(&short)))
    }

    /// Selects the file for a pool in the directory `of`.
    ///
    /// # Errors
    /// The memory may be that of another directory, or the files cannot be listed.
    fn select(&self, of: &PoolDirectory) -> io::Result<Selected> {
        let name = of.at.name(self.pool);
        if let Some((path, _)) = self.find(&name) {
            return Ok(Selected::as_is(path));
        }
        let own = self.default(&name);
        let renamed = |path| Selected { path, rename_to: Some(own.clone()) };
        let (mut moved, mut stale, mut foreign) = (None, None, None);
        for (path, at) in self.located()?.into_iter().filter(|(_, at)| *at != of.at) {
            let (is_same_file, is_same_path) = (of.at.is_same_file(&at), of.at.path == at.path);
            match self.named(&path) {
                Ok(Some(_)) if is_same_file => return Ok(renamed(path)),
                Ok(None) if is_same_file && SharedFile::peek(&path)?.is_some() => stale = Some(path),
                Ok(Some(_)) if !is_same_path => foreign = Some(path),
                Ok(Some(_)) | Err(_) if is_same_file || is_same_path => moved = Some(path),
                _ => {}
            }
        }
        if let Some(path) = moved {
            return Ok(renamed(path));
        }
        match self.find(&short_name(self.pool)) {
            Some((short, Ok(found))) if !of.may_have_used(found.created) => foreign = Some(short),
            Some((short, _)) => return Ok(Selected::as_is(short)),
            None => {}
        }
        if let Some(memory) = foreign {
            leave(&memory, &own)?;
        }
        match stale {
            // The contents of the file are of no use to any pool, and would never be removed.
            Some(path) if !own.exists() => Ok(renamed(path)),
            _ => Ok(Selected::as_is(own)),
        }
    }
}

/// Leaves the memory that a pool names to another directory.
///
/// # Errors
/// No server has it open, so it may be the memory of this directory.
fn leave(memory: &Path, own: &Path) -> io::Result<()> {
    if SharedFile::is_in_use(memory)? {
        let memory = memory.display();
        tracing::warn!(%memory, "this pool is a copy: the retained memory of its original is left to that");
        return Ok(());
    }
    let (memory, own) = (memory.display(), own.display());
    let why = format!(
        "{memory} has acknowledged writes, but of another directory: if this pool was moved, rename the file \
         to {own}; if it is a copy, start it once with another --memory-dir"
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
}

fn unusable(path: &Path, e: &io::Error) -> io::Error {
    with_remedy(&io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// Adds what to do to an error that names its file.
fn with_remedy(e: &io::Error) -> io::Error {
    let remedy = "use a directory on tmpfs that the server can write, with --memory-dir";
    io::Error::new(e.kind(), format!("{e}; {remedy}"))
}

/// The configured directory of the files, and the file of the pool that is open.
#[derive(Default)]
pub(super) struct MemoryFiles {
    directory: Option<PathBuf>,
    /// The directory of the pool; `None` if it is in Ceph.
    pool_directory: Mutex<Option<PoolDirectory>>,
    open: Mutex<Option<Arc<SharedFile>>>,
}

impl MemoryFiles {
    /// The files of retained memory in `directory`.
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
        let directories = &Directories::open(directory).map_err(|e| unusable(directory, &e))?;
        let search = Search { directories, pool, id };
        let Selected { path, rename_to } = match of {
            Some(of) => search.select(&of)?,
            None => search.select_short(),
        };
        let mut file = SharedFile::open(&path, limit).map_err(|e| match e.kind() {
            // The file is refused. With another directory, acknowledged writes in it would be lost.
            io::ErrorKind::PermissionDenied => e,
            _ => with_remedy(&e),
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
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use forebay_retained::{Identity, Retained, effective_user};

    use super::*;

    const POOL: PoolId = PoolId([0xab; 16]);
    const LIMIT: u64 = 8 << 20;
    const HERE: PoolDirectory =
        PoolDirectory { at: Location { device: 0xfd02, inode: 77, path: 0x1234 }, created: None };

    fn files() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    fn select(files: &Path, pool: PoolId, id: u64, of: &PoolDirectory) -> io::Result<Selected> {
        let directories = &Directories::open(files)?;
        Search { directories, pool, id }.select(of)
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
        assert_eq!(Location::parse_name(&name), Some((POOL, HERE.at)));
        assert_eq!((pool_of_name(&name), pool_of_name(&short_name(POOL))), (Some(POOL), Some(POOL)));
        assert_eq!((Location::parse_name(&short_name(POOL)), pool_of_name("forebay-test-x")), (None, None));
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
    fn memory_is_found_after_a_rename_another_mount_and_a_restored_superblock() {
        for then in [at(|it| it.path = 9), at(|it| it.device = 0xfd07), at(|it| it.inode = 78)] {
            let dir = files();
            let before = dir.path().join(HERE.at.name(POOL));
            let after = dir.path().join(then.at.name(POOL));
            memory(&before, 5);
            let expected = Selected { path: before.clone(), rename_to: Some(after.clone()) };
            assert_eq!(select(dir.path(), POOL, 5, &then).unwrap(), expected);
            let opened = MemoryFiles::in_directory(dir.path());
            opened.set_pool_directory(Some(then));
            opened.open(POOL, 5, LIMIT).unwrap();
            assert!(after.exists() && !before.exists());
            assert_eq!(SharedFile::peek(&after).unwrap().unwrap().id, 5);
            opened.remove();
            assert!(!after.exists());
        }
    }

    #[test]
    fn memory_of_another_directory_is_neither_used_nor_changed() {
        let others = [
            at(|it| (it.inode, it.path) = (78, 9)),
            // The file system was copied as a whole.
            at(|it| (it.device, it.path) = (0xfd07, 9)),
        ];
        for other in others {
            let dir = files();
            let original = dir.path().join(HERE.at.name(POOL));
            memory(&original, 5);
            let own = dir.path().join(other.at.name(POOL));
            // The file may belong to a directory that was moved.
            let copy = MemoryFiles::in_directory(dir.path());
            copy.set_pool_directory(Some(other));
            let refused = copy.open(POOL, 5, LIMIT).err().unwrap().to_string();
            assert!(refused.contains(original.to_str().unwrap()) && refused.contains(own.to_str().unwrap()));
            assert!(!own.exists());
            let held = SharedFile::open(&original, LIMIT).unwrap();
            assert_eq!(select(dir.path(), POOL, 5, &other).unwrap(), Selected::as_is(own.clone()));
            copy.open(POOL, 5, LIMIT).unwrap();
            copy.remove();
            drop(held);
            assert_eq!(SharedFile::peek(&original).unwrap().unwrap().id, 5);
        }
    }

    /// A pool must not be opened without memory that exists.
    #[test]
    fn memory_that_cannot_be_read_is_selected() {
        for located in [HERE.at.name(POOL), at(|it| it.path = 9).at.name(POOL), short_name(POOL)] {
            let dir = files();
            let path = dir.path().join(located);
            std::fs::create_dir(&path).unwrap();
            assert_eq!(select(dir.path(), POOL, 5, &HERE).unwrap().path, path);
        }
        assert!(select(Path::new("/dev/shm/does/not/exist"), POOL, 5, &HERE).is_err());
    }

    #[test]
    fn memory_of_an_earlier_release_is_used_unless_the_directory_is_a_copy() {
        let dir = files();
        let short = dir.path().join(short_name(POOL));
        memory(&short, 5);
        let created = SharedFile::peek(&short).unwrap().unwrap().created;
        let (second, own) = (Duration::from_secs(1), Selected::as_is(dir.path().join(HERE.at.name(POOL))));
        let select =
            |id, created| super::tests::select(dir.path(), POOL, id, &PoolDirectory { created, ..HERE });
        for original in [None, Some(created), Some(created - second)] {
            assert_eq!(select(5, original).unwrap(), Selected::as_is(short.clone()));
        }
        assert!(select(5, Some(created + second)).is_err(), "it may be a copy");
        assert_eq!(select(6, Some(created - second)).unwrap(), own, "a copy from before the memory was made");
        assert_eq!(select(0, None).unwrap(), own);
    }

    #[test]
    fn the_memory_that_the_superblock_names_is_preferred() {
        let dir = files();
        let (own, short) = (dir.path().join(HERE.at.name(POOL)), dir.path().join(short_name(POOL)));
        memory(&own, 4);
        memory(&short, 5);
        assert_eq!(select(dir.path(), POOL, 5, &HERE).unwrap(), Selected::as_is(short));
        assert_eq!(select(dir.path(), POOL, 4, &HERE).unwrap(), Selected::as_is(own.clone()));
        assert_eq!(select(dir.path(), POOL, 6, &HERE).unwrap(), Selected::as_is(own.clone()));
        // A file that cannot be opened is an error, not a reason to use another file.
        std::fs::remove_file(&own).unwrap();
        std::fs::create_dir(&own).unwrap();
        assert_eq!(select(dir.path(), POOL, 6, &HERE).unwrap(), Selected::as_is(own));
    }

    #[test]
    fn stale_memory_of_a_renamed_directory_is_replaced() {
        let dir = files();
        let before = dir.path().join(HERE.at.name(POOL));
        memory(&before, 4);
        let then = at(|it| it.path = 9);
        let rename_to = Some(dir.path().join(then.at.name(POOL)));
        assert_eq!(select(dir.path(), POOL, 5, &then).unwrap(), Selected { path: before, rename_to });
    }

    #[test]
    fn a_pool_in_ceph_has_the_short_name() {
        let dir = files();
        let opened = MemoryFiles::in_directory(dir.path());
        opened.open(POOL, 5, LIMIT).unwrap();
        assert!(dir.path().join(short_name(POOL)).exists());
    }

    /// A directory as `/dev/shm` is, the directory of this user in it, and the names of the pool's files.
    fn shared() -> (tempfile::TempDir, PathBuf, [String; 3]) {
        let dir = files();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let own = dir.path().join(format!("forebay-{}", effective_user()));
        let names = [HERE.at.name(POOL), at(|it| it.path = 9).at.name(POOL), short_name(POOL)];
        (dir, own, names)
    }

    fn give_away(path: &Path) {
        std::os::unix::fs::lchown(path, Some(12_345), None).unwrap();
    }

    #[test]
    fn files_of_other_users_in_a_shared_directory_have_no_effect() {
        if effective_user() != 0 {
            return println!("skipped: only root can make files of another user");
        }
        let make: [&dyn Fn(&Path); 4] = [
            &|path| std::fs::write(path, "").unwrap(),
            &|path| memory(path, 4),
            &|path| std::fs::create_dir(path).unwrap(),
            &|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
        ];
        for (make, id) in make.iter().flat_map(|make| [(make, 0), (make, 5)]) {
            let (dir, own, names) = shared();
            for name in &names {
                make(&dir.path().join(name));
                give_away(&dir.path().join(name));
            }
            for of in [Some(HERE), None] {
                let opened = MemoryFiles::in_directory(dir.path());
                opened.set_pool_directory(of);
                opened.open(POOL, id, LIMIT).unwrap();
                let name = if of.is_some() { &names[0] } else { &names[2] };
                assert!(own.join(name).exists(), "{name}");
            }
        }
    }

    #[test]
    fn memory_that_a_server_of_another_user_left_is_neither_used_nor_passed_over() {
        if effective_user() != 0 {
            return println!("skipped: only root can make files of another user");
        }
        for name in shared().2 {
            let (dir, ..) = shared();
            let path = dir.path().join(name);
            memory(&path, 5);
            give_away(&path);
            let opened = MemoryFiles::in_directory(dir.path());
            opened.set_pool_directory(Some(HERE));
            let refused = opened.open(POOL, 5, LIMIT).err().unwrap().to_string();
            assert!(refused.contains("start the server as user 12345"), "{refused}");
            assert!(!refused.contains("remove") && !refused.contains("--memory-dir"), "{refused}");
            assert_eq!(SharedFile::examine(&path).unwrap().memory, Some((POOL.0, 5)));
        }
    }

    #[test]
    fn memory_of_an_earlier_release_in_the_shared_directory_is_used_until_it_is_removed() {
        let (dir, own, names) = shared();
        for name in &names {
            let path = dir.path().join(name);
            memory(&path, 5);
            let opened = MemoryFiles::in_directory(dir.path());
            opened.set_pool_directory(Some(HERE));
            opened.open(POOL, 5, LIMIT).unwrap();
            // The name of the second file contains another path, so the file is renamed.
            let used = if *name == names[1] { own.join(&names[0]) } else { path };
            assert!(SharedFile::is_in_use(&used).unwrap(), "{name}");
            opened.remove();
            assert!(!used.exists());
            opened.open(POOL, 6, LIMIT).unwrap();
            assert!(own.join(&names[0]).exists());
            opened.remove();
        }
        // The file that the superblock names is preferred, in any directory.
        for (ours, theirs) in [(5, 4), (4, 5)] {
            memory(&own.join(&names[0]), ours);
            memory(&dir.path().join(&names[0]), theirs);
            let expected = if ours == 5 { own.join(&names[0]) } else { dir.path().join(&names[0]) };
            assert_eq!(select(dir.path(), POOL, 5, &HERE).unwrap(), Selected::as_is(expected));
        }
    }
}
