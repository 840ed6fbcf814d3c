//! What survives a crash: the faulty store's machine, of which each life of the pool gets a new opening.

use std::sync::Arc;

use forebay_store::{Crash, FaultyStore, Store};

/// The medium.
pub struct Medium {
    opening: Arc<FaultyStore>,
}

impl Medium {
    /// An empty medium, whose chance follows from `seed`; each operation takes up to `delay` polls more than
    /// one.
    pub fn new(seed: u64, delay: u32) -> Medium {
        let opening = FaultyStore::new(seed);
        opening.set_delay(delay);
        Medium { opening }
    }

    /// The store as it is open now: to set faults, or to look.
    pub fn faults(&self) -> &FaultyStore {
        &self.opening
    }

    /// The store, for the next pool.
    pub fn store(&self) -> Arc<dyn Store> {
        self.opening.clone()
    }

    /// Stops the machine and starts it again.
    pub fn crash(&mut self, crash: Crash) {
        self.opening.crash(crash);
        self.opening = self.opening.reopen();
    }

    /// The pool is closed: what it left undone is lost as if the process had ended.
    pub fn release(&mut self) {
        self.opening = self.opening.reopen();
    }
}
