//! Memory in a file on tmpfs, mapped shared: the kernel keeps it when the process ends, however it ends.
//!
//! The mapping covers the whole address space, and the file is sparse: a chunk is present if the file has
//! memory for all of it. A chunk gets its memory before it is used, so that a full tmpfs is an error of
//! [`Memory::add`], never a SIGBUS later.
//!
//! Data of guests is in the file, so it has mode 0600, and a file that another user could have prepared is
//! refused. An exclusive lock keeps a second server out; it ends with the process that holds it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use forebay_format::{RETAINED_HEADER_BYTES, RETAINED_VERSION, RetainedHeader};

use crate::mapping::{Joiner, Mapping, retry, seek};
use crate::space::MAX_CHUNKS;
use crate::{CHUNK, Memory};

/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = MAX_CHUNKS as u64 * CHUNK as u64;
/// Number of times that the path is opened again because the file was removed at the same time.
const ATTEMPTS: usize = 10;
/// Bytes of a block of `st_blocks` (stat(2)).
const STAT_BLOCK: u64 = 512;

/// A file on tmpfs as memory.
pub struct SharedFile {
    path: PathBuf,
    /// Dropped first: its thread refers to the mapping, and has ended then, so the file is closed and
    /// unlocked with this value.
    joiner: Joiner,
    mapping: Arc<Mapping>,
    claimed: AtomicBool,
}

/// To which memory a file belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    /// Id of the pool.
    pub pool: [u8; 16],
    /// The id of the memory.
    pub id: u64,
    /// When the file was created. If the file system does not state it, a later time.
    pub created: SystemTime,
}

/// The properties of a file that are visible without opening its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// Bytes of memory that the file occupies.
    pub bytes: u64,
    /// Whether a server has the file open.
    pub is_in_use: bool,
    /// The pool, and the id of the memory; `None` if it has no contents, or contents of another version.
    pub memory: Option<([u8; 16], u64)>,
}

