//! An open pool and its store.

use std::sync::Arc;

use forebay_engine::Pool;

use super::ownership::lease::Lease;
use super::ownership::loss::Loss;
use super::{EngineThread, ServeError};

/// A pool that this server has open; see the module documentation.
pub(super) struct OpenPool {
    pub pool: Arc<Pool>,
    pub store: Arc<Lease>,
    pub engine: Arc<EngineThread>,
}

impl OpenPool {
    pub async fn close(&self) -> Result<(), ServeError> {
        let pool = self.pool.clone();
        Ok(self.engine.run(async move { pool.close().await }).await?)
    }

    /// Makes a checkpoint, which is completed also if the caller does not wait for it.
    pub async fn checkpoint(&self) -> Result<(), ServeError> {
        let pool = self.pool.clone();
        Ok(self.engine.run(async move { pool.checkpoint().await }).await?)
    }

    /// Lets another server open the pool, which was closed.
    pub async fn release_store(&self) {
        // The next server opens the store first, and then the memory.
        self.engine.release_memory();
        let store = self.store.clone();
        // Only fails if the store panicked.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }

    /// Waits until another server has opened the pool or taken its store.
    pub async fn fenced(&self) -> Loss {
        tokio::select! {
            () = self.pool.fenced() => Loss::Opened,
            () = self.store.lost() => Loss::Taken,
        }
    }

    /// Clients are served from now on.
    pub fn announce_serving(&self) {
        if let Some(ownership) = self.store.ownership() {
            ownership.announce_serving();
        }
    }
}
