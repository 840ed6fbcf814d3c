//! The engine: what happens between a guest's request and the store.
//!
//! It knows no sockets, and has no clock and no randomness of its own: a [`Host`] hands them in, so that a
//! simulation can drive it. The modules, in the order of the path of a write, then of a read, then of the
//! work behind both:
#[allow(dead_code, unused_imports)]
mod cache;
mod error;
mod host;
mod map;
mod pool;
mod stats;
mod volume;

pub use error::{Error, Result};
pub use forebay_format::{DiskId, Role, SyncMode};
pub use host::{BoxFuture, Host};
pub use pool::{CloneRequest, DiskInfo, Pool, PoolConfig};
pub use stats::{CacheStats, Count, GuestStats, PoolStats, StoreStats};
pub use volume::{Disk, Extent, Fast};
