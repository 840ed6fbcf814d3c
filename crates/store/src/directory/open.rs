//! Opening a directory: checks whether it is a store or can become one, takes the lock, and probes the file
//! system. Some file systems and sandboxes accept a flag of open(2) or of a write only to fail later, so that
//! writes are probed too.
//!
//! A directory is written to only after it is known to be empty or a store; before the lock is held, only the
//! lock file is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::errors::store_error;
use crate::superblock::COPY_BYTES;
use crate::{IoBuf, Result, StoreError};

const LOCK: &str = "lock";
/// The file of the superblock in the directory of a pool.
pub const SUPERBLOCK: &str = "superblock";
const SEGMENTS: &str = "segments";
/// Name of the temporary file that is written at the start to detect which kinds of writes the file system
/// supports.
const PROBE: &str = "forebay.probe";

/// Bytes of the superblock file.
const SUPERBLOCK_BYTES: usize = 2 * COPY_BYTES;

/// The opened files of a store. The lock of the store is held until this value is dropped.
pub(super) struct OpenedFiles {
    pub(super) lock: Option<Lock>,
    pub(super) superblock: File,
    pub(super) segments: std::path::PathBuf,
    /// The file system supports `O_DIRECT`.
    pub(super) direct: bool,
    /// Writes to the files can be durable when they complete (`RWF_DSYNC`).
    pub(super) synced_writes: bool,
}

/// The held lock of a store. A writer that holds it has its process id in the lock file.
pub(super) struct Lock {
    file: File,
    exclusive: bool,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.exclusive {
            // On failure a stale process id remains, which is displayed only while another process holds the
            // lock.
            let _ = self.file.set_len(0);
        }
    }
}

/// Opens the store for writing; creates the directory if it is missing, and the store if the directory is
/// empty.
pub(super) fn open(dir: &Path, direct: bool) -> Result<OpenedFiles> {
    let what = || format!("opening the store {}", dir.display());
    create_durably(dir).map_err(|e| opening_error(what, &e))?;
    let known = is_store(dir)?;
    let lock = Lock::exclusive(&dir.join(LOCK)).map_err(|e| e.into_store_error(what))?;
    let segments = dir.join(SEGMENTS);
    let io = |e: io::Error| opening_error(what, &e);
    match fs::create_dir(&segments) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
        _ => {}
    }
    let path = dir.join(SUPERBLOCK);
    if !path.exists() {
        if known && fs::read_dir(&segments).map_err(io)?.next().is_some() {
            return Err(StoreError::Io {
                what: what(),
                reason: "its file \"superblock\" is missing: restore it, or choose another directory".into(),
                errno: libc::ENOENT,
            });
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        file.set_len(SUPERBLOCK_BYTES as u64).and_then(|()| file.sync_all()).map_err(io)?;
    }
    File::open(dir).and_then(|d| d.sync_all()).map_err(io)?;
    let supported = probe_writes(dir, direct);
    let (superblock, direct) = open_superblock(&path, true, supported.direct).map_err(io)?;
    let synced_writes = supported.synced;
    Ok(OpenedFiles { lock: Some(lock), superblock, segments, direct, synced_writes })
}

/// The kinds of writes that a file system and the sandbox of this process support.
struct Writes {
    direct: bool,
    synced: bool,
}

/// Tries out kinds of writes with a file in `dir`. A kind is not supported if such a write fails and a plain
/// write succeeds. If the plain write fails as well, as in a full file system, the kind counts as supported.
fn probe_writes(dir: &Path, direct: bool) -> Writes {
    let path = dir.join(PROBE);
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path)
    };
    let data = IoBuf::zeroed(IoBuf::ALIGN);
    let plain = || open(0).and_then(|file| file.write_all_at(&data, 0).and_then(|()| file.sync_data()));
    let is_supported = |what: &str, tried: io::Result<()>| {
        let Err(error) = tried else { return true };
        let is_refused = plain().is_ok();
        if is_refused {
            let path = dir.display();
            tracing::warn!(%path, %error, "{what} fail here, and are not used: writes cost more");
        }
        !is_refused
    };
    // An error of opening the file is handled by `open_superblock`.
    let opened = direct.then(|| open(libc::O_DIRECT).ok()).flatten();
    let tried = opened.map(|file| is_supported("writes with O_DIRECT", file.write_all_at(&data, 0)));
    let direct = tried.unwrap_or(direct);
    let synced = is_supported(
        "synced writes (pwritev2 with RWF_DSYNC)",
        open(0).and_then(|file| write_synced(&file, &data)),
    );
    // If this fails, the file remains, which is empty or has one block.
    let _ = fs::remove_file(&path);
    Writes { direct, synced }
}

/// Writes to the beginning of a file, durably.
fn write_synced(file: &File, data: &[u8]) -> io::Result<()> {
    let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the descriptor is open, and the call only reads the bytes of `data`.
    match unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, 0, libc::RWF_DSYNC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Creates a directory and its missing parents, so that they outlive a power failure.
fn create_durably(dir: &Path) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing: Vec<_> = dir.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(&dir)?;
    let parents = missing.into_iter().filter_map(Path::parent);
    parents.into_iter().try_for_each(|parent| File::open(parent)?.sync_all())
}

