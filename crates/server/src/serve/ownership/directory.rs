//! A pool in a directory: the lock file of the store is its ownership.

use std::path::Path;

use forebay_host::PoolDirectory;
use forebay_store::{DirectoryOptions, DirectoryStore, StoreError};

use super::contract::{Opened, Ownership};
use crate::serve::host::descriptors::Descriptors;

/// The lock prevents another server from taking the pool, and who opens it next needs no reservation.
impl Ownership for DirectoryStore {}

/// Opens the store in a directory.
pub(super) fn open(path: &Path, descriptors: &Descriptors) -> Result<Opened, StoreError> {
    let options = DirectoryOptions { open_files: descriptors.open_files, ..DirectoryOptions::default() };
    let store = DirectoryStore::open(path, &options)?;
    let failed = |e: std::io::Error| StoreError::Io {
        what: format!("opening the store {}", path.display()),
        reason: e.to_string(),
        errno: e.raw_os_error().unwrap_or(libc::EIO),
    };
    let directory = Some(PoolDirectory::new(path, &store.superblock_status().map_err(failed)?));
    let (uring, direct) = store.modes();
    let io = if uring { "io_uring" } else { "threads" };
    let path = if direct { "direct I/O" } else { "the page cache" };
    tracing::info!("opened the store with {io} and {path}");
    Ok(Opened { store: store.clone(), ownership: store, directory })
}
