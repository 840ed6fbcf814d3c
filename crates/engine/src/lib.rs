//! The engine: what happens between a guest's request and the store.
//!
//! It knows no sockets, and has no clock and no randomness of its own: a [`Host`] hands them in, so that a
//! simulation can drive it. The modules, in the order of the path of a write, then of a read, then of the
//! work behind both:
#[allow(dead_code, unused_imports)]
mod disk;
mod buffer;
mod commit;
mod log;
mod apply;
mod map;
mod volume;
mod catalogue;

mod read;
mod cache;
mod fetch;

mod pool;
mod admin;
mod checkpoint;
mod recovery;
mod scan;
mod reclaim;

mod error;
mod hash;
mod host;
mod limits;
mod stats;

pub use admin::{CloneRequest, DiskInfo};
pub use disk::{Disk, Extent, Fast};
pub use error::{Error, Result};
pub use forebay_format::{DiskId, Role, SyncMode};
pub use host::{BoxFuture, Host};
pub use pool::{Pool, PoolConfig};
pub use stats::{CacheStats, Count, GuestStats, PoolStats, StoreStats};
