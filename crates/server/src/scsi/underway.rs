//! Commands that change a unit, from their admission to their end.
//!
//! A request to abort the commands of another nexus, such as PREEMPT AND ABORT or a reset, is answered only
//! after the last of them has made its changes (SAM-5, "Aborting commands"): otherwise the writes of a host
//! that was fenced off could overwrite later ones of its successor. Running commands cannot be stopped, so
//! the request waits for them. It does not wait for commands that arrive later: these enter through a new
//! gate, and their checks already see the change for which the old gate was closed.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// The gate that the commands of one nexus enter.
#[derive(Default)]
pub(super) struct Gate(Mutex<Arc<RwLock<()>>>);

/// A command that has entered. Dropping this ends it.
pub struct Underway(#[allow(dead_code)] OwnedRwLockReadGuard<()>);

/// A gate that no further command can enter.
pub(super) struct Closed(Arc<RwLock<()>>);

impl Gate {
    /// Enters a command. This precedes the checks that decide whether it can run.
    #[inline]
    pub fn enter(&self) -> Underway {
        loop {
            let gate = self.0.lock().clone();
            // It fails only for a gate that was closed since; its successor is open.
            if let Ok(entered) = gate.try_read_owned() {
                return Underway(entered);
            }
        }
    }

    /// Closes the gate and replaces it with a new one.
    pub fn close(&self) -> Closed {
        Closed(std::mem::take(&mut *self.0.lock()))
    }
}

impl Closed {
    /// Waits until all commands that entered have ended.
    pub async fn empty(&self) {
        drop(self.0.write().await);
    }
}
