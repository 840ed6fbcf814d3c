//! What the engine is handed from outside: time, randomness, tasks. A server hands in the real ones; a
//! simulation hands in a clock and a scheduler that it drives itself, and replays a run from its seed.

use std::time::Duration;

pub use forebay_store::BoxFuture;

/// The world around the engine.
pub trait Host: Send + Sync + 'static {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
    /// Wall-clock time in Unix milliseconds, for people to read.
    fn unix_ms(&self) -> u64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Runs a task of the engine to its end. `name` is for diagnosis.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Fills `bytes` with unpredictable bytes.
    fn random(&self, bytes: &mut [u8]);
}
