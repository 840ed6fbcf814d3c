//! The engine from outside, on stores in memory. `threads.rs` is another binary: it needs `--cfg shuttle`.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]
// The host of a test uses the clock and threads; see clippy.toml.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod ahead;
mod check;
mod classes;
mod clean;
mod cold;
mod commit_here;
mod common;
mod copy;
mod damage;
mod desktop;
mod fair;
mod fenced;
mod full;
mod interrupted;
mod loss;
mod lost_memory;
mod maps_damaged;
mod mark;
mod next_user;
mod notes;
mod overdue;
mod pool;
mod prepared;
mod profile;
mod quota;
mod reduction;
mod retained;
mod schedule;
mod uncommitted;
mod update;
mod upgrade;
