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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use forebay_format::{RETAINED_HEADER_BYTES, RETAINED_VERSION, RetainedHeader};

use crate::space::MAX_CHUNKS;
use crate::words::step;
use crate::{CHUNK, Memory, PAGE};

/// Largest size of the file.
const MAX_BYTES: u64 = MAX_CHUNKS as u64 * CHUNK as u64;
/// How often the path is opened again because the file was removed at the same time.
const ATTEMPTS: usize = 10;
/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a block of `st_blocks` (stat(2)).
const STAT_BLOCK: u64 = 512;

/// A file on tmpfs as memory.
pub struct SharedFile {
    path: PathBuf,
    file: File,
    base: NonNull<u8>,
    present: Box<[AtomicBool]>,
    /// Whether the kernel has made every huge page that was requested.
    has_huge_pages: AtomicBool,
    claimed: AtomicBool,
}

/// To which memory a file belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    /// The pool.
    pub pool: [u8; 16],
    /// The id of the memory.
    pub id: u64,
    /// When the file was created. If the file system does not state it, a later time.
    pub created: SystemTime,
}

/// The properties of a file that are visible without opening its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// Bytes of memory that it occupies.
    pub bytes: u64,
    /// Whether a server has it open.
    pub is_in_use: bool,
    /// The pool, and the id of the memory; `None` if it has no contents, or contents of another version.
    pub memory: Option<([u8; 16], u64)>,
}

