//! A store in a directory of a local file system: the embedded default.
//!
//! ```text
//! DIR/lock                     flock, held as long as the store is open; names the holder's process
//! DIR/superblock               two copies of 4096 bytes
//! DIR/segments/0000002a.seg    object 42
//! ```
//!
//! What the contract promises rests on this:
//! - **Appends.** A file is created with `O_EXCL`, its room is set aside (`fallocate`) and its name made
//!   durable (`fsync` of the directory) before its first byte is written. So a full disk shows when an object
//!   is created, not in its midst, and a synced object cannot lose its name.
//! - **Sync** is `fdatasync`, which also makes durable what the file system needs to find the data. After a
//!   failed append or sync an object takes no more appends and no more syncs, because the kernel may drop
//!   dirty pages when it reports an error and answer the next sync with success.
//! - **Superblock.** The newest copy is read back from the disk and compared before the other one is
//!   overwritten, all under the lock: a tool that ignores the lock is noticed at the next swap.
//!
//! Data moves past the page cache (`O_DIRECT`): the engine has its own cache, and a copy in the kernel would
//! cost memory and time. What may block (opening, creating, deleting, listing) runs on the pool's threads;
//! reads, appends and syncs of open files go to the ring at once.

mod errors;
mod files;
mod growing;
mod io;
mod ops;
mod patience;
mod place;
mod trim;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use forebay_format::SegmentId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::errors::store_error;
use self::files::Files;
use self::growing::GrowingObjects;
use self::io::{Io, Op};
use self::place::Lock;
use crate::{BoxFuture, Result, StoreError};

pub use self::io::IoMode;

/// How a directory is opened.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// Who carries the I/O out.
    pub io: IoMode,
    /// Use `O_DIRECT` where the file system takes it.
    pub direct: bool,
    /// Segment files that are kept open at most, beside those in use.
    pub open_files: usize,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions { io: IoMode::Auto, direct: true, open_files: 512 }
    }
}

/// See the module.
pub struct DirectoryStore {
    shared: Arc<Shared>,
    io: Arc<Io>,
}

/// What operations in flight need, too.
struct Shared {
    files: Files,
    superblock: Mutex<SuperblockFile>,
    growing: GrowingObjects,
    writable: bool,
    direct: bool,
    _lock: Option<Lock>,
}

struct SuperblockFile {
    file: File,
    /// A write or sync of it failed.
    failed: bool,
}

impl DirectoryStore {
    /// Opens the store in `path` for writing, and makes it where the directory is missing or empty.
    ///
    /// [`StoreError::Busy`] where another process has it open, [`StoreError::NotAStore`] where the directory
    /// holds other files, [`StoreError::ReadOnly`] where it cannot be written. Blocks; not for a data-plane
    /// thread.
    pub fn open(path: &Path, options: &DirectoryOptions) -> Result<Arc<DirectoryStore>> {
        DirectoryStore::start(path, place::open(path, options.direct)?, options, true)
    }

    /// Opens the store in `path` to look at it; nothing is changed, and everything that would change it gets
    /// [`StoreError::ReadOnly`]. Any number of readers, but no server, may have it open meanwhile.
    pub fn open_read_only(path: &Path, options: &DirectoryOptions) -> Result<Arc<DirectoryStore>> {
        DirectoryStore::start(path, place::open_read_only(path, options.direct)?, options, false)
    }

    fn start(
        path: &Path,
        place: place::Place,
        options: &DirectoryOptions,
        writable: bool,
    ) -> Result<Arc<Self>> {
        let error = |e: std::io::Error| store_error(|| format!("opening the store {}", path.display()), &e);
        let files = Files::new(&place.segments, place.direct, writable, options.open_files).map_err(error)?;
        if writable {
            trim::trim_tails(&files);
        }
        let shared = Shared {
            files,
            superblock: Mutex::new(SuperblockFile { file: place.superblock, failed: false }),
            growing: GrowingObjects::default(),
            writable,
            direct: place.direct,
            _lock: place.lock,
        };
        let io = Io::new(options.io).map_err(error)?;
        Ok(Arc::new(DirectoryStore { shared: Arc::new(shared), io: Arc::new(io) }))
    }

    /// How data moves: whether through an io_uring, and whether past the page cache.
    pub fn modes(&self) -> (bool, bool) {
        (self.io.is_uring(), self.shared.direct)
    }

    /// Runs what may block.
    fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (answer, result) = oneshot::channel();
        let shared = self.shared.clone();
        self.io.pool.run(move || {
            // Whoever asked may have gone.
            let _ = answer.send(job(&shared));
        });
        receive(result)
    }

    /// Makes an operation of the object's file and starts it: at once where the file is open.
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

/// The future of an operation that runs by itself.
fn receive<T: Send + 'static>(result: oneshot::Receiver<Result<T>>) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move {
        let gone = |_| StoreError::Io {
            what: "waiting for the store".into(),
            reason: "the store was closed".into(),
            errno: libc::ESHUTDOWN,
        };
        result.await.map_err(gone)?
    })
}

fn refuse<T: Send + 'static>(error: StoreError) -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(error)))
}

fn describe(what: &str, id: SegmentId) -> impl FnOnce() -> String {
    move || format!("{what} object {id}")
}
