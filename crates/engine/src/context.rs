//! The context that all components of an open pool share: the host, the configuration, and whether the pool
//! runs.

use std::sync::{Arc, OnceLock};

use forebay_retained::Retained;
use forebay_store::StoreError;
use tokio::sync::Notify;

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
    /// The first failure of the store or the maps. If it is set, the pool has latched.
    failure: OnceLock<String>,
    /// Another server has opened the pool, so this pool has latched. It is set also after a failure.
    is_fenced: AtomicBool,
    /// Notified when `failure` or `is_fenced` is set.
    has_latched: Notify,
}

impl Context {
    /// Returns the context of a pool that runs.
    pub fn new(host: Arc<dyn Host>, config: PoolConfig, retained: Arc<Retained>) -> Arc<Context> {
        let (closing, is_fenced, has_latched) =
            (AtomicBool::new(false), AtomicBool::new(false), Notify::new());
        Arc::new(Context {
            host,
            config,
            retained,
            closing,
            failure: OnceLock::new(),
            is_fenced,
            has_latched,
        })
    }

    /// Latches the pool: it acknowledges nothing until it is opened again. Of several failures, the first one
    /// is kept. The writes that are not in the log stay in the retained memory for the next opening.
    ///
    /// A pool that has latched because of a failure still serves reads, until it is known that another server
    /// has opened the pool: then its data may be older than the data that the other server returns.
    pub fn latch(&self, why: &Error) {
        match why {
            Error::Fenced => self.is_fenced.store(true, Release),
            other => {
                let _ = self.failure.set(other.to_string());
            }
        }
        // A write that finds the memory frozen must find the pool latched before it is answered.
        self.retained.freeze();
        self.has_latched.notify_waiters();
    }

    /// The result of an operation of the store. If the error states that another server has opened the pool,
    /// the pool latches: from then on nothing may be acknowledged.
    pub fn fencing<T>(&self, result: std::result::Result<T, StoreError>) -> Result<T> {
        let result = result.map_err(Error::from);
        if let Err(e @ Error::Fenced) = &result {
            self.latch(e);
        }
        result
    }

    /// Returns an error if the pool has latched.
    pub fn check_latch(&self) -> Result<()> {
        self.check_fenced()?;
        match self.failure.get() {
            Some(why) => Err(Error::Latched(why.clone())),
            None => Ok(()),
        }
    }

    /// Why the pool has failed; `None` if it has not failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Whether another server has opened the pool. If so, not even a read may be answered: the other server
    /// may have changed the disk.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Acquire)
    }

    /// Returns an error if another server has opened the pool.
    pub fn check_fenced(&self) -> Result<()> {
        if self.is_fenced() { Err(Error::Fenced) } else { Ok(()) }
    }

    /// Waits until another server has opened the pool.
    pub async fn fenced(&self) {
        self.until(|| self.is_fenced()).await;
    }

    /// Waits until the pool has latched.
    pub async fn latched(&self) {
        self.until(|| self.check_latch().is_err()).await;
    }

    async fn until(&self, is_reached: impl Fn() -> bool) {
        loop {
            // The future receives notifications from its creation on.
            let has_latched = self.has_latched.notified();
            if is_reached() {
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
            let (cx, mut steps) = (pool.components().cx.clone(), 0);
            set_hook(Some(Box::new(move || {
                steps += 1;
                if steps == step {
                    cx.latch(&Error::Fenced);
                }
            })));
            let written = disk.try_write(0, &[2; BLOCKS * BLOCK]);
            set_hook(None);
            let is_latched = pool.components().cx.check_latch().is_err();
            let retained = pool.components().cx.retained.stats().unretained == 0;
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
