//! The server's counters before and after a phase, and their difference.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::targets::servers::{Forebay, counters};

/// Maximum wait until the store is idle.
const RESTLESS: Duration = Duration::from_secs(180);

counters! {
    /// Counters of a server, or their growth.
    Counters;
    grow {
        /// Reads and writes of guests, counted by the server.
        guest_ops: "/guest/read/ops" "/guest/write/ops";
        /// Reads of the store.
        read_ops: "/store/read/ops";
        /// Bytes of store reads.
        read_bytes: "/store/read/bytes";
        /// Writes to the store.
        write_ops: "/store/write/ops";
        /// Bytes of store writes.
        write_bytes: "/store/write/bytes";
        /// Syncs of the store.
        sync_ops: "/store/sync_ops";
        /// Objects that were deleted from the store.
        delete_ops: "/store/delete_ops";
        /// Overflows of desktops' write caches.
        overflow_ops: "/desktops/overflow/ops";
        /// Bytes of RAM that overflowed.
        overflow_bytes: "/desktops/overflow/bytes";
        /// Commits of the log.
        commits: "/commits";
        /// Checkpoints that were made.
        checkpoints: "/checkpoints";
        /// Bytes that the cleaner moved.
        moved_bytes: "/moved_bytes";
        /// Lookups in the read cache that missed.
        cache_misses: "/read_cache/misses";
        /// Lookups in the map cache that missed.
        map_misses: "/map_cache/misses";
        /// Overflowed blocks that were zero, unchanged or duplicates.
        known_blocks: "/reduction/zero_blocks" "/reduction/unchanged_blocks" "/reduction/duplicate_blocks";
        /// Overflowed blocks that were stored.
        new_blocks: "/reduction/new_blocks";
    }
    level {
        /// Bytes in the write caches.
        cached_bytes: "/desktops/cached_bytes";
        /// Resident memory of the server.
        memory_bytes: "/memory_bytes";
    }
}

impl Counters {
    /// Waits until the store is idle, which means that its counters do not change for `still`, and returns
    /// the counters: a phase includes all work that it has started.
    pub fn at_rest(forebay: &Forebay, still: Duration) -> Result<Counters> {
        let begun = Instant::now();
        let mut last = Counters::of(&forebay.stats()?)?;
        loop {
            sleep(still);
            let now = Counters::of(&forebay.stats()?)?;
            if (now.read_ops, now.write_ops) == (last.read_ops, last.write_ops) || begun.elapsed() > RESTLESS
            {
                return Ok(now);
            }
            last = now;
        }
    }
}
