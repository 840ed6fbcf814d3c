//! The files of retained memory, which outlive the server: one for each pool, on a file system in RAM.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_engine::PoolId;
use forebay_retained::{Memory, SharedFile};

/// Beginning of the names of the files.
pub(super) const FILE_PREFIX: &str = "forebay-";

/// The directory of the files, and the file of the pool that is open.
#[derive(Default)]
pub(super) struct MemoryFiles {
    directory: Option<PathBuf>,
    open: Mutex<Option<Arc<SharedFile>>>,
}

impl MemoryFiles {
    /// Files in `directory`.
    pub fn in_directory(directory: &Path) -> MemoryFiles {
        MemoryFiles { directory: Some(directory.to_owned()), open: Mutex::default() }
    }

    /// The memory of a pool, of at most `limit` bytes; `None` if this process retains nothing.
    ///
    /// # Errors
    /// The file cannot be created or opened, or another server has it open.
    pub fn open(&self, pool: PoolId, limit: u64) -> io::Result<Option<Arc<dyn Memory>>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let path = directory.join(format!("{FILE_PREFIX}{pool}"));
        let file = SharedFile::open(&path, limit).map_err(|e| {
            let why = "use a directory on tmpfs that the server can write, with --memory-dir";
            io::Error::new(e.kind(), format!("{}: {e}; {why}", path.display()))
        })?;
        let file = Arc::new(file);
        *self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(file.clone());
        Ok(Some(file))
    }

    /// Lets another opening use the file. The pool was closed, so it does not change it any more.
    pub fn release(&self) {
        let open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(file) = open
            && let Err(e) = file.unlock()
        {
            tracing::warn!("cannot release the file of the retained memory: {e}");
        }
    }

    /// Removes the file of a pool that was closed and needs nothing from it.
    pub fn remove(&self) {
        let open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(file) = open
            && let Err(e) = file.remove()
        {
            tracing::warn!("cannot remove the file of the retained memory: {e}");
        }
    }
}
