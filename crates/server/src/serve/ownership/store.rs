//! Opening the store of a pool: in the data directory, or in Ceph.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use forebay_engine::Host;
use forebay_store::rados::{Claim, Heir, PoolConnection};
use forebay_store::{DirectoryStore, Limited, Slow, StoreError};
use forebay_text::Size;

use super::ceph;
use super::claim::{self, Stopped};
use super::contract::Opened;
use super::directory;
use crate::config::{PoolLocation, RadosPool, ServeConfig};
use crate::serve::ServeError;
use crate::serve::host::descriptors::Descriptors;
use crate::serve::shard_process::{membership, silent_owner};

/// Prepares the data directory of a server whose pool is elsewhere: it holds the files of the server only.
///
/// # Errors
/// It contains a pool, which the server would not serve.
pub(in crate::serve) fn prepare_data(config: &ServeConfig) -> Result<(), ServeError> {
    let PoolLocation::Rados(pool) = &config.location else { return Ok(()) };
    let data = &config.data;
    let failed = |error| ServeError::Data { path: data.clone(), error };
    std::fs::create_dir_all(data).map_err(failed)?;
    match DirectoryStore::exists_in(data).map_err(failed)? {
        true => Err(ServeError::TwoPools { path: data.clone(), pool: pool.address.to_string() }),
        false => Ok(()),
    }
}

/// Opens the store of a server in its data directory, with the configured size limit and simulated latency.
/// Creates it if the directory is missing or empty. `host` provides the timer for the latency.
///
/// # Errors
/// [`StoreError::Busy`] if another server holds the pool.
pub(in crate::serve) async fn open(
    path: &Path,
    config: &ServeConfig,
    descriptors: &Descriptors,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    finish(directory::open(path, descriptors), config, host).await
}

/// Works like [`open`] for a pool in Ceph, but a standby waits while another server holds the pool. Returns
/// `None` if `stop` completes first. Calls `waits` when the wait begins.
pub(in crate::serve) async fn open_when_free(
    config: &ServeConfig,
    pool: &RadosPool,
    host: Arc<dyn Host>,
    stop: Pin<&mut (dyn Future<Output = ()> + '_)>,
    waits: impl Fn() + Send + Sync + 'static,
) -> Result<Option<Opened>, ServeError> {
    let claim = match (config.standby, silent_owner()) {
        (true, _) => Claim::Wait,
        (false, Some(sign)) => Claim::Silent(sign),
        (false, None) => Claim::IfFree,
    };
    let (RadosPool { address, options }, name) = (pool.clone(), pool.address.to_string());
    let opening = move |stopped: &Stopped| {
        tracing::info!("opening the pool {name}");
        let connection = PoolConnection::new(&address, &options, membership())?;
        ceph::claim(&connection, &name, claim, stopped, &waits)
    };
    match claim::open(opening, stop).await.transpose() {
        Some(opened) => finish(opened, config, host).await.map(Some),
        None => Ok(None),
    }
}

/// Works like [`open_when_free`], over a connection, for a process that took part in an upgrade or a
/// handover.
pub(in crate::serve) async fn claim(
    config: &ServeConfig,
    connection: Arc<PoolConnection>,
    claim: Claim,
    host: Arc<dyn Host>,
    stop: impl Future<Output = ()>,
) -> Result<Option<Opened>, ServeError> {
    let (name, heir) = (config.location.to_string(), connection.as_heir());
    let opening = move |stopped: &Stopped| ceph::claim(&connection, &name, claim, stopped, &|| ());
    match claim::open(opening, stop).await.transpose() {
        Some(opened) => finish_or_reserve(opened, heir, config, host).await.map(Some),
        None => Ok(None),
    }
}

/// The store of a pool that this process has taken back.
pub(in crate::serve) async fn taken_back(
    config: &ServeConfig,
    opened: Opened,
    heir: Heir,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    finish_or_reserve(Ok(opened), heir, config, host).await
}

/// Works like [`finish`]. If it fails, the pool is reserved for `heir`: this process or another process of
/// this host tries again.
async fn finish_or_reserve(
    opened: Result<Opened, StoreError>,
    heir: Heir,
    config: &ServeConfig,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    let ownership = opened.as_ref().ok().map(|opened| opened.ownership.clone());
    let finished = finish(opened, config, host).await;
    if let (Err(_), Some(ownership)) = (&finished, ownership) {
        ownership.release_to(heir);
    }
    finished
}

/// Adds the limit and the latency of the configuration.
async fn finish(
    opened: Result<Opened, StoreError>,
    config: &ServeConfig,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    let failed = |source| ServeError::Store { pool: config.location.to_string(), source };
    let Opened { mut store, ownership, directory } = opened.map_err(failed)?;
    if let Some(limit) = config.store_limit {
        tracing::info!("the size of the pool is limited to {}, as configured", Size(limit));
        store = Arc::new(Limited::new(store, limit).await.map_err(failed)?);
    }
    if let Some(array) = config.store_slow {
        tracing::warn!(?array, "the store simulates the latency of an array, as configured");
        let clock = host.clone();
        let sleep = Arc::new(move |time| host.sleep(time));
        store = Arc::new(Slow::new(store, array, Arc::new(move || clock.now()), sleep));
    }
    Ok(Opened { store, ownership, directory })
}

#[cfg(test)]
mod tests {
    use forebay_store::DirectoryOptions;

    use super::*;
    use crate::config::{ConfigFile, Overrides, StoreFlags};

    fn in_ceph(data: &Path) -> ServeConfig {
        let pool = Some("rados:vms/desktops".parse().unwrap());
        let store = StoreFlags { pool, ..StoreFlags::default() };
        let flags = Overrides { data: Some(data.to_owned()), store, ..Overrides::default() };
        ServeConfig::resolve(ConfigFile::default(), flags).unwrap()
    }

    #[test]
    fn the_data_directory_of_a_pool_in_ceph_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        prepare_data(&in_ceph(&data)).unwrap();
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "it is created, and is no pool");
        std::fs::write(data.join("other"), "file").unwrap();
        prepare_data(&in_ceph(&data)).unwrap();
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
    }

    #[test]
    fn a_data_directory_with_a_pool_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirectoryStore::open(dir.path(), &DirectoryOptions::default()).unwrap());
        let error = prepare_data(&in_ceph(dir.path())).unwrap_err().to_string();
        assert!(error.contains("contains a pool") && error.contains("rados:vms/desktops"), "{error}");
        let file = dir.path().join("superblock");
        assert!(matches!(prepare_data(&in_ceph(&file)), Err(ServeError::Data { .. })));
    }

    #[test]
    fn errors_name_the_pool() {
        let pool = in_ceph(Path::new("/d")).location.to_string();
        let error = ServeError::Store { pool, source: StoreError::ReadOnly };
        assert_eq!(error.to_string(), "cannot open the pool in rados:vms/desktops: the store is read-only");
    }
}
