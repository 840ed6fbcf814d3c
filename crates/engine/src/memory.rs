//! The engine's terms for retained memory: what it states there beyond blocks and zeroed ranges.

use forebay_format::BLOCK;
use forebay_retained::{Cover, HeapMemory};

use crate::PoolConfig;
use crate::limits::RETAINED_SLACK;

/// The flag of a desktop whose contents are valid. Without it, they are discarded when the pool is opened.
pub(crate) const VALID: u8 = 1;

/// No record is known to be in the log.
pub(crate) const NO_COVER: Cover = Cover { seq: u64::MAX, order: 0 };

/// Bytes that the retained memory of a pool may use: the budgets of the write buffers, and what pages that
/// are being replaced and chunks in partial use need in addition.
pub(crate) fn limit(config: &PoolConfig) -> u64 {
    let budgets = config.write_buffer.saturating_add(config.desktops);
    budgets.saturating_add(budgets / 8).saturating_add(RETAINED_SLACK)
}

impl PoolConfig {
    /// Most bytes of memory that outlives the server: what the write buffers and desktops can use.
    pub fn retained_memory(&self) -> u64 {
        limit(self)
    }
}

/// Memory on the heap for at most `limit` bytes.
pub(crate) fn heap(limit: u64) -> HeapMemory {
    HeapMemory::of_bytes(limit)
}

const _: () = assert!(BLOCK == forebay_retained::PAGE);
