//! The changes of the table of targets that a session follows: which it has seen, and which are applied.
//!
//! A change is applied when the commands that change the units which it removed have ended.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::underway::Closed;

/// The changes of the table that a session follows.
#[derive(Default)]
pub struct Followed {
    /// The commands of removed units that may be in progress.
    ending: Mutex<Vec<Closed>>,
    /// Number of the last change that was seen.
    seen: AtomicU64,
    /// Number of the last change for which [`Followed::settle`] ended.
    applied: watch::Sender<u64>,
}

impl Followed {
    /// Records the commands of a unit that was removed.
    pub fn removed(&self, commands: Closed) {
        self.ending.lock().push(commands);
    }

    /// Records that the session has followed the table up to a change.
    pub fn has_seen(&self, change: u64) {
        self.seen.store(change, Relaxed);
    }

    /// A channel with the number of the last change that was applied.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Whether changes were seen that are not applied yet.
    pub fn is_behind(&self) -> bool {
        *self.applied.borrow() < self.seen.load(Relaxed)
    }

    /// Waits until the commands that change removed units have ended. After that, all changes that were seen
    /// are applied.
    pub async fn settle(&self) {
        loop {
            let Some(last) = self.ending.lock().last().cloned() else { break };
            last.empty().await;
            self.ending.lock().pop();
        }
        self.applied.send_replace(self.seen.load(Relaxed));
    }
}