impl SharedFile {
    /// Opens the file, or creates it, with address space for `max_bytes`; the address space costs no memory.
    /// A file that was larger keeps its size.
    ///
    /// Fails if the file is in use by another server, is not a regular file of this user with mode 0600 and
    /// one link, or is not on tmpfs.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<SharedFile> {
        let file = open_locked(path).map_err(|e| describe(path, e))?;
        let found = file.metadata()?.len();
        if let Err(e) = require_tmpfs(&file) {
            if found == 0 {
                // The file was made just now, or has no contents.
                let _ = std::fs::remove_file(path);
            }
            return Err(describe(path, e));
        }
        if found > MAX_BYTES {
            return Err(describe(
                path,
                refused("it is larger than retained memory can be: use another directory"),
            ));
        }
        let len = found.max(max_bytes.min(MAX_BYTES)).max(1).next_multiple_of(CHUNK as u64);
        file.set_len(len).map_err(|e| describe(path, e))?;
        let mapping = Arc::new(Mapping::new(file, len).map_err(|e| describe(path, e))?);
        let (joiner, claimed) = (Joiner::default(), AtomicBool::new(false));
        let shared = SharedFile { path: path.into(), joiner, mapping, claimed };
        shared.find_chunks(found).map_err(|e| describe(path, e))?;
        Ok(shared)
    }

    /// Reads to which memory a file belongs. Changes nothing, and does not need the lock: another server may
    /// have the file open. `None` if it does not exist, or has no contents.
    ///
    /// # Errors
    /// It may have contents: [`SharedFile::open`] refuses it, it cannot be read, or a newer release made it.
    pub fn peek(path: &Path) -> io::Result<Option<Peeked>> {
        let file = match open(path, 0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        check_owner(&file)?;
        let mut bytes = [0; RETAINED_HEADER_BYTES];
        match file.read_exact_at(&mut bytes, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let Ok(Some((version, header))) = RetainedHeader::decode(&bytes) else { return Ok(None) };
        if version != RETAINED_VERSION {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a newer release made it"));
        }
        let status = file.metadata()?;
        let created = status.created().or_else(|_| status.modified())?;
        Ok(Some(Peeked { pool: header.pool, id: header.id, created }))
    }

    /// The owner of what is at this path, unless it is this user. A symbolic link is not followed.
    ///
    /// # Errors
    /// Its status cannot be read. `Ok(None)` if there is nothing.
    pub fn other_owner(path: &Path) -> io::Result<Option<u32>> {
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            status => Ok(Some(status?.uid()).filter(|owner| *owner != effective_user())),
        }
    }

    /// Whether a server has the file open.
    pub fn is_in_use(path: &Path) -> io::Result<bool> {
        is_locked(&open(path, 0)?)
    }

    /// Examines a file, for administrators. Unlike [`SharedFile::peek`], it accepts files of other users, and
    /// needs no more than the permission to read.
    pub fn examine(path: &Path) -> io::Result<Examined> {
        let file = open_as(path, libc::O_RDONLY)?;
        let status = file.metadata()?;
        if !status.file_type().is_file() {
            return Err(refused("it is not a regular file"));
        }
        let mut bytes = [0; RETAINED_HEADER_BYTES];
        let header = match file.read_exact_at(&mut bytes, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            read => {
                read?;
                RetainedHeader::decode(&bytes).ok().flatten()
            }
        };
        let memory = header.filter(|(version, _)| *version == RETAINED_VERSION);
        Ok(Examined {
            bytes: status.blocks() * STAT_BLOCK,
            is_in_use: is_locked(&file)?,
            memory: memory.map(|(_, header)| (header.pool, header.id)),
        })
    }

    /// Gives the file another name. If a file with this name exists, it is replaced.
    pub fn rename(&mut self, to: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, to).map_err(|e| {
            let (from, to) = (self.path.display(), to.display());
            io::Error::new(e.kind(), format!("cannot rename {from} to {to}: {e}"))
        })?;
        to.clone_into(&mut self.path);
        Ok(())
    }

    /// Gives the lock back although this value, and the mapping, may still be referenced. The caller does not
    /// change the memory any more.
    pub fn unlock(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        retry(|| unsafe { libc::flock(self.mapping.file.as_raw_fd(), libc::LOCK_UN) })
    }

    /// Deletes the file. Its memory is given back when it is closed.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// Marks the chunks that are present. The memory of a chunk that is incomplete is given back: it was
    /// being added or released, or the file, whose length was `found`, was truncated.
    fn find_chunks(&self, found: u64) -> io::Result<()> {
        if !found.is_multiple_of(CHUNK as u64) {
            // Within a page, which is not a hole.
            self.mapping.punch((found / CHUNK as u64) as u32)?;
        }
        let mut at = 0;
        while let Some(data) = seek(&self.mapping.file, at, libc::SEEK_DATA)? {
            let hole = seek(&self.mapping.file, data, libc::SEEK_HOLE)?.unwrap_or(self.mapping.len() as u64);
            let chunk = CHUNK as u64;
            for complete in data.div_ceil(chunk)..hole / chunk {
                self.mapping.set_present(complete as u32, true);
            }
            let is_inside = |offset: u64| !offset.is_multiple_of(chunk);
            for part in [data, hole].into_iter().filter(|offset| is_inside(*offset)) {
                self.mapping.punch((part / chunk) as u32)?;
            }
            at = hole.next_multiple_of(chunk);
        }
        Ok(())
    }
}

// SAFETY: the mapping of the whole file stays at its address until this value is dropped, and is aligned to
// pages. A present chunk has memory for all its pages, so an access cannot fault unless the file is truncated
// or punched by another process; only this user can do so, and the lock and the mode forbid it. Within
// the process, only the address gives access.
unsafe impl Memory for SharedFile {
    fn max_chunks(&self) -> u32 {
        self.mapping.chunks()
    }

