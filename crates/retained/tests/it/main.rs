//! Retained memory from outside.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod basics;
mod common;
mod corpus;
mod hostile;
mod model;
mod shared;
mod speed;
mod steps;
