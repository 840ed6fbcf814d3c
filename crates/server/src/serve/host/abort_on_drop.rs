//! A task that ends with the value that holds it.

use tokio::task::JoinHandle;

/// A guard that ends a task when it is dropped.
pub(in crate::serve) struct AbortOnDrop(pub JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
