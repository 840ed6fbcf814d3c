//! The simulation: engine and store in a single-threaded world, where time, order and randomness follow from
//! a seed.
//!
//! A round runs clients on a pool (`round`, `admin`, `guest`, `copy`, `session`), ends its life at some step
//! by a crash or a close, opens it again, and compares its contents with a model (`model`, `history`,
//! `verify`, `recover`). In the world of `rados`, several servers share a pool in a simulated RADOS cluster.
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
mod machine;
mod medium;
mod model;
pub mod names;
mod plan;
pub mod rados;
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
pub use machine::{Machine, MemoryFate};
pub use rng::Rng;
pub use round::Round;
