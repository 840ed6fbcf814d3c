//! Loops over tables that grow with the pool, without pauses for what runs on the same thread.

use tokio::task::yield_now;

use crate::limits::TABLE_TURN;

/// Counts the steps of such a loop, and lets other tasks run from time to time.
#[derive(Debug, Default)]
pub(crate) struct Turns(usize);

impl Turns {
    /// Called in each step.
    #[inline]
    pub async fn step(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(TABLE_TURN) {
            yield_now().await;
        }
    }
}
