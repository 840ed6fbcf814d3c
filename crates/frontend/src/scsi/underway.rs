//! Commands that change a unit, from their admission to their end.
//!
//! A request to abort the commands of another nexus, such as PREEMPT AND ABORT or a reset, is answered only
//! after the last of them has made its changes (SAM-5, "Aborting commands"): otherwise the writes of a host
//! that was fenced off could overwrite later writes of the host that fenced it. Running commands cannot be
//! stopped, so the request waits for them. It does not wait for commands that arrive later: these enter
//! through a new gate, and their checks already see the change for which the old gate was closed.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// The gate that the commands of one nexus enter.
#[derive(Default)]
pub struct Gate(Mutex<Gates>);

#[derive(Default)]
struct Gates {
    open: Arc<RwLock<()>>,
    /// Closed gates, as long as commands that entered them may not have ended: each later abort waits for
    /// these commands too.
    closed: Vec<Arc<RwLock<()>>>,
}

/// A command that has entered a gate. It must be dropped when the command changes nothing any more.
pub struct Underway(#[allow(dead_code)] OwnedRwLockReadGuard<()>);

/// The gates of a nexus that no further command can enter.
#[derive(Clone)]
pub struct Closed(Vec<Arc<RwLock<()>>>);

impl Gate {
    /// Enters a command. A command enters before the checks that decide whether it can run.
    #[inline]
    pub fn enter(&self) -> Underway {
        loop {
            // This cannot fail: `close` locks the open gate for writing only while it holds this mutex, and
            // aborts wait for the write locks of closed gates only.
            if let Ok(entered) = self.0.lock().open.clone().try_read_owned() {
                return Underway(entered);
            }
        }
    }

    /// Closes the gate and replaces it with a new gate. Closed gates without commands are forgotten, so there
    /// are never more gates than commands, even if many aborts wait.
    pub fn close(&self) -> Closed {
        let mut gates = self.0.lock();
        let is_used = |gate: &Arc<RwLock<()>>| gate.try_write().is_err();
        gates.closed.retain(is_used);
        if is_used(&gates.open) {
            let gate = std::mem::take(&mut gates.open);
            gates.closed.push(gate);
        }
        Closed(gates.closed.clone())
    }
}

impl Closed {
    /// Waits until all commands that entered the closed gates have ended.
    pub async fn empty(&self) {
        for gate in &self.0 {
            drop(gate.write().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn every_abort_waits_for_the_commands_that_entered_before() {
        let gate = Gate::default();
        let first = gate.enter();
        let closed = gate.close();
        let second = gate.enter();
        let again = gate.close();
        let has_ended = |closed: &Closed| closed.empty().now_or_never().is_some();
        assert!(!has_ended(&closed) && !has_ended(&again));
        drop(second);
        assert!(!has_ended(&again), "a command of the gate that was closed before runs");
        drop(first);
        assert!(has_ended(&closed) && has_ended(&again));
        assert!(gate.close().0.is_empty(), "gates without commands are forgotten");
    }
}
