//! The files of retained memory in a directory, for administrators: to which pool each belongs, and whether
//! it is needed.
//!
//! A name has the device and inode of the pool's superblock file, not its path. So the path is searched: in
//! directories that are known to have pools, then on the mounted file system with this device. The search is
//! bounded, and skips what this user cannot read: a pool that was not found may exist.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_engine::PoolId;
use forebay_format::{BLOCK, Superblock};
use forebay_host::{Location, PoolDirectory, of_all_users, pool_of_name, short_name};
use forebay_retained::{Examined, SharedFile};
use forebay_store::SUPERBLOCK;
use serde::Serialize;

use crate::config::{ConfigFile, DEFAULT_CONFIG};

/// Bounds of the search on one file system.
const MAX_DEPTH: usize = 6;
const MAX_DIRECTORIES: usize = 50_000;

/// A file of retained memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryFile {
    /// Path of the file.
    pub file: PathBuf,
    /// Id of the pool to which the file belongs.
    pub pool: String,
    /// Bytes of RAM that the file occupies.
    pub size_bytes: u64,
    /// Data directory of the file's pool; `None` if it was not found.
    pub directory: Option<PathBuf>,
    /// How the file is used.
    pub state: FileState,
    /// What an administrator should do with the file.
    pub advice: String,
}

/// How a file of retained memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileState {
    /// A server has the file open.
    InUse,
    /// The file's pool needs the file.
    Needed,
    /// The file's pool does not need the file any more.
    Unneeded,
    /// The file's pool was not found.
    NoPool,
    /// The file belongs to a pool in Ceph, or was made by an earlier release.
    OtherPlace,
    /// The file cannot be read.
    Unreadable,
}

impl FileState {
    /// Text of the state in a table.
    pub fn text(self) -> &'static str {
        match self {
            FileState::InUse => "in use",
            FileState::Needed => "needed",
            FileState::Unneeded => "not needed",
            FileState::NoPool => "no pool found",
            FileState::OtherPlace => "of a pool in Ceph, or of an earlier release",
            FileState::Unreadable => "cannot be read",
        }
    }
}

/// The files in a directory, by name. `data` may be the directory of a pool.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn memory_files(directory: &Path, data: &Path) -> io::Result<Vec<MemoryFile>> {
    let mut places = Places::known(data);
    let mut files = Vec::new();
    for directory in of_all_users(directory)? {
        let entries = match std::fs::read_dir(&directory) {
            // The files belong to a user whose directory this user cannot read.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                files.push(unreadable(directory, &e));
                continue;
            }
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok().filter(|name| pool_of_name(name).is_some()));
        }
        names.sort();
        files.extend(names.iter().filter_map(|name| described(&directory, name, &mut places)));
    }
    Ok(files)
}

/// A directory of files that cannot be listed.
fn unreadable(file: PathBuf, why: &io::Error) -> MemoryFile {
    let advice = format!("it cannot be read ({why}): run this command as root");
    let (pool, state) = ("unknown".to_owned(), FileState::Unreadable);
    MemoryFile { file, pool, size_bytes: 0, directory: None, state, advice }
}

/// RAM that the file of a pool in a directory occupies already.
pub(in crate::serve) fn own_bytes(files: &Path, directory: &Path) -> u64 {
    let path = directory.join(SUPERBLOCK);
    let (Ok(status), Some(superblock)) = (std::fs::metadata(&path), superblock_of(directory)) else {
        return 0;
    };
    let of = PoolDirectory::new(directory, &status);
    let is_own = |name: &str, _: &Examined| match Location::parse_name(name) {
        Some((pool, at)) => pool == superblock.pool && at.is_of(&of),
        None => name == short_name(superblock.pool),
    };
    occupied(files, is_own)
}

/// RAM that is occupied by files of pools in Ceph that no server has open, such as the file of a killed
/// server.
pub(in crate::serve) fn unused_bytes_of_ceph(files: &Path) -> u64 {
    let is_short = |name: &str| pool_of_name(name).is_some_and(|pool| name == short_name(pool));
    occupied(files, |name, found| is_short(name) && !found.is_in_use)
}

/// RAM that the files with wanted names occupy, in the directory and in the directories of users in it.
fn occupied(directory: &Path, wanted: impl Fn(&str, &Examined) -> bool) -> u64 {
    let directories = of_all_users(directory).unwrap_or_default();
    let entries = directories.iter().flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten());
    let bytes = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| pool_of_name(name).is_some())?;
        let found = SharedFile::examine(&entry.path()).ok()?;
        wanted(&name, &found).then_some(found.bytes)
    });
    bytes.sum()
}

/// The superblock of the pool in a directory; `None` if it cannot be read.
fn superblock_of(directory: &Path) -> Option<Superblock> {
    let bytes = std::fs::read(directory.join(SUPERBLOCK)).ok()?;
    Superblock::choose([bytes.get(..BLOCK), bytes.get(BLOCK..2 * BLOCK)]).ok()
}

