//! The contract of a store, held by each backend.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod ceph;
mod common;
mod contract;
mod directory;
mod faulty;
mod rados;
mod rados_handover;
mod rados_membership;