/// Opens the store read-only, while no server has it open. Changes nothing.
pub(super) fn open_read_only(dir: &Path, direct: bool) -> Result<OpenedFiles> {
    let what = || format!("opening the store {}", dir.display());
    let io = |e: io::Error| store_error(what, &e);
    if !is_store(dir)? {
        return Err(StoreError::NotAStore(dir.into()));
    }
    let lock = match Lock::shared(&dir.join(LOCK)) {
        Ok(lock) => Some(lock),
        // The directory is a copy without the lock file.
        Err(LockError::Io(e)) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e.into_store_error(what)),
    };
    let (superblock, direct) = open_superblock(&dir.join(SUPERBLOCK), false, direct).map_err(io)?;
    Ok(OpenedFiles { lock, superblock, segments: dir.join(SEGMENTS), direct, synced_writes: false })
}

/// Whether the directory has the file that makes it a store.
pub(super) fn has_superblock(dir: &Path) -> io::Result<bool> {
    dir.join(SUPERBLOCK).try_exists()
}

/// Whether the directory is a store. Returns false if it may become a store, and an error if it contains
/// other files.
fn is_store(dir: &Path) -> Result<bool> {
    let io = |e: io::Error| store_error(|| format!("opening the store {}", dir.display()), &e);
    if has_superblock(dir).map_err(io)? {
        return Ok(true);
    }
    let mut segments = false;
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        match name.to_str() {
            Some(SEGMENTS) => segments = true,
            // The file is left by an interrupted opening, belongs to the server, or belongs to a new file
            // system.
            Some(LOCK | "lost+found") => {}
            Some(name) if name.starts_with("forebay.") => {}
            _ => return Err(StoreError::NotAStore(dir.into())),
        }
    }
    Ok(segments)
}

/// Opens the superblock file, bypassing the page cache if possible.
fn open_superblock(path: &Path, write: bool, direct: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    if direct {
        let opened = options.clone().custom_flags(libc::O_DIRECT).open(path);
        let probed = opened.and_then(|file| read_copies(&file).map(|_| file));
        match probed {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                static ONCE: std::sync::Once = std::sync::Once::new();
                ONCE.call_once(|| {
                    tracing::warn!(path = %path.display(), "O_DIRECT is not supported here; using the page cache");
                });
            }
            other => return other.map(|file| (file, true)),
        }
    }
    Ok((options.open(path)?, false))
}

/// Reads both copies from the disk; returns fewer bytes if the file is shorter.
pub(super) fn read_copies(file: &File) -> io::Result<IoBuf> {
    let mut buf = IoBuf::zeroed(SUPERBLOCK_BYTES);
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if !done.is_multiple_of(IoBuf::ALIGN) {
            break; // end of file; a direct read cannot continue at an unaligned offset
        }
    }
    buf.set_len(done);
    Ok(buf)
}

/// Like [`store_error`], with the remedy for the errors that a wrong directory causes.
fn opening_error(what: impl FnOnce() -> String, error: &io::Error) -> StoreError {
    let reason = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            // SAFETY: the call has no conditions.
            let user = unsafe { libc::geteuid() };
            format!("permission denied: the server runs as user {user}, who has to be able to write there")
        }
        Some(libc::EEXIST | libc::ENOTDIR) => {
            "this is a file, or below a file: choose a directory, which the server creates if it is missing"
                .to_owned()
        }
        _ => return store_error(what, error),
    };
    StoreError::Io { what: what(), reason, errno: error.raw_os_error().unwrap_or(0) }
}

enum LockError {
    Busy(String),
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        LockError::Io(error)
    }
}

impl LockError {
    fn into_store_error(self, what: impl FnOnce() -> String) -> StoreError {
        match self {
            LockError::Busy(holder) => StoreError::Busy(holder),
            LockError::Io(e) => opening_error(what, &e),
        }
    }
}

impl Lock {
    fn exclusive(path: &Path) -> std::result::Result<Lock, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = Lock::take(path, &options, libc::LOCK_EX)?;
        // The process id is only displayed. A full file system must not prevent the opening of a pool.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Lock { file, exclusive: true })
    }

    fn shared(path: &Path) -> std::result::Result<Lock, LockError> {
        let file = Lock::take(path, OpenOptions::new().read(true), libc::LOCK_SH)?;
        Ok(Lock { file, exclusive: false })
    }

    fn take(path: &Path, options: &OpenOptions, kind: libc::c_int) -> std::result::Result<File, LockError> {
        loop {
            let mut file = options.open(path)?;
            // SAFETY: the descriptor is open; the call accesses no memory.
            if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EWOULDBLOCK) => return Err(LockError::Busy(holder(&mut file))),
                    Some(libc::EINTR) => continue,
                    _ => return Err(error.into()),
                }
            }
            // Another process may have deleted the file and created it again: only the lock on the file that
            // has the name now is valid.
            let (held, named) = (file.metadata()?, fs::metadata(path));
            if named.is_ok_and(|n| (n.dev(), n.ino()) == (held.dev(), held.ino())) {
                return Ok(file);
            }
        }
    }
}

/// The process that holds the lock, as far as the file states it.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A process id has at most ten digits; other contents are ignored.
    let _ = file.take(16).read_to_string(&mut text);
    text.trim().parse::<u32>().map_or(String::new(), |pid| format!(" (process {pid})"))
}
