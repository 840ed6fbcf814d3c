//! The ownership of the pool: claiming it, keeping it, losing it, and handing it over to another server.
//!
//! [`contract`] declares what the server needs of it, and two modules implement that: `directory` and `ceph`.
//! [`candidate`] is the process that does not own the pool yet, or not any more.

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
