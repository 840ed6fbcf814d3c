//! A counter for loops over tables that grow with the pool. Such a loop yields, so that other tasks of the
//! thread do not wait long.

use tokio::task::yield_now;

use crate::limits::YIELD_STEPS;

/// Counts the steps of a loop over a table, and yields to other tasks every [`YIELD_STEPS`] steps.
#[derive(Debug, Default)]
pub(crate) struct YieldCounter(usize);

impl YieldCounter {
    /// Counts one step of the loop; yields if it is time.
    #[inline]
    pub async fn step(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(YIELD_STEPS) {
            yield_now().await;
        }
    }
}
