//! The context shared by all parts of an open pool: the host, the configuration, and whether the pool runs.

use std::sync::{Arc, OnceLock};

use forebay_retained::Retained;
use forebay_store::StoreError;
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
        let latch = match why {
            Error::Fenced => Latch::Fenced,
            other => Latch::Failed(other.to_string()),
        };
        let _ = self.latched.set(latch);
        // A write that finds the memory frozen must find the pool latched before it is answered.
        self.retained.freeze();
        self.has_latched.notify_waiters();
    }

    /// The result of an operation of the store. Latches the pool if another server has opened it: nothing may
    /// be acknowledged after a request has failed because of that.
    pub fn fencing<T>(&self, result: std::result::Result<T, StoreError>) -> Result<T> {
        let result = result.map_err(Error::from);
        if let Err(e @ Error::Fenced) = &result {
            self.latch(e);
        }
        result
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
        self.latched().await;
        if !self.is_fenced() {
            // Only the first reason is kept.
            std::future::pending().await
        }
    }

    /// Waits until the pool has latched.
    pub async fn latched(&self) {
        loop {
            // It receives notifications from its creation on.
            let has_latched = self.has_latched.notified();
            if self.latched.get().is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TokioHost;
    use crate::{Pool, SyncMode};
    use forebay_format::BLOCK;
    use forebay_retained::set_hook;
    use forebay_store::MemoryStore;

    /// The pool latches at each step of a write in turn: the write is acknowledged only if all of it is
    /// retained.
    #[tokio::test]
    async fn a_write_during_a_latch_is_retained_or_fails() {
        const BLOCKS: usize = 8;
        let mut failed = 0;
        for step in 1.. {
            let store = Arc::new(MemoryStore::new());
            let pool = Pool::open(store, TokioHost::new(), PoolConfig::default()).await.unwrap();
            pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
            let disk = pool.attach("v").unwrap();
            disk.write(0, &[1; BLOCKS * BLOCK], false).await.unwrap();
            let (cx, mut steps) = (pool.parts().cx.clone(), 0);
            set_hook(Some(Box::new(move || {
                steps += 1;
                if steps == step {
                    cx.latch(&Error::Fenced);
                }
            })));
            let written = disk.try_write(0, &[2; BLOCKS * BLOCK]);
            set_hook(None);
            let is_latched = pool.parts().cx.check_latch().is_err();
            let retained = pool.parts().cx.retained.stats().unretained == 0;
            assert!(written.is_err() || retained, "step {step}: acknowledged, and not retained");
            assert!(written.is_err() || !is_latched, "step {step}: acknowledged after the latch");
            failed += u32::from(written.is_err());
            if !is_latched {
                break;
            }
        }
        assert!(failed >= BLOCKS as u32, "{failed} writes met the latch");
    }
}
