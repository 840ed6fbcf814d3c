//! What survives a crash.

use std::sync::Arc;

use forebay_store::{MemoryStore, Store};

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The power goes: what was not synced may be lost, torn or reordered.
    Power,
    /// The process is killed: what the kernel has, it keeps.
    Process,
}

/// The medium.
pub struct Medium {
    store: Arc<MemoryStore>,
}

impl Medium {
    /// An empty medium.
    pub fn new(_seed: u64) -> Medium {
        Medium { store: Arc::new(MemoryStore::new()) }
    }
    /// A store on it, for one opener.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
    /// A crash.
    pub fn crash(&mut self, _: Crash) {}
    /// The opener is gone.
    pub fn release(&mut self) {}
}
