//! The read cache and the table of misses under way: what a read passes between block map and store.
//!
//! **Theory.** An address names the same bytes for ever (addresses are never reused, and moving data does not
//! change them), so a cached block can never be stale. There is nothing to invalidate: no write, discard,
//! rollback or deletion touches this cache. Blocks that nobody can reach any more are simply not asked for
//! again and leave by themselves. For the same reason one copy serves every clone of an image.
//!
//! **Invariants.**
//! - A block gets in only after its checksum was verified; what [`ReadCache::get`] copies out is exactly what
//!   was inserted for that address, whole: insertion, copying out and eviction exclude each other by the lock
//!   of the address's shard.
//! - All memory, overhead included, stays within the budget. Overhead is at most 64 bytes for each cached
//!   block, and there is no allocation per block.
//! - No lock is held across an await, or while memory for blocks is made.
//!
//! **Misses.** [`MissTable`] makes one reader of several that miss the same address the *leader*, which reads
//! the store; the others wait for its result. See there for how the two play together.

mod frames;
mod ghost;
mod miss;
mod pages;
mod read;
mod shard;

#[cfg(test)]
mod tests;

pub(crate) use miss::{Leader, MissTable, Turn};
pub(crate) use read::ReadCache;
pub(crate) use shard::Rank;
