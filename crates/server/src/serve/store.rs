//! Opening the store of a pool: in the data directory, or in Ceph.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use forebay_engine::Host;
use forebay_store::rados::{Claim, RadosStore, Waiting};
use forebay_store::{BoxFuture, DirectoryOptions, DirectoryStore, Limited, Slow, Store, StoreError};

use super::ServeError;
use super::claim::{self, Stopped};
use super::descriptors::Descriptors;
use super::notify;
use crate::config::{PoolLocation, RadosPool, ServeConfig};
use crate::metrics::Held;
use crate::plane::Gate;

/// Creates a future that completes when another server has taken the store. It may keep the store open.
pub(super) type Lost = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// An open store.
pub(super) struct Opened {
    pub store: Arc<dyn Store>,
    pub lost: Lost,
    pub gate: Gate,
    /// The ownership of a pool in Ceph.
    pub held: Option<Held>,
}

/// Prepares the data directory of a server whose pool is elsewhere: it holds the files of the server only.
///
/// # Errors
/// It contains a pool, which the server would not serve.
pub(super) fn prepare_data(config: &ServeConfig) -> Result<(), ServeError> {
    let PoolLocation::Rados(pool) = &config.location else { return Ok(()) };
    let data = &config.data;
    let failed = |error| ServeError::Data { path: data.clone(), error };
    std::fs::create_dir_all(data).map_err(failed)?;
    match DirectoryStore::exists_in(data).map_err(failed)? {
        true => Err(ServeError::TwoPools { path: data.clone(), pool: pool.address.to_string() }),
        false => Ok(()),
    }
}

/// Opens the store of a server, with the configured size limit and simulated latency. In a directory, creates
/// it if the directory is missing or empty. `host` provides the timer for the latency.
///
/// # Errors
/// [`StoreError::Busy`] if another server holds the pool.
pub(super) async fn open(
    config: &ServeConfig,
    descriptors: &Descriptors,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    let opened = match &config.location {
        PoolLocation::Directory(path) => open_directory(path, descriptors),
        PoolLocation::Rados(pool) => {
            let open = opener(pool, Claim::IfFree);
            claim::blocking(move || open(&Stopped::default())).await
        }
    };
    finish(opened, config, host).await
}

/// As [`open`] for a pool in Ceph, but a standby waits while another server holds it. `None` if `stop`
/// completes before.
pub(super) async fn open_when_free(
    config: &ServeConfig,
    pool: &RadosPool,
    host: Arc<dyn Host>,
    stop: Pin<&mut (dyn Future<Output = ()> + '_)>,
) -> Result<Option<Opened>, ServeError> {
    let claim = if config.standby { Claim::Wait } else { Claim::IfFree };
    match claim::open(opener(pool, claim), stop).await.transpose() {
        Some(opened) => finish(opened, config, host).await.map(Some),
        None => Ok(None),
    }
}

fn open_directory(path: &Path, descriptors: &Descriptors) -> Result<Opened, StoreError> {
    let options = DirectoryOptions { open_files: descriptors.open_files, ..DirectoryOptions::default() };
    let store = DirectoryStore::open(path, &options)?;
    let (uring, direct) = store.modes();
    tracing::info!(uring, direct, "store open");
    // The lock of the directory prevents it.
    let lost = Box::new(|| -> BoxFuture<'static, ()> { Box::pin(std::future::pending()) });
    Ok(Opened { store, lost, gate: Gate::default(), held: None })
}

/// A function that opens a pool in Ceph.
fn opener(
    pool: &RadosPool,
    claim: Claim,
) -> impl FnOnce(&Stopped) -> Result<Opened, StoreError> + Send + 'static {
    let RadosPool { address, options } = pool.clone();
    move |stopped| {
        tracing::info!(pool = %address, "opening the pool");
        let began = |owner: &str| {
            tracing::info!(pool = %address, %owner, "waiting for the pool: another server holds it");
            notify::notify("STATUS=standby: waiting for the pool");
        };
        let waiting = Waiting { is_cancelled: &|| stopped.get(), began: &began };
        let store = RadosStore::open(&address, &options, claim, &waiting)?;
        tracing::info!(pool = %address, "store open");
        notify::notify("STATUS=opening the pool");
        let (held, gate) = (store.clone(), Gate::new(store.ownership()));
        let ownership =
            Held { owner: store.owner().to_owned(), term: store.term(), lease_left: store.lease_left() };
        Ok(Opened { store, lost: Box::new(move || held.lost()), gate, held: Some(ownership) })
    }
}

/// Adds the limit and the latency of the configuration.
async fn finish(
    opened: Result<Opened, StoreError>,
    config: &ServeConfig,
    host: Arc<dyn Host>,
) -> Result<Opened, ServeError> {
    let failed = |source| ServeError::Store { pool: config.location.to_string(), source };
    let Opened { mut store, lost, gate, held } = opened.map_err(failed)?;
    if let Some(limit) = config.store_limit {
        tracing::info!(limit, "the size of the pool is limited, as configured");
        store = Arc::new(Limited::new(store, limit).await.map_err(failed)?);
    }
    if let Some(array) = config.store_slow {
        tracing::warn!(?array, "the store simulates the latency of an array, as configured");
        let clock = host.clone();
        let sleep = Arc::new(move |time| host.sleep(time));
        store = Arc::new(Slow::new(store, array, Arc::new(move || clock.now()), sleep));
    }
    Ok(Opened { store, lost, gate, held })
}

#[cfg(test)]
mod tests {
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
