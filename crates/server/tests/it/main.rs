//! The control plane from outside: the API's router, imports from real files, and the binary itself.

#![allow(clippy::unwrap_used)] // a test that meets an error has failed

mod api;
mod common;
mod formats;
mod hostile;
mod import;
mod process;
mod targets;
