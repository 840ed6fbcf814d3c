//! The engine: what happens between a guest's request and the store.
//!
//! It knows no sockets, and has no clock and no randomness of its own: a [`Host`] hands them in, so that a
//! simulation can drive it. The modules, in the order of the path of a write, then of a read, then of the
//! work behind both:
mod apply;
mod buffer;
mod catalogue;
mod classes;
mod commit;
mod copy;
mod damage;
mod dedup;
mod desktop;
mod disk;
mod log;
mod map;
mod notes;
mod reduce;
mod reset;
mod schedule;
mod update;
mod volume;
mod warm;
mod zero;

mod bulk;
mod cache;
mod fetch;
mod places;
mod plausible;
mod profile;
mod read;
mod stored;

mod admin;
mod check;
mod checkpoint;
mod clean;
mod directory;
mod footers;
mod governor;
mod history;
mod inspect;
mod loss;
mod mark;
mod mutation;
mod pool;
mod reclaim;
mod recovery;
mod scan;
mod upkeep;
mod victims;

mod error;
mod hash;
mod host;
mod limits;
mod stats;
mod sync;

pub use admin::{CloneRequest, DiskInfo};
pub use check::{CheckReport, Problem, check};
pub use classes::{ClassStats, ClassesInfo, Peek};
pub use disk::{Disk, Extent, Fast};
pub use error::{Error, Result};
pub use forebay_format::SegmentId;
pub use forebay_format::{DiskId, Role, SyncMode};
pub use host::{BoxFuture, Host};
pub use inspect::{
    BatchView, SegmentView, SuperblockView, inspect_batches, inspect_segments, inspect_superblocks,
};
pub use loss::{DamagedPlace, DiskLoss, LogDamage, LossReport, recover_log};
#[doc(hidden)]
pub use mutation::Mutation;
pub use pool::{Pool, PoolConfig};
pub use profile::{BootProfile, Prefetched, ProfileInfo};
pub use schedule::Coalesce;
pub use stats::{
    CacheStats, CommitStats, Count, DesktopStats, DiskSpace, DiskStats, GcPhase, GcProgress, GuestStats,
    Memory, PoolStats, ReductionStats, Room, SpaceStats, StoreStats,
};
pub use zero::is_zero;
