//! Opening a directory: is it a store, or may it become one; is it free; what can its file system do.
//!
//! Nothing is written to a directory before it is known to be empty or a store, and nothing but the lock file
//! before the lock is held.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::errors::store_error;
use crate::superblock::COPY_BYTES;
use crate::{IoBuf, Result, StoreError};

const LOCK: &str = "lock";
const SUPERBLOCK: &str = "superblock";
const SEGMENTS: &str = "segments";

/// Bytes of the superblock file.
const SUPERBLOCK_BYTES: usize = 2 * COPY_BYTES;

/// An opened place, with its lock held as long as it lives.
pub(super) struct Place {
    pub(super) lock: Option<Lock>,
    pub(super) superblock: File,
    pub(super) segments: std::path::PathBuf,
    /// The file system takes `O_DIRECT`.
    pub(super) direct: bool,
}

/// The held lock; the file names the holder while a writer holds it.
pub(super) struct Lock {
    file: File,
    exclusive: bool,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.exclusive {
            // A number that stays behind is only ever shown while someone holds the lock.
            let _ = self.file.set_len(0);
        }
    }
}

/// Opens for writing; makes the directory where it is missing, and the store where the directory is empty.
pub(super) fn open(dir: &Path, direct: bool) -> Result<Place> {
    let what = || format!("opening the store {}", dir.display());
    fs::create_dir_all(dir).map_err(|e| denied(what, &e))?;
    let known = is_store(dir)?;
    let lock = Lock::exclusive(&dir.join(LOCK)).map_err(|e| e.into_store_error(what))?;
    let segments = dir.join(SEGMENTS);
    let io = |e: io::Error| denied(what, &e);
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
    let (superblock, direct) = open_superblock(&path, true, direct).map_err(io)?;
    Ok(Place { lock: Some(lock), superblock, segments, direct })
}

/// Opens to read only, while no server has it open. Changes nothing at all.
pub(super) fn open_read_only(dir: &Path, direct: bool) -> Result<Place> {
    let what = || format!("opening the store {}", dir.display());
    let io = |e: io::Error| store_error(what, &e);
    if !is_store(dir)? {
        return Err(StoreError::NotAStore(dir.into()));
    }
    let lock = match Lock::shared(&dir.join(LOCK)) {
        Ok(lock) => Some(lock),
        // A copy that somebody made without the lock file.
        Err(LockError::Io(e)) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e.into_store_error(what)),
    };
    let (superblock, direct) = open_superblock(&dir.join(SUPERBLOCK), false, direct).map_err(io)?;
    Ok(Place { lock, superblock, segments: dir.join(SEGMENTS), direct })
}

/// Whether the directory is a store. False if it may become one; an error if it holds something else.
fn is_store(dir: &Path) -> Result<bool> {
    let io = |e: io::Error| store_error(|| format!("opening the store {}", dir.display()), &e);
    if dir.join(SUPERBLOCK).try_exists().map_err(io)? {
        return Ok(true);
    }
    let mut segments = false;
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        match name.to_str() {
            Some(SEGMENTS) => segments = true,
            // An opening that was cut short, the server's own files, a fresh file system.
            Some(LOCK | "lost+found") => {}
            Some(name) if name.starts_with("forebay.") => {}
            _ => return Err(StoreError::NotAStore(dir.into())),
        }
    }
    Ok(segments)
}

/// Opens the superblock file, past the page cache if that works here.
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
                    tracing::warn!(path = %path.display(), "this file system takes no direct I/O: its data is in the page cache, too");
                });
            }
            other => return other.map(|file| (file, true)),
        }
    }
    Ok((options.open(path)?, false))
}

/// Both copies from the disk; shorter where the file is.
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
            break; // the file ends here, and a direct read could not go on
        }
    }
    buf.set_len(done);
    Ok(buf)
}

/// [`StoreError::ReadOnly`] also where only the permission to write is missing.
fn denied(what: impl FnOnce() -> String, error: &io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => StoreError::ReadOnly,
        _ => store_error(what, error),
    }
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
            LockError::Io(e) => denied(what, &e),
        }
    }
}

impl Lock {
    fn exclusive(path: &Path) -> std::result::Result<Lock, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = Lock::take(path, &options, libc::LOCK_EX)?;
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Lock { file, exclusive: true })
    }

    fn shared(path: &Path) -> std::result::Result<Lock, LockError> {
        let file = Lock::take(path, OpenOptions::new().read(true), libc::LOCK_SH)?;
        Ok(Lock { file, exclusive: false })
    }

    fn take(path: &Path, options: &OpenOptions, kind: libc::c_int) -> std::result::Result<File, LockError> {
        loop {
            let mut file = options.open(path)?;
            // SAFETY: a plain system call on an open descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EWOULDBLOCK) => return Err(LockError::Busy(holder(&mut file))),
                    Some(libc::EINTR) => continue,
                    _ => return Err(error.into()),
                }
            }
            // Someone may have deleted the file and another opener made a new one: only the lock on the file
            // that has the name now counts.
            let (held, named) = (file.metadata()?, fs::metadata(path));
            if named.is_ok_and(|n| (n.dev(), n.ino()) == (held.dev(), held.ino())) {
                return Ok(file);
            }
        }
    }
}

/// Who holds the lock, as far as the file tells.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A holder's number has at most ten digits; whatever else is there, is of no use.
    let _ = file.take(16).read_to_string(&mut text);
    text.trim().parse::<u32>().map_or(String::new(), |pid| format!(" (process {pid})"))
}
