//! The context shared by all parts of an open pool: the host, the configuration, and whether the pool runs.

use std::sync::{Arc, OnceLock};

use forebay_retained::Retained;
use tokio::sync::Notify;

use crate::config::PoolConfig;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::{Error, Host, Result};

/// Why a pool has latched.
enum Latch {
    /// The store or the maps failed.
    Failed(String),
    /// Another server has opened the pool.
    Fenced,
}

/// Host, configuration and state of a pool.
pub(crate) struct Context {
    pub host: Arc<dyn Host>,
    pub config: PoolConfig,
    /// The memory of the write buffers.
    pub retained: Arc<Retained>,
    closing: AtomicBool,
    /// Set once the pool has latched.
    latched: OnceLock<Latch>,
    /// Signalled when it has latched.
    has_latched: Notify,
}

impl Context {
    /// The context of a running pool.
    pub fn new(host: Arc<dyn Host>, config: PoolConfig, retained: Arc<Retained>) -> Arc<Context> {
        let (closing, latched) = (AtomicBool::new(false), OnceLock::new());
        Arc::new(Context { host, config, retained, closing, latched, has_latched: Notify::new() })
    }

    /// Latches the pool: it acknowledges nothing until it is opened again. Only the first reason is kept. The
    /// writes that are not in the log stay in the retained memory for the next opening.
    pub fn latch(&self, why: &Error) {
        self.retained.keep();
        let latch = match why {
            Error::Fenced => Latch::Fenced,
            other => Latch::Failed(other.to_string()),
        };
        let _ = self.latched.set(latch);
        self.has_latched.notify_waiters();
    }

    /// Returns an error if the pool has latched.
    pub fn check_latch(&self) -> Result<()> {
        match self.latched.get() {
            Some(Latch::Failed(why)) => Err(Error::Latched(why.clone())),
            Some(Latch::Fenced) => Err(Error::Fenced),
            None => Ok(()),
        }
    }

    /// Whether another server has opened the pool. Then not even a read may be answered: that server may have
    /// changed the disk since.
    pub fn is_fenced(&self) -> bool {
        matches!(self.latched.get(), Some(Latch::Fenced))
    }

    /// Returns an error if another server has opened the pool.
    pub fn check_fenced(&self) -> Result<()> {
        if self.is_fenced() { Err(Error::Fenced) } else { Ok(()) }
    }

    /// Waits until another server has opened the pool.
    pub async fn fenced(&self) {
        loop {
            // It receives notifications from its creation on.
            let has_latched = self.has_latched.notified();
            if self.is_fenced() {
                return;
            }
            has_latched.await;
        }
    }

    /// Returns an error if the pool has latched or is being closed, and so accepts no changes.
    pub fn check_running(&self) -> Result<()> {
        self.check_latch()?;
        if self.is_closing() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Marks the pool as being closed. The caller holds the freeze gate exclusively.
    pub fn begin_close(&self) {
        self.closing.store(true, Release);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Acquire)
    }
}