// SAFETY: the mapping is usable by any thread, and exists as long as this value.
unsafe impl Send for SharedFile {}
// SAFETY: as above; the other fields are atomic or not changed.
unsafe impl Sync for SharedFile {}

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
                // It was made just now, or holds nothing.
                let _ = std::fs::remove_file(path);
            }
            return Err(describe(path, e));
        }
        if found > MAX_BYTES {
            return Err(describe(path, refused("it is larger than retained memory can be")));
        }
        let len = found.max(max_bytes.min(MAX_BYTES)).max(1).next_multiple_of(CHUNK as u64);
        file.set_len(len).map_err(|e| describe(path, e))?;
        let base = map(&file, len as usize).map_err(|e| describe(path, e))?;
        let present = (0..len / CHUNK as u64).map(|_| AtomicBool::new(false)).collect();
        let (has_huge_pages, claimed) = (AtomicBool::new(true), AtomicBool::new(false));
        let shared = SharedFile { path: path.into(), file, base, present, has_huge_pages, claimed };
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

    /// Gives the file another name, which may be that of a file that is replaced.
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
        retry(|| unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) })
    }

    /// Deletes the file. Its memory is given back when it is closed.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    fn len(&self) -> usize {
        self.present.len() * CHUNK
    }

    /// Marks the chunks that are present. The memory of a chunk that is incomplete is given back: it was
    /// being added or released, or the file, whose length was `found`, was truncated.
    fn find_chunks(&self, found: u64) -> io::Result<()> {
        if !found.is_multiple_of(CHUNK as u64) {
            // Within a page, which is not a hole.
            self.punch((found / CHUNK as u64) as u32)?;
        }
        let mut at = 0;
        while let Some(data) = seek(&self.file, at, libc::SEEK_DATA)? {
            let hole = seek(&self.file, data, libc::SEEK_HOLE)?.unwrap_or(self.len() as u64);
            let chunk = CHUNK as u64;
            for complete in data.div_ceil(chunk)..hole / chunk {
                self.present[complete as usize].store(true, Ordering::Release);
            }
            let is_inside = |offset: u64| !offset.is_multiple_of(chunk);
            for part in [data, hole].into_iter().filter(|offset| is_inside(*offset)) {
                self.punch((part / chunk) as u32)?;
            }
            at = hole.next_multiple_of(chunk);
        }
        Ok(())
    }

    fn punch(&self, chunk: u32) -> io::Result<()> {
        self.allocate(chunk, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
    }

    fn allocate(&self, chunk: u32, mode: i32) -> io::Result<()> {
        let (offset, len) = (i64::from(chunk) * CHUNK as i64, CHUNK as i64);
        // SAFETY: the descriptor is open; no memory is passed. Punched pages of a mapping read as zeroes.
        retry(|| unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) })
    }

    /// Makes the pages of a chunk zeroed, mapped and, for SEEK_DATA, data. Their memory was taken already.
    fn populate(&self, chunk: u32) -> io::Result<()> {
        let at = self.address(chunk);
        // SAFETY: the chunk is in the mapping. The advice does not change its contents.
        match retry(|| unsafe { libc::madvise(at.as_ptr().cast(), CHUNK, libc::MADV_POPULATE_WRITE) }) {
            // Linux before 5.14.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                for page in (0..CHUNK).step_by(PAGE) {
                    // SAFETY: the chunk is in the mapping, has memory, and is not in use yet.
                    unsafe { at.add(page).write_volatile(0) };
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Joins the pages of a huge page, best effort, if all its chunks are present: a copy into a page takes a
    /// quarter less time, since the translation of its address is usually cached. Its contents do not
    /// change, and it may be in use.
    fn join_pages(&self, chunk: u32) {
        if !self.has_huge_pages.load(Ordering::Relaxed) {
            return;
        }
        let chunks = (HUGE_PAGE / CHUNK) as u32;
        let first = chunk - chunk % chunks;
        if !(first..first + chunks).all(|c| self.is_present(c)) {
            return;
        }
        // SAFETY: the chunks are in the mapping. The advice does not change their contents.
        let joined = retry(|| unsafe {
            libc::madvise(self.address(first).as_ptr().cast(), HUGE_PAGE, libc::MADV_COLLAPSE)
        });
        // Linux before 6.1 has no such advice. Without a free huge page, the kernel has searched for one, and
        // a writer waited for that.
        self.has_huge_pages.store(joined.is_ok(), Ordering::Relaxed);
    }
}

// SAFETY: the mapping of the whole file stays at its address until this value is dropped, and is aligned to
// pages. A present chunk has memory for all its pages, so an access cannot fault unless the file is truncated
// or punched by another process; only this user can do so, and the lock and the mode forbid it. Within
// the process, only the address gives access.
unsafe impl Memory for SharedFile {
    fn max_chunks(&self) -> u32 {
        self.present.len() as u32
    }

    fn is_present(&self, chunk: u32) -> bool {
        self.present.get(chunk as usize).is_some_and(|present| present.load(Ordering::Acquire))
    }

    fn address(&self, chunk: u32) -> NonNull<u8> {
        assert!((chunk as usize) < self.present.len(), "the chunk is in the mapping");
        // SAFETY: the chunk is in the mapping.
        unsafe { self.base.add(chunk as usize * CHUNK) }
    }

    fn add(&self, chunk: u32) -> io::Result<()> {
        // What a killed process left of a chunk that it was adding or releasing must not be found.
        self.punch(chunk)?;
        step();
        let added = self.allocate(chunk, 0).inspect(|()| step()).and_then(|()| self.populate(chunk));
        if let Err(e) = added {
            // A part may have been added.
            let _ = self.punch(chunk);
            return Err(describe(&self.path, e));
        }
        self.present[chunk as usize].store(true, Ordering::Release);
        self.join_pages(chunk);
        Ok(())
    }

    fn release(&self, chunk: u32) {
        self.present[chunk as usize].store(false, Ordering::Release);
        // Without effect, the memory is used again when the chunk is added again.
        let _ = self.punch(chunk);
    }

    fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    fn unclaim(&self) {
        self.claimed.store(false, Ordering::Release);
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `open` made; nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
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
            Err(if is_link { refused("it is a symbolic link") } else { e })
        }
        // SAFETY: the descriptor was opened just now, and has no other owner.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}

/// Refuses a file that another user could have prepared, or can read.
fn check_owner(file: &File) -> io::Result<()> {
    let status = file.metadata()?;
    // SAFETY: the call has no conditions.
    let user = unsafe { libc::geteuid() };
    if !status.file_type().is_file() {
        Err(refused("it is not a regular file"))
    } else if status.uid() != user {
        Err(refused(&format!("it belongs to user {}, and this server runs as user {user}", status.uid())))
    } else if status.mode() & 0o7777 != 0o600 {
        Err(refused(&format!("it has mode {:o} instead of 600", status.mode() & 0o7777)))
    } else if status.nlink() > 1 {
        Err(refused("it has several hard links"))
    } else {
        Ok(())
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{why}: remove it, or use another directory"))
}

/// Another file system writes the pages to a disk, and may have no memory or space for a page when it is
/// written.
fn require_tmpfs(file: &File) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a valid value.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure is valid for the call.
    retry(|| unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut status) })?;
    if status.f_type as i64 != libc::TMPFS_MAGIC {
        let what = "it is not on tmpfs: use a directory on tmpfs, such as /dev/shm";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(())
}

/// Maps the file at an address that is a multiple of [`HUGE_PAGE`].
fn map(file: &File, len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel selects.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), len + HUGE_PAGE, libc::PROT_NONE, flags, -1, 0) };
    if room == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let before = room.cast::<u8>().align_offset(HUGE_PAGE);
    // SAFETY: the mapping above has this length and `HUGE_PAGE` more, and `before` is less than that.
    let (at, end) = unsafe { (room.byte_add(before), room.byte_add(before + len)) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: it replaces a part of the mapping above, which nothing uses.
    let mapped = unsafe { libc::mmap(at, len, protection, flags, file.as_raw_fd(), 0) };
    let error = io::Error::last_os_error();
    // SAFETY: what is left of the mapping above on both sides, or all of it; nothing uses it.
    unsafe {
        if mapped == libc::MAP_FAILED {
            libc::munmap(room, len + HUGE_PAGE);
            return Err(error);
        }
        if before > 0 {
            libc::munmap(room, before);
        }
        if before < HUGE_PAGE {
            libc::munmap(end, HUGE_PAGE - before);
        }
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// The next offset with data, or in a hole; `None` behind the last data.
fn seek(file: &File, from: u64, whence: i32) -> io::Result<Option<u64>> {
    let from = i64::try_from(from).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open.
    let at = unsafe { libc::lseek64(file.as_raw_fd(), from, whence) };
    match u64::try_from(at) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        },
    }
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> i32) -> io::Result<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

fn describe(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("retained memory {}: {e}", path.display()))
}
