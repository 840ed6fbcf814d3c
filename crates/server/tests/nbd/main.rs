//! The NBD server as clients meet it: over real sockets, with a pool in memory behind.

#![allow(clippy::unwrap_used)]

mod access;
mod bad_input;
mod client;
mod exports;
mod flow;
mod service;
mod support;
mod tls;

#[path = "../common/host.rs"]
mod host;
