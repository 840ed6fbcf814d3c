//! The ownership of the pool: claiming it, keeping it, losing it, and handing it over to another server.
//!
//! [`contract`] declares the operations that the server needs, and two modules implement them: `directory`
//! and `ceph`. [`candidate`] is a process that does not yet own the pool, or no longer owns it.

pub(super) mod candidate;
mod ceph;
pub(super) mod claim;
pub(super) mod client_network;
pub(super) mod contract;
mod directory;
pub(super) mod handover;
pub(super) mod heirs;
pub(super) mod lease;
pub(super) mod loss;
pub(super) mod publish;
pub(super) mod reopen;
pub(super) mod standby;
pub(super) mod store;
