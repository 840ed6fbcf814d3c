//! The server's counters before and after a phase, and their difference.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Result;
use crate::targets::servers::Forebay;

/// Longest wait for an idle store.
const RESTLESS: Duration = Duration::from_secs(180);

/// Counters of `forebay stats --json`, or their growth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Reads and writes of guests, counted by the server.
    pub guest_ops: u64,
    /// Store reads.
    pub read_ops: u64,
    /// Bytes of store reads.
    pub read_bytes: u64,
    /// Store writes.
    pub write_ops: u64,
    /// Bytes of store writes.
    pub write_bytes: u64,
    /// Store syncs.
    pub sync_ops: u64,
    /// Objects deleted.
    pub delete_ops: u64,
    /// Overflows of desktops' write caches.
    pub overflow_ops: u64,
    /// Bytes of RAM that overflowed.
    pub overflow_bytes: u64,
    /// Commits of the log.
    pub commits: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Bytes that the cleaner moved.
    pub moved_bytes: u64,
    /// Lookups in the read cache that missed.
    pub cache_misses: u64,
    /// Lookups in the map cache that missed.
    pub map_misses: u64,
    /// Overflowed blocks that were zero, unchanged or duplicates.
    pub known_blocks: u64,
    /// Overflowed blocks that were stored.
    pub new_blocks: u64,
    /// Bytes in the write caches at the end (not their growth).
    pub cached_bytes: u64,
    /// Resident memory of the server at the end.
    pub memory_bytes: u64,
}

impl Counters {
    /// The counters now.
    pub fn now(forebay: &Forebay) -> Result<Counters> {
        let stats = forebay.stats()?;
        let get = |pointer| stats.get(pointer);
        let known = ["/reduction/zero_blocks", "/reduction/unchanged_blocks", "/reduction/duplicate_blocks"];
        Ok(Counters {
            guest_ops: get("/guest/read/ops")? + get("/guest/write/ops")?,
            read_ops: get("/store/read/ops")?,
            read_bytes: get("/store/read/bytes")?,
            write_ops: get("/store/write/ops")?,
            write_bytes: get("/store/write/bytes")?,
            sync_ops: get("/store/sync_ops")?,
            delete_ops: get("/store/delete_ops")?,
            overflow_ops: get("/desktops/overflow/ops")?,
            overflow_bytes: get("/desktops/overflow/bytes")?,
            commits: get("/commits")?,
            checkpoints: get("/checkpoints")?,
            moved_bytes: get("/moved_bytes")?,
            cache_misses: get("/read_cache/misses")?,
            map_misses: get("/map_cache/misses")?,
            known_blocks: known.into_iter().map(get).sum::<Result<u64>>()?,
            new_blocks: get("/reduction/new_blocks")?,
            cached_bytes: get("/desktops/cached_bytes")?,
            memory_bytes: get("/memory_bytes")?,
        })
    }

    /// Waits until the store is idle, which means that its counters do not change for `still`, and returns
    /// the counters: a phase includes all work that it has started.
    pub fn at_rest(forebay: &Forebay, still: Duration) -> Result<Counters> {
        let begun = Instant::now();
        let mut last = Counters::now(forebay)?;
        loop {
            sleep(still);
            let now = Counters::now(forebay)?;
            if (now.read_ops, now.write_ops) == (last.read_ops, last.write_ops) || begun.elapsed() > RESTLESS
            {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Growth since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            guest_ops: self.guest_ops - before.guest_ops,
            read_ops: self.read_ops - before.read_ops,
            read_bytes: self.read_bytes - before.read_bytes,
            write_ops: self.write_ops - before.write_ops,
            write_bytes: self.write_bytes - before.write_bytes,
            sync_ops: self.sync_ops - before.sync_ops,
            delete_ops: self.delete_ops - before.delete_ops,
            overflow_ops: self.overflow_ops - before.overflow_ops,
            overflow_bytes: self.overflow_bytes - before.overflow_bytes,
            commits: self.commits - before.commits,
            checkpoints: self.checkpoints - before.checkpoints,
            moved_bytes: self.moved_bytes - before.moved_bytes,
            cache_misses: self.cache_misses - before.cache_misses,
            map_misses: self.map_misses - before.map_misses,
            known_blocks: self.known_blocks - before.known_blocks,
            new_blocks: self.new_blocks - before.new_blocks,
            cached_bytes: self.cached_bytes,
            memory_bytes: self.memory_bytes,
        }
    }
}
