//! The ownership of the pool: claiming it, keeping it, losing it, and handing it over to another server.

pub(super) mod claim;
pub(super) mod client_network;
pub(super) mod handover;
pub(super) mod heirs;
pub(super) mod lease;
pub(super) mod loss;
pub(super) mod publish;
pub(super) mod reopen;
pub(super) mod standby;
pub(super) mod store;
