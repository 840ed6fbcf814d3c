//! Opening the store of a data directory.

use std::path::Path;
use std::sync::Arc;

use forebay_store::{DirectoryOptions, DirectoryStore, Limited, Store};

use super::ServeError;

/// Opens the store in `data`, or makes it where the directory is missing or empty; it takes at most `limit`.
pub(super) async fn open(data: &Path, limit: Option<u64>) -> Result<Arc<dyn Store>, ServeError> {
    let failed = |source| ServeError::Store { path: data.to_owned(), source };
    let store = DirectoryStore::open(data, &DirectoryOptions::default()).map_err(failed)?;
    let (uring, direct) = store.modes();
    tracing::info!(uring, direct, limit, "store open");
    match limit {
        None => Ok(store),
        Some(limit) => Ok(Arc::new(Limited::new(store, limit).await.map_err(failed)?)),
    }
}
