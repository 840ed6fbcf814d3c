//! The engine from outside, on stores in memory. The package of these tests is compiled without optimisation,
//! unlike the engine: it would take ten times as long to compile.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod ahead;
mod check;
mod classes;
mod clean;
mod cluster_images;
mod cold;
mod commit_here;
mod common;
mod copy;
mod damage;
mod desktop;
mod differences;
mod export;
mod fair;
mod fenced;
mod formats;
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
mod receive;
mod reduction;
mod retained;
mod schedule;
mod uncommitted;
mod update;
mod used;
