//! Opening a memory allocates in proportion to its size, whatever it contains. This is a separate test
//! program, because it replaces the allocator.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

#[path = "../../format/tests/counting/mod.rs"]
mod counting;

use std::sync::Arc;

use counting::{Counting, peak_of};
use forebay_format::{RETAINED_TABLE, RetainedChunk};
use forebay_retained::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const IDENTITY: Identity = Identity { pool: [1; 16], boot: [2; 16] };
const LIMIT: u64 = 64 << 20;
/// A record of 64 bytes becomes at most this many bytes.
const PER_BYTE: isize = 8;
/// For each chunk of address space, whether it has memory or not.
const PER_CHUNK: isize = 128;
const FIXED: isize = 64 << 10;

fn assert_proportional(content: &[Option<Vec<u8>>]) {
    let memory = Arc::new(HeapMemory::with_content(content));
    let present = content.iter().filter(|chunk| chunk.is_some()).count() * CHUNK;
    let (opened, used) = peak_of(|| Retained::open(memory, &IDENTITY, LIMIT));
    let limit = PER_BYTE * present as isize + PER_CHUNK * content.len() as isize + FIXED;
    assert!(used <= limit, "{used} bytes allocated for {present}, {opened:?}", opened = opened.err());
}

/// All records are in use, of each kind.
#[test]
fn as_many_records_as_possible() {
    let records = CHUNK as u32 / 64;
    type Make = fn(&Arc<Retained>, u32) -> Box<dyn Send>;
    let flag: Make = |retained, n| Box::new(retained.flag(n, 1));
    let range: Make = |retained, n| {
        let of = RangeRecord { disk: n, start: 0, end: u64::MAX, allocated: true, generation: 0 };
        Box::new(retained.range(None, of))
    };
    let page: Make = |retained, n| {
        let of = BlockRecord { disk: n, block: u64::MAX, mask: 255, generation: 0 };
        Box::new(retained.page(None, of, |page| page.fill(n as u8)))
    };
    for (make, count) in [(flag, records), (range, records), (page, 1000)] {
        let memory = Arc::new(HeapMemory::new(8));
        let retained = Retained::create(memory.clone(), &IDENTITY, 1, LIMIT).unwrap();
        let made: Vec<_> = (0..count).map(|n| make(&retained, n)).collect();
        assert_eq!(retained.stats().unretained, 0);
        let mut content = memory.content();
        assert_proportional(&content);
        // Each page damaged.
        for chunk in content.iter_mut().skip(1).flatten() {
            (8192..CHUNK).step_by(4096).for_each(|at| chunk[at] ^= 255);
        }
        assert_proportional(&content);
        drop(made);
    }
}

/// A table that lists all chunks, and a sparse file as large as can be.
#[test]
fn huge_tables_and_files() {
    let memory = Arc::new(HeapMemory::new(3));
    drop(Retained::create(memory.clone(), &IDENTITY, 1, LIMIT).unwrap());
    let content = memory.content();
    let mut listed = content.clone();
    let header = listed[0].as_mut().unwrap();
    for (entry, chunk) in header[RETAINED_TABLE..].chunks_exact_mut(8).zip(0_u32..).skip(1) {
        entry.copy_from_slice(&RetainedChunk::Pages.encode(chunk, 1));
    }
    assert_proportional(&listed);
    for mut content in [content, listed] {
        content.resize(200_000, None);
        assert_proportional(&content);
    }
}
