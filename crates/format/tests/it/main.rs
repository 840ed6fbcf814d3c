//! The persisted structures from outside. `allocation.rs` is another binary: it counts allocations.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod document;
mod golden;
mod hostile;
mod properties;
mod superblocks;
