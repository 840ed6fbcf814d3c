//! The simulation: engine and store in a world of one thread, where time, order and chance follow from a seed.
//!
//! A round lets clients loose on a pool, ends its life at some step by a crash or a close, opens it again and
//! compares what it holds with a model. In the order in which a round meets them:
mod rng;
mod exec;
mod medium;
mod lie;
mod plan;
mod round;
mod ctx;
mod guest;
mod admin;
mod refused;
mod content;
mod history;
mod model;
mod verify;
mod recover;
mod harness;
pub mod trace;

pub use exec::{Executor, Ran, SimHost};
pub use lie::Liar;
pub use harness::{attempt, env, rounds};
pub use round::Round;
