//! Tests of the namespace from outside.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod crash;
mod semantics;
mod support;
