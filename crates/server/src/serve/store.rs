//! Opening the store of a data directory.

use std::path::Path;
use std::sync::Arc;

use forebay_store::{DirectoryOptions, DirectoryStore, Store};

use super::ServeError;

/// Opens the store in `data`, or makes it where the directory is missing or empty.
pub(super) fn open(data: &Path) -> Result<Arc<dyn Store>, ServeError> {
    let store = DirectoryStore::open(data, &DirectoryOptions::default())
        .map_err(|source| ServeError::Store { path: data.to_owned(), source })?;
    let (uring, direct) = store.modes();
    tracing::info!(uring, direct, "store open");
    Ok(store)
}
