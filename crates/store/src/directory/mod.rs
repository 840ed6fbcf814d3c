//! A store in a directory of a local file system: the default.
//!
//! ```text
//! DIR/lock                     flock, held as long as the store is open; names the holder's process
//! DIR/superblock               two copies of 4096 bytes
//! DIR/segments/0000002a.seg    object 42
//! DIR/reserve/7                a piece of the room that the pool owns
//! ```
//!
//! The guarantees of the contract are implemented as follows:
//! - **Appends.** A file is created with `O_EXCL`, its space is preallocated (`fallocate`) and its name made
//!   durable (`fsync` of the directory) before its first byte is written. So a full disk is detected when an
//!   object is created, not during later appends, and a synced object cannot lose its name.
//! - **Sync** is `fdatasync`, which also makes the metadata durable that the file system needs to find the
//!   data. After a failed append or sync an object accepts no more appends and syncs, because the kernel may
//!   drop dirty pages when it reports an error and report success for the next sync.
//! - **A full file system.** Operations that make room (deletions, and the commits and checkpoints before
//!   them) use room that the pool owns: see [`reserve`]. An object that is created in this room has space for
//!   its first append only, so a later append may find the disk full.
//! - **Superblock.** The newest copy is read back from the disk and compared before the other copy is
//!   overwritten, under the lock: a write by a tool that ignores the lock is detected at the next swap.
//!
//! Data bypasses the page cache (`O_DIRECT`): the engine has a cache, and a copy in the kernel would
//! cost memory and time. Operations that may block (open, create, delete, list) run on the pool's threads;
//! reads, appends and syncs of open files are submitted to the ring directly.

mod errors;
mod files;
mod growing;
mod io;
mod open;
mod ops;
mod reserve;
mod retry;
mod trim;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use forebay_format::SegmentId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::errors::store_error;
use self::files::{Files, Usage};
use self::growing::GrowingObjects;
use self::io::{Io, Op};
use self::open::Lock;
use self::reserve::Reserve;
use crate::{Completion, Result};

pub use self::io::IoMode;
pub use self::open::SUPERBLOCK;

/// Options for opening a directory.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// How I/O is executed.
    pub io: IoMode,
    /// Use `O_DIRECT` if the file system supports it.
    pub direct: bool,
    /// Maximum number of segment files that are kept open in addition to the files in use.
    pub open_files: usize,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions { io: IoMode::Auto, direct: true, open_files: 512 }
    }
}

/// A store in a directory.
pub struct DirectoryStore {
    shared: Arc<Shared>,
    io: Arc<Io>,
}

/// State of the store that operations in flight use as well.
struct Shared {
    files: Files,
    superblock: Mutex<SuperblockFile>,
    growing: GrowingObjects,
    reserve: Reserve,
    writable: bool,
    direct: bool,
    _lock: Option<Lock>,
}

struct SuperblockFile {
    file: File,
    /// A write or sync of the file failed.
    failed: bool,
}

impl DirectoryStore {
    /// Whether there is a store in the directory `path`.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn exists_in(path: &Path) -> std::io::Result<bool> {
        open::has_superblock(path)
    }

    /// Opens the store in `path` for writing, and creates it if the directory is missing or empty.
    ///
    /// Returns [`StoreError::Busy`] if another process has it open, [`StoreError::NotAStore`] if the
    /// directory contains other files, [`StoreError::ReadOnly`] on a read-only file system,
    /// [`StoreError::Io`] without the permission to write. Blocks; must not be called on a data-plane thread.
    pub fn open(path: &Path, options: &DirectoryOptions) -> Result<Arc<DirectoryStore>> {
        DirectoryStore::start(path, open::open(path, options.direct)?, options, true)
    }

    /// Opens the store in `path` read-only; operations that would change it return [`StoreError::ReadOnly`].
    /// Any number of readers may have the store open at the same time, but no server.
    pub fn open_read_only(path: &Path, options: &DirectoryOptions) -> Result<Arc<DirectoryStore>> {
        DirectoryStore::start(path, open::open_read_only(path, options.direct)?, options, false)
    }

    fn start(
        path: &Path,
        opened: open::OpenedFiles,
        options: &DirectoryOptions,
        writable: bool,
    ) -> Result<Arc<Self>> {
        let error = |e: std::io::Error| store_error(|| format!("opening the store {}", path.display()), &e);
        let usage = Usage { direct: opened.direct, synced_writes: opened.synced_writes, writable };
        let files = Files::new(&opened.segments, usage, options.open_files).map_err(error)?;
        let shared = Shared {
            files,
            superblock: Mutex::new(SuperblockFile { file: opened.superblock, failed: false }),
            growing: GrowingObjects::default(),
            reserve: if writable { Reserve::open(path).map_err(error)? } else { Reserve::none() },
            writable,
            direct: opened.direct,
            _lock: opened.lock,
        };
        let io = Io::new(options.io).map_err(error)?;
        Ok(Arc::new(DirectoryStore { shared: Arc::new(shared), io: Arc::new(io) }))
    }

    /// The status of the superblock file, which identifies the store: the file stays the same when the
    /// directory is renamed, and a copy of the directory has another one.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn superblock_status(&self) -> std::io::Result<std::fs::Metadata> {
        self.shared.superblock.lock().file.metadata()
    }

    /// Whether I/O uses an io_uring, and whether it bypasses the page cache.
    pub fn modes(&self) -> (bool, bool) {
        (self.io.is_uring(), self.shared.direct)
    }

    /// Runs a job that may block.
    fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Completion<T> {
        let (answer, result) = oneshot::channel();
        let shared = self.shared.clone();
        self.io.pool.run(move || {
            // The caller may have dropped the future.
            let _ = answer.send(job(&shared));
        });
        Completion::awaited(result)
    }

    /// Creates an operation on the object's file and starts it: immediately if the file is open.
    fn on_file(
        &self,
        what: &'static str,
        id: SegmentId,
        op: impl FnOnce(Result<Arc<File>>) -> Option<Op> + Send + 'static,
    ) {
        if let Some(file) = self.shared.files.cached(id) {
            if let Some(op) = op(Ok(file)) {
                self.io.start(op);
            }
            return;
        }
        let (shared, io) = (self.shared.clone(), self.io.clone());
        self.io.pool.run(move || {
            let opened = shared.files.open(id).map_err(|e| shared.open_error(what, id, &e));
            if let Some(op) = op(opened) {
                io.start_here(op);
            }
        });
    }
}

impl Drop for DirectoryStore {
    fn drop(&mut self) {
        self.io.shut_down();
    }
}
