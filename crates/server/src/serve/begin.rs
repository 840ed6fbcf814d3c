//! Opening the store and the pool, and binding the sockets, in the order that the start needs.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use forebay_engine::{Pool, PoolConfig};
use forebay_frontend::iscsi::WhileStandby;
use forebay_frontend::plane::Bound;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::listen::inherited::Inherited;
use super::listen::sockets::{self, Sockets};
use super::open::OpenPool;
use super::ownership::candidate::Candidate;
use super::ownership::claim;
use super::ownership::contract::Opened;
use super::ownership::lease::Lease;
use super::ownership::loss::{Loss, exit_without_pool};
use super::ownership::standby::StandbyPortals;
use super::ownership::store;
use super::{EngineThread, ServeError, Server};
use crate::config::{PoolLocation, RadosPool};

impl Server<'_> {
    pub(super) async fn open_store(&self, path: &Path) -> Result<Opened, ServeError> {
        let opened = store::open(path, self.config, &self.descriptors, self.engine.host()).await?;
        self.engine.use_memory_of(opened.directory);
        Ok(opened)
    }

    /// This process as a candidate for the pool.
    pub(super) async fn candidate(&self) -> Result<Candidate, ServeError> {
        let failed = |source| ServeError::Store { pool: self.config.location.to_string(), source };
        Candidate::new(&self.config.location).await.map_err(failed)
    }

    /// Opens the store, and binds the sockets. Returns `None` if a signal to stop arrives while another
    /// server holds the pool. Also returns the portals that were served while waiting.
    pub(super) async fn open_store_and_bind(
        &mut self,
        mut inherited: Inherited,
    ) -> Result<Option<(Arc<Lease>, Sockets, Option<StandbyPortals>)>, ServeError> {
        let (config, none) = (self.config, Bound::default());
        let pool = match &config.location {
            PoolLocation::Rados(pool) => pool,
            PoolLocation::Directory(path) => {
                // Creating a store requires an empty directory, and the sockets may be in the same one.
                let store = Lease::new(self.open_store(path).await?);
                return Ok(Some((store, Sockets::bind(config, inherited, none)?, None)));
            }
        };
        if !config.standby {
            let sockets = Sockets::bind(config, inherited, none)?;
            let opened = self.wait_for_store(pool, None).await?;
            return Ok(opened.map(|(store, _)| (store, sockets, None)));
        }
        // The server that holds the pool may have the addresses of a standby.
        let iscsi = match config.iscsi_paths.while_standby {
            WhileStandby::Closed => None,
            _ => Some(sockets::bind_iscsi(config, &mut inherited)?),
        };
        let Some((store, portals)) = self.wait_for_store(pool, iscsi.as_ref()).await? else {
            return Ok(None);
        };
        let sockets = Sockets::bind(config, inherited, iscsi.unwrap_or_default())?;
        Ok(Some((store, sockets, portals)))
    }

    /// Opens the store of a pool in Ceph. While another server holds it, clients of `iscsi` are served as a
    /// standby does. `None` if a signal to stop arrives.
    async fn wait_for_store(
        &mut self,
        pool: &RadosPool,
        iscsi: Option<&Bound>,
    ) -> Result<Option<(Arc<Lease>, Option<StandbyPortals>)>, ServeError> {
        let (begins, begun) = oneshot::channel();
        let begins = Mutex::new(Some(begins));
        let waits = move || {
            if let Some(begins) = begins.lock().take() {
                // Without portals, no task waits for this.
                let _ = begins.send(());
            }
        };
        let host = self.engine.host();
        let stop = pin!(self.signals.stop());
        let mut opening = pin!(store::open_when_free(self.config, pool, host, stop, waits));
        let (opened, portals) = tokio::select! {
            biased;
            opened = &mut opening => (opened?, None),
            Some(iscsi) = async { begun.await.ok().and(iscsi) } => {
                let (descriptors, groups) = (&self.descriptors, &self.groups);
                let portals = StandbyPortals::start(self.config, descriptors, pool, groups, iscsi.try_clone()?)?;
                (opening.await?, Some(portals))
            }
        };
        match (opened, portals) {
            (Some(opened), portals) => Ok(Some((Lease::new(opened), portals))),
            (None, portals) => {
                if let Some(portals) = portals {
                    portals.shutdown().await;
                }
                Ok(None)
            }
        }
    }

    /// Opens the pool. `None` if a signal to stop arrives before. The store may not answer, and no client is
    /// served yet: so the caller calls [`exit_while_opening`].
    pub(super) async fn open_pool_unless_stopped(
        &mut self,
        store: Arc<Lease>,
    ) -> Result<Option<OpenPool>, ServeError> {
        let opening = Self::open_pool(store, self.engine.clone(), self.reloader.current().pool.clone());
        tokio::select! {
            biased;
            opened = opening => opened.map(Some),
            () = self.signals.stop() => Ok(None),
            () = claim::keep_starting() => unreachable!("it never completes"),
        }
    }

    async fn open_pool(
        store: Arc<Lease>,
        engine: Arc<EngineThread>,
        config: PoolConfig,
    ) -> Result<OpenPool, ServeError> {
        let opened = Instant::now();
        let opening = Pool::open(store.clone(), engine.host(), config);
        let pool = tokio::select! {
            biased;
            () = store.lost() => exit_without_pool(Loss::Taken),
            pool = engine.run(opening) => pool?,
        };
        tracing::info!("opened the pool in {} ms", opened.elapsed().as_millis());
        Ok(OpenPool { pool, store, engine })
    }
}

/// Ends the process as a crash would.
pub(super) fn exit_while_opening() -> ! {
    tracing::info!("stopped while the pool was opened");
    // SAFETY: the call does not return. It runs no exit handlers, because other threads still run.
    unsafe { libc::_exit(0) }
}
