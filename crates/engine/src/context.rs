//! The context shared by all parts of an open pool: the host, the configuration, and whether the pool runs.

use std::sync::{Arc, OnceLock};

use forebay_retained::Retained;

use crate::config::PoolConfig;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::{Error, Host, Result};

/// Host, configuration and state of a pool.
pub(crate) struct Context {
    pub host: Arc<dyn Host>,
    pub config: PoolConfig,
    /// The memory of the write buffers.
    pub retained: Arc<Retained>,
    closing: AtomicBool,
    /// Set once the pool has latched: the reason.
    latched: OnceLock<String>,
}

impl Context {
    /// The context of a running pool.
    pub fn new(host: Arc<dyn Host>, config: PoolConfig, retained: Arc<Retained>) -> Arc<Context> {
        let closing = AtomicBool::new(false);
        Arc::new(Context { host, config, retained, closing, latched: OnceLock::new() })
    }

    /// Latches the pool: it acknowledges nothing until it is opened again. Only the first reason is kept. The
    /// writes that are not in the log stay in the retained memory for the next opening.
    pub fn latch(&self, why: &Error) {
        self.retained.keep();
        let _ = self.latched.set(why.to_string());
    }

    /// Returns an error if the pool has latched.
    pub fn check_latch(&self) -> Result<()> {
        match self.latched.get() {
            Some(why) => Err(Error::Latched(why.clone())),
            None => Ok(()),
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