    fn is_present(&self, chunk: u32) -> bool {
        self.mapping.is_present(chunk)
    }

    fn address(&self, chunk: u32) -> NonNull<u8> {
        self.mapping.address(chunk)
    }

    fn add(&self, chunk: u32) -> io::Result<()> {
        self.mapping.add(chunk).map_err(|e| describe(&self.path, e))?;
        self.joiner.request(&self.mapping, chunk);
        Ok(())
    }

    fn release(&self, chunk: u32) {
        self.mapping.release(chunk);
    }

    fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    fn unclaim(&self) {
        self.claimed.store(false, Ordering::Release);
    }
}

/// Opens or creates the file and locks it. Another server may remove it at the same time; then the lock is of
/// a file that no path leads to, and it is opened again.
fn open_locked(path: &Path) -> io::Result<File> {
    for _ in 0..ATTEMPTS {
        let file = match open(path, libc::O_CREAT | libc::O_EXCL) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match open(path, 0) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            },
            created => {
                let file = created?;
                // The umask may have removed bits.
                file.set_permissions(PermissionsExt::from_mode(0o600))?;
                file
            }
        };
        check_owner(&file)?;
        // SAFETY: the descriptor is open.
        retry(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map_err(
            |e| match e.kind() {
                io::ErrorKind::WouldBlock => io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another server has it open: stop that server",
                ),
                _ => e,
            },
        )?;
        let (ours, current) = (file.metadata()?, std::fs::symlink_metadata(path));
        match current {
            Ok(current) if (current.dev(), current.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another server removes and creates it repeatedly"))
}

/// Whether another open file holds the lock. It is free again when the file is closed.
fn is_locked(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open.
    match retry(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) }) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
        locked => locked.map(|()| false),
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    open_as(path, flags | libc::O_RDWR)
}

fn open_as(path: &Path, flags: i32) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // Without O_NONBLOCK, opening a FIFO would wait.
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
    match fd {
        -1 => {
            let e = io::Error::last_os_error();
            let is_link = e.raw_os_error() == Some(libc::ELOOP);
            Err(if is_link {
                refused("it is a symbolic link: remove it, or use another directory")
            } else {
                e
            })
        }
        // SAFETY: the descriptor was opened just now, and has no other owner.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}

/// The user with whose rights this process makes and opens files.
pub fn effective_user() -> u32 {
    // SAFETY: the call has no conditions.
    unsafe { libc::geteuid() }
}

/// Refuses a file that another user could have prepared, or can read. No advice suggests to remove a file
/// that may hold acknowledged writes.
fn check_owner(file: &File) -> io::Result<()> {
    let (status, user) = (file.metadata()?, effective_user());
    let mode = status.mode() & 0o7777;
    if !status.file_type().is_file() {
        Err(refused("it is not a regular file: remove it, or use another directory"))
    } else if status.uid() != user {
        let owner = status.uid();
        Err(refused(&format!(
            "it belongs to user {owner}, and this server runs as user {user}; it may hold acknowledged writes: start the server \
             as user {owner}, or give it the file (chown {user})"
        )))
    } else if mode != 0o600 {
        Err(refused(&format!(
            "it has mode {mode:o} instead of 600: chmod 600, if no other user has written to it"
        )))
    } else if status.nlink() > 1 {
        Err(refused("it has several hard links: remove the other ones"))
    } else {
        Ok(())
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Another file system writes the pages to a disk, and may have no memory or space for a page when it is
/// written.
fn require_tmpfs(file: &File) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a valid value.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure is valid for the call.
    retry(|| unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut status) })?;
    if status.f_type as i64 != libc::TMPFS_MAGIC {
        let what = "it is not on tmpfs, such as /dev/shm";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(())
}

fn describe(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("retained memory {}: {e}", path.display()))
}
