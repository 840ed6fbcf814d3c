//! The simulation: engine and store in a world of one thread, where time, order and chance follow from a seed.
//!
//! A round lets clients loose on a pool, ends its life at some step by a crash or a close, opens it again and
//! compares what it holds with a model. In the order in which a round meets them:
mod admin;
mod content;
mod copy;
mod ctx;
mod exec;
mod guest;
mod harm;
mod harness;
mod history;
pub mod hostile;
mod lie;
mod medium;
mod model;
mod plan;
mod recover;
mod refused;
mod rng;
mod round;
mod session;
pub mod trace;
mod verify;

pub use ctx::Tolerance;
pub use exec::{Executor, Ran, SimHost};
pub use harm::{Harm, flip_bits};
pub use harness::{attempt, env, rounds};
pub use lie::Liar;
pub use rng::Rng;
pub use round::Round;
