//! What the engine keeps in retained memory in addition to blocks and zeroed ranges.

use forebay_format::BLOCK;
use forebay_retained::{Cover, HeapMemory};

use crate::PoolConfig;
use crate::limits::RETAINED_SLACK;

/// Type of the flag that the contents of a desktop are valid. Without the flag, they are discarded when the
/// pool is opened.
pub(crate) const VALID: u8 = 1;

/// The value that states that no record is known to be in the log.
pub(crate) const NO_COVER: Cover = Cover { seq: u64::MAX, order: 0 };

/// Bytes that the retained memory of a pool may use: the budgets of the write buffers, and in addition what
/// is needed for pages that are being replaced and for chunks in partial use.
pub(crate) fn limit(config: &PoolConfig) -> u64 {
    let budgets = config.write_buffer.saturating_add(config.desktops);
    budgets.saturating_add(budgets / 8).saturating_add(RETAINED_SLACK)
}

impl PoolConfig {
    /// Maximum bytes of retained memory, which outlives the server: what write buffers and desktops can use.
    pub fn retained_memory(&self) -> u64 {
        limit(self)
    }
}

/// Memory on the heap for at most `limit` bytes.
pub(crate) fn heap(limit: u64) -> HeapMemory {
    HeapMemory::of_bytes(limit)
}

const _: () = assert!(BLOCK == forebay_retained::PAGE);
