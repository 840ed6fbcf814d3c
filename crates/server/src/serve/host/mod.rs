//! What the server asks of its host: descriptors, memory, signals, the service manager.

pub(super) mod abort_on_drop;
pub(super) mod descriptors;
pub(super) mod memory_files;
pub(super) mod memory_limits;
pub(super) mod notify;
pub(super) mod pressure;
pub(super) mod rlimit;
pub(super) mod signals;
