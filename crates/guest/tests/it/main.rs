//! Scans of file systems made by real tools. `hostile.rs` is another binary: it counts allocations.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod common;
mod corpus;
mod ext;
mod map;
mod ntfs;
mod partitions;
mod xfs;
