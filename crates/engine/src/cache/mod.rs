//! The read cache and the table of misses under way: the stages of a read between block map and store.
//!
//! **Theory.** An address names the same bytes forever (addresses are never reused, and moving data does not
//! change them), so a cached block can never be stale. There is nothing to invalidate: no write, discard,
//! rollback or deletion touches this cache. Unreachable blocks are not requested again and are evicted in due
//! course. For the same reason one copy serves every clone of an image.
//!
//! **Invariants.**
//! - A block is inserted only after its checksum was verified; [`ReadCache::get`] copies out exactly the
//!   bytes that were inserted for that address, never a mixture: insertion, copying out and eviction exclude
//!   each other by the lock of the address's shard.
//! - All memory, overhead included, stays within the budget. Overhead is at most 64 bytes for each cached
//!   block, and that of the advice on its size; there is no allocation per block.
//! - No lock is held across an await, or while memory for blocks is allocated.
//!
//! **Misses.** If several readers miss the same address, [`MissTable`] makes one of them the *leader*, which
//! reads the store; the others wait for its result. The protocol between cache and table is described there.

mod advice;
mod copy;
mod frames;
mod ghost;
mod miss;
mod pages;
mod read;
mod shard;
mod share;

#[cfg(test)]
mod tests;

pub use copy::CachedBlock;
pub(crate) use miss::{Leader, MissRole, MissTable};
pub(crate) use read::ReadCache;
pub(crate) use shard::Rank;
pub(crate) use share::Owner;
