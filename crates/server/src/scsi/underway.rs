//! Commands that change what a unit holds, from their admission to their end.
//!
//! Whoever has the commands of a nexus aborted, to fence a host off or to reset the unit, is not answered before the
//! last of them has changed what it can (SAM-5, "Aborting commands"): a host that takes over would find writes of
//! the one before it land on its own. Commands that run cannot be stopped, so they are waited for. Those that come
//! later are not: they enter by a new gate, and were checked against what made the old one close.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// Where the commands of one nexus enter.
#[derive(Default)]
pub(super) struct Gate(Mutex<Arc<RwLock<()>>>);

/// A command that has entered. It is over when this is dropped.
pub struct Underway(#[allow(dead_code)] OwnedRwLockReadGuard<()>);

/// A gate by which no command enters any more.
pub(super) struct Closed(Arc<RwLock<()>>);

impl Gate {
    /// Lets a command in, before it is checked whether it may run.
    #[inline]
    pub fn enter(&self) -> Underway {
        loop {
            let gate = self.0.lock().clone();
            // One that has closed meanwhile has a successor.
            if let Ok(entered) = gate.try_read_owned() {
                return Underway(entered);
            }
        }
    }

    /// Closes the gate, and opens a new one.
    pub fn close(&self) -> Closed {
        Closed(std::mem::take(&mut *self.0.lock()))
    }
}

impl Closed {
    /// Waits until all commands that entered are over.
    pub async fn empty(&self) {
        drop(self.0.write().await);
    }
}
