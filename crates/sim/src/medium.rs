//! The state that survives a crash: the machine of the faulty store, which each life of the pool opens again.

use std::sync::Arc;

use forebay_store::{Crash, FaultyStore, Store};

/// The state of a machine that survives a crash.
pub struct Medium {
    opening: Arc<FaultyStore>,
}

impl Medium {
    /// Makes an empty medium whose random choices follow from `seed`; each operation takes up to `delay`
    /// further polls. On every second medium, an append that requests it is durable without a sync.
    pub fn new(seed: u64, delay: u32) -> Medium {
        let opening = FaultyStore::new(seed);
        opening.set_delay(delay);
        opening.set_syncs_appends(seed.is_multiple_of(2));
        Medium { opening }
    }

    /// The currently open store, to set faults or to inspect it.
    pub fn faults(&self) -> &FaultyStore {
        &self.opening
    }

    /// The machine, for a crash while the round runs.
    pub fn machine(&self) -> Arc<FaultyStore> {
        self.opening.clone()
    }

    /// Returns the store for the next pool.
    pub fn store(&self) -> Arc<dyn Store> {
        self.opening.clone()
    }

    /// Stops and restarts the machine.
    pub fn crash(&mut self, crash: Crash) {
        self.opening.crash(crash);
        self.opening = self.opening.reopen();
    }

    /// The pool is closed: unfinished operations are lost as at the end of a process.
    pub fn release(&mut self) {
        self.opening = self.opening.reopen();
    }
}
