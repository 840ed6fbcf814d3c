//! Opening the store of a data directory.

use std::sync::Arc;

use forebay_engine::Host;
use forebay_store::{DirectoryOptions, DirectoryStore, Limited, Slow, Store};

use super::ServeError;
use super::descriptors::Descriptors;
use crate::config::ServeConfig;

/// Opens the store of a server, or creates it if the directory is missing or empty, with the configured size
/// limit and simulated latency. `host` provides the timer for the latency.
pub(super) async fn open(
    config: &ServeConfig,
    descriptors: &Descriptors,
    host: Arc<dyn Host>,
) -> Result<Arc<dyn Store>, ServeError> {
    let options = DirectoryOptions { open_files: descriptors.open_files, ..DirectoryOptions::default() };
    let failed = |source| ServeError::Store { path: config.data.clone(), source };
    let directory = DirectoryStore::open(&config.data, &options).map_err(failed)?;
    let (uring, direct) = directory.modes();
    tracing::info!(uring, direct, limit = config.store_limit, "store open");
    let mut store: Arc<dyn Store> = directory;
    if let Some(limit) = config.store_limit {
        store = Arc::new(Limited::new(store, limit).await.map_err(failed)?);
    }
    if let Some(array) = config.store_slow {
        tracing::warn!(?array, "the store simulates the latency of an array, as configured");
        let clock = host.clone();
        let sleep = Arc::new(move |time| host.sleep(time));
        store = Arc::new(Slow::new(store, array, Arc::new(move || clock.now()), sleep));
    }
    Ok(store)
}
