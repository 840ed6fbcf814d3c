//! Integration tests of the binary.

#![allow(clippy::unwrap_used)] // an error fails the test

#[path = "../../../control/tests/it/common.rs"]
#[allow(dead_code, reason = "the tests of the control plane use the rest")]
mod common;
mod fleet;
mod idle;
#[path = "../../../frontend/tests/it/nbd/client.rs"]
#[allow(dead_code, reason = "the tests of the front ends use the rest")]
mod nbd_client;
mod operate;
mod process;