fn described(directory: &Path, name: &str, places: &mut Places) -> Option<MemoryFile> {
    let pool = pool_of_name(name)?;
    let file = directory.join(name);
    let found = match SharedFile::examine(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        found => found,
    };
    let place = match Location::parse_name(name) {
        Some((_, at)) => places.find(pool, &at),
        None => places.known_with(pool),
    };
    let (state, advice) = judged(&file, name, found.as_ref(), place.as_deref());
    let size_bytes = found.map_or(0, |found| found.bytes);
    Some(MemoryFile { file, pool: pool.to_string(), size_bytes, directory: place, state, advice })
}

/// The state of a file, and what to do.
fn judged(
    file: &Path,
    name: &str,
    found: Result<&Examined, &io::Error>,
    place: Option<&Path>,
) -> (FileState, String) {
    let file = file.display();
    let found = match found {
        Err(e) => {
            let advice = format!("it cannot be read ({e}): run this command as root");
            return (FileState::Unreadable, advice);
        }
        Ok(found) => found,
    };
    if found.is_in_use {
        return (FileState::InUse, "nothing: a server has it open".into());
    }
    let Some(place) = place else {
        let Some((_, at)) = Location::parse_name(name) else {
            let advice = format!(
                "start the server of its pool: the file may hold acknowledged writes; it is of a pool in Ceph, or of an \
                 earlier release ('forebay inspect' prints the id of a pool); if that pool is gone: rm {file}"
            );
            return (FileState::OtherPlace, advice);
        };
        let advice = format!(
            "if its pool was removed: rm {file}; otherwise mount the file system of the pool, and start its server, since the \
             file may hold acknowledged writes (find MOUNTPOINT -xdev -inum {} finds its superblock file)",
            at.inode
        );
        return (FileState::NoPool, advice);
    };
    let shown = place.display();
    match (superblock_of(place), found.memory) {
        (Some(superblock), Some((pool, id))) if (superblock.pool.0, superblock.memory) == (pool, id) => {
            let advice = format!(
                "start the server of {shown}: the file may hold acknowledged writes, do not remove it"
            );
            (FileState::Needed, advice)
        }
        (Some(_), _) => {
            let advice =
                format!("rm {file}, or start the server of {shown}: that pool does not use the file");
            (FileState::Unneeded, advice)
        }
        (None, _) => {
            let advice = format!("do not remove it: the superblock in {shown} cannot be read");
            (FileState::Needed, advice)
        }
    }
}

/// The directories of pools.
struct Places {
    known: Vec<PathBuf>,
    /// The directories that were found on each file system, by the inode of their superblock file.
    searched: HashMap<u64, HashMap<u64, PathBuf>>,
}

impl Places {
    /// The directory `data`, and the directories in the configurations of services.
    fn known(data: &Path) -> Places {
        let configurations = Path::new(DEFAULT_CONFIG).parent().map(std::fs::read_dir);
        let entries = configurations.into_iter().flatten().flatten().flatten();
        let files =
            entries.map(|entry| entry.path()).filter(|path| path.extension() == Some("toml".as_ref()));
        let configured = files.filter_map(|path| ConfigFile::load(&path).ok()?.data);
        let known = std::iter::once(data.to_owned()).chain(configured);
        Places {
            known: known.filter_map(|path| path.canonicalize().ok()).collect(),
            searched: HashMap::new(),
        }
    }

    /// The known directory with a pool.
    fn known_with(&self, pool: PoolId) -> Option<PathBuf> {
        self.known.iter().find(|path| superblock_of(path).is_some_and(|it| it.pool == pool)).cloned()
    }

    /// The directory of a pool at a location.
    fn find(&mut self, pool: PoolId, at: &Location) -> Option<PathBuf> {
        let is_at = |path: &&PathBuf| {
            let status = std::fs::metadata(path.join(SUPERBLOCK));
            status.is_ok_and(|status| at.is_of(&PoolDirectory::new(path, &status)))
        };
        // Another pool may have got the inode, or the path, since.
        let is_of_pool = |path: &PathBuf| superblock_of(path).is_none_or(|it| it.pool == pool);
        if let Some(path) = self.known.iter().filter(is_at).find(|path| is_of_pool(path)) {
            return Some(path.clone());
        }
        let searched = self.searched.entry(at.device).or_insert_with(|| search(at.device));
        searched.get(&at.inode).cloned().filter(is_of_pool)
    }
}

