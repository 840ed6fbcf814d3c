//! Integration tests of the control plane: the API, access, imports and metrics on a pool in memory.

#![allow(clippy::unwrap_used)] // an error fails the test

mod access;
mod api;
mod common;
mod corpus;
mod dashboard;
mod exports;
mod formats;
mod hostile;
mod images;
mod import;
mod monitoring;
mod openapi;
mod packed;
#[allow(dead_code, reason = "the sessions of the front ends use the rest")]
#[path = "../../../frontend/tests/sessions/random.rs"]
mod random;
#[path = "../../../format/tests/corpus/mod.rs"]
mod stored;
mod targets;
mod uploads;
mod watch;
