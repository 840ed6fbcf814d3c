//! Tests of the NBD server over real sockets, with a pool in memory.

mod access;
mod bad_input;
pub mod client;
mod exports;
mod fenced;
mod flow;
mod ghosts;
mod lost;
mod quota;
mod relay;
mod service;
mod support;
mod tls;
