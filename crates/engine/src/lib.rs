//! The engine: everything between a guest's request and the store.
//!
//! It opens no sockets, and has no clock, threads or randomness: a [`Host`] provides them, so that a
//! simulation can drive it. An open pool consists of components, each of which owns a part of the state and
//! references only the components before it (`components.rs`).

// Tests may use the clock and threads; see clippy.toml.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod admin;
mod classes;
mod commit;
mod components;
mod context;
mod desktop;
mod handle;
mod marks;
mod offline;
mod pacing;
mod pool;
mod profile;
mod quota;
mod read;
mod reclaim;
mod recovery;
mod space;

mod block_classes;
mod block_ranges;
mod buffer;
mod cache;
mod catalogue;
mod client;
mod dedup;
mod disk;
mod fair;
mod limit;
mod log;
mod map;
mod memory;
mod occupied_blocks;
mod progress;
mod recordings;
mod scan_queue;
mod streams;
mod tables;
mod write_caches;

mod config;
mod error;
mod hash;
mod host;
mod limits;
mod log_damage;
mod lost;
mod mutation;
#[cfg(test)]
mod scale;
mod stats;
mod stored;
mod sync;
#[cfg(test)]
mod testing;
mod text;
mod used_blocks;
mod workers;
mod yield_counter;
mod zero;

pub use block_classes::{ClassStats, ClassesInfo};
pub use cache::CachedBlock;
pub use catalogue::check_name;
pub use classes::Peek;
pub use client::Client;
pub use commit::{commit_here, may_commit_here};
pub use config::{BootProfile, Coalesce, OnMemoryLoss, PoolConfig, RemoteAnswers};
pub use error::{Error, Result};
pub use forebay_format::SegmentId;
pub use forebay_format::{DiskId, Mark, PoolId, Role, SyncMode};
pub use handle::{Changed, DiskHandle, Extent, Fast, ReadFrom, Since};
pub use host::{BoxFuture, Host};
pub use limit::{Limits, Rate, RateLimits, TenantUsage};
pub use log_damage::{DamagedPlace, DiskLoss, LogDamage};
#[doc(hidden)]
pub use mutation::Broken;
#[cfg(not(feature = "mutation"))]
use mutation::Mutation;
#[cfg(feature = "mutation")]
#[doc(hidden)]
pub use mutation::Mutation;
pub use offline::{
    BatchView, CheckReport, FeaturesView, LossReport, Problem, SegmentView, SuperblockView, check,
    inspect_batches, inspect_segments, inspect_superblocks, recover_log,
};
pub use pool::{
    Affected, BlockRoom, CloneRequest, ClusterImage, ClusterImages, DiskInfo, DiskLimits, Export, ImageRoot,
    ImageSegments, Pool, PoolHealth, PoolImage, ReceiveError, ReceiveRequest, Receiving, TenantInfo,
    VolumePage, WrittenImage, segments_of_image,
};
pub use profile::ProfileInfo;
pub use read::Prefetched;
pub use stats::{
    CacheAdvice, CacheStats, ClassReads, CommitStats, Count, DesktopStats, DiskGuestStats, DiskSpace,
    DiskStats, GcPhase, GcProgress, GuestStats, Memory, PoolStats, ReductionStats, Room, SpaceStats,
    StoreStats,
};
pub use workers::Workers;
pub use zero::is_zero;
