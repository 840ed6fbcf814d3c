//! Helpers of several tests.

use std::sync::Arc;

use forebay_retained::*;

pub const IDENTITY: Identity = Identity { pool: *b"pool-of-16-bytes", boot: *b"boot-of-16-bytes" };
pub const LIMIT: u64 = 64 << 20;
pub const ID: u64 = 0x1234_5678_9abc_def0;

pub fn heap() -> Arc<HeapMemory> {
    Arc::new(HeapMemory::new(64))
}

pub fn create(memory: &Arc<HeapMemory>) -> Arc<Retained> {
    Retained::create(memory.clone(), &IDENTITY, ID, LIMIT).unwrap()
}

/// What a kill at this moment leaves.
pub fn reopen(memory: &HeapMemory) -> Result<(Arc<Retained>, Contents), Lost> {
    Retained::open(Arc::new(memory.snapshot()), &IDENTITY, LIMIT)
}

pub fn block(disk: u32, block: u64) -> BlockRecord {
    BlockRecord { disk, block, mask: 0xff, generation: 7 }
}

pub fn range(disk: u32, start: u64, end: u64) -> RangeRecord {
    RangeRecord { disk, start, end, allocated: start.is_multiple_of(2), generation: 3 }
}

/// Publishes a page that is filled with words of `seed`.
pub fn put(retained: &Arc<Retained>, room: Option<&mut Reservation>, of: BlockRecord, seed: u64) -> Page {
    retained.page(room, of, |page| page.copy_from_slice(&content(seed)))
}

pub fn content(seed: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes());
    }
    page
}