/// The directories with a superblock file on the file system with this device.
fn search(device: u64) -> HashMap<u64, PathBuf> {
    let is_on_it = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|status| status.dev() == device);
    let mounts = mount_points(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let mut queue: VecDeque<_> =
        mounts.into_iter().filter(|path| is_on_it(path)).map(|path| (path, 0)).collect();
    let (mut found, mut read) = (HashMap::new(), 0);
    while let Some((path, depth)) = queue.pop_front() {
        read += 1;
        if read > MAX_DIRECTORIES {
            break;
        }
        if let Ok(status) = std::fs::symlink_metadata(path.join(SUPERBLOCK))
            && status.dev() == device
            && status.is_file()
        {
            found.entry(status.ino()).or_insert_with(|| path.clone());
        }
        if depth == MAX_DEPTH {
            continue;
        }
        for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && is_on_it(&entry.path()) {
                queue.push_back((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// The mount points in a table of mounts (proc_pid_mountinfo(5)).
fn mount_points(table: &str) -> Vec<PathBuf> {
    let fields = table.lines().filter_map(|line| line.split(' ').nth(4));
    // Space, tab, newline and backslash are octal.
    let plain = |text: &str| {
        let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        escapes.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
    };
    fields.map(|field| PathBuf::from(plain(field))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_retained::{Identity, Retained};

    use super::*;

    const POOL: PoolId = PoolId([0xcd; 16]);

    fn pool_in(directory: &Path, memory: u64) {
        let superblock = Superblock {
            pool: POOL,
            generation: 1,
            epoch: 1,
            fingerprint_key: [0; 32],
            created_ms: 0,
            segment_bytes: 1 << 20,
            seq: 0,
            chain: 0,
            memory,
            boot: 0,
            blobs: Vec::new(),
            features: forebay_format::Features::default(),
        };
        let mut bytes = vec![0; BLOCK];
        bytes.extend_from_slice(&superblock.encode());
        std::fs::write(directory.join(SUPERBLOCK), bytes).unwrap();
    }

    /// The file of a memory, with the name for the pool in a directory.
    fn memory_of(files: &Path, directory: &Path, id: u64) -> (PathBuf, Arc<SharedFile>) {
        let status = std::fs::metadata(directory.join(SUPERBLOCK)).unwrap();
        let name = PoolDirectory::new(directory, &status).file_name(POOL);
        let path = files.join(name);
        let file = Arc::new(SharedFile::open(&path, 8 << 20).unwrap());
        let identity = Identity { pool: POOL.0, boot: [1; 16] };
        Retained::create(file.clone(), &identity, id, 8 << 20).unwrap();
        (path, file)
    }

    #[test]
    fn a_file_is_in_use_or_needed_or_not_or_of_no_pool() {
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = tempfile::tempdir().unwrap();
        let at = pool.path().canonicalize().unwrap();
        pool_in(&at, 5);
        let (path, held) = memory_of(files.path(), &at, 5);
        std::fs::write(files.path().join("forebay-other"), "").unwrap();
        let list = || {
            let all = memory_files(files.path(), &at).unwrap();
            assert_eq!(all.len(), 1, "{all:?}");
            all.into_iter().next().unwrap()
        };
        let found = list();
        assert_eq!(
            (&found.file, &found.directory, found.state),
            (&path, &Some(at.clone()), FileState::InUse)
        );
        assert!(found.size_bytes > 0 && found.pool == POOL.to_string());
        assert_eq!(own_bytes(files.path(), &at), found.size_bytes);
        drop(held);
        let needed = list();
        assert!(
            needed.state == FileState::Needed && needed.advice.contains("do not remove it"),
            "{needed:?}"
        );
        pool_in(&at, 6);
        assert_eq!(list().state, FileState::Unneeded);
        std::fs::remove_file(at.join(SUPERBLOCK)).unwrap();
        let gone = list();
        assert_eq!((gone.state, &gone.directory), (FileState::NoPool, &None));
        assert!(gone.advice.contains(&format!("rm {}", path.display())), "{gone:?}");
        assert_eq!(own_bytes(files.path(), &at), 0);
    }

    #[test]
    fn the_directory_of_a_pool_is_searched_on_its_file_system() {
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        // At a depth that the search reaches, on a file system of which all is readable.
        let pool = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = pool.path().join("pools/a");
        std::fs::create_dir_all(&at).unwrap();
        pool_in(&at, 5);
        drop(memory_of(files.path(), &at, 5));
        let found = memory_files(files.path(), Path::new("/none")).unwrap();
        assert_eq!((found[0].directory.as_deref(), found[0].state), (Some(&*at), FileState::Needed));
    }

    #[test]
    fn memory_of_a_pool_in_ceph_has_no_directory() {
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = files.path().join(short_name(POOL));
        let held = SharedFile::open(&path, 8 << 20).unwrap();
        assert_eq!(unused_bytes_of_ceph(files.path()), 0, "its server has it open");
        drop(held);
        let found = memory_files(files.path(), Path::new("/none")).unwrap();
        assert_eq!((found[0].state, &found[0].directory), (FileState::OtherPlace, &None));
    }

    #[test]
    fn mount_points_are_unescaped() {
        let table = "36 35 98:0 / /mnt/a\\040b rw - ext4 /dev/sda rw\nshort line\n";
        assert_eq!(mount_points(table), [PathBuf::from("/mnt/a b")]);
    }
}
