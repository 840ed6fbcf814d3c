//! A task that waits for the events of a connection which its client does not cause.

use std::future::Future;

use tokio::task::AbortHandle;

use super::contain::contained;

/// Ends the task when dropped.
pub(crate) struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watching {
    /// Runs `task` on this thread. `what` names the task in the log; `failed` is called if the task panics.
    pub fn spawn(
        what: &'static str,
        task: impl Future<Output = ()> + 'static,
        failed: impl FnOnce() + 'static,
    ) -> Watching {
        let watched = async move {
            if contained(what, task).await.is_err() {
                failed();
            }
        };
        Watching(tokio::task::spawn_local(watched).abort_handle())
    }
}
