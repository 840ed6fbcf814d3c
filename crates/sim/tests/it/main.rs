//! Simulated worlds, each replayed from its seed. `hostile.rs` is another binary: it counts allocations.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod clean;
mod faults;
mod hidden_quota;
mod live;
mod memory;
mod one_disk;
mod rados;
mod restarts;
mod room;
mod rounds;
mod world;
