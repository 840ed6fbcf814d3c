//! Decoders allocate memory in proportion to their input, whatever counts it contains. This is a separate
//! test program, because it replaces the allocator.

mod common;
mod counting;

use common::*;
use counting::{Counting, allocated};
use forebay_format::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// In each sample, each aligned word in turn is replaced by a huge count.
#[test]
fn huge_counts_do_not_cause_allocations() {
    type Decode = fn(&[u8]);
    let mut op = Vec::new();
    ops()[0].encode(&mut op);
    let mut all = Vec::new();
    entries(Slot(192)).iter().for_each(|e| e.encode(&mut all));
    let (footer, directory) = footer();
    let cases: [(Vec<u8>, Decode); 8] = [
        (root().encode(), |b| drop(CheckpointRoot::decode(b))),
        (segment_page().1, |b| drop(decode_page(b, Table::SEGMENTS, PageLevel::Records, 2))),
        (directory_page().1, |b| drop(decode_directory(b, Table::DISKS, 1))),
        (op, |b| drop(CatalogueOp::decode(b))),
        (all, |b| EntryIter::new(b).for_each(drop)),
        (nodes()[1].encode(), |b| drop(MapNode::decode(b))),
        (batch(), |b| drop(Batch::decode(b, POOL, SegmentId(2), BATCH_OFFSET).map(|b| b.entries().count()))),
        (footer.encode(&directory), |b| {
            // The checksum would reject a changed footer, so the count is set in the decoded footer.
            let count = u32::from_le_bytes([b[12], b[13], b[14], b[15]]);
            let footer = SegmentFooter { count, directory_crc: crc32c(&b[BLOCK..]), ..common::footer().0 };
            drop(footer.decode_directory(&b[BLOCK..]));
        }),
    ];
    for (bytes, decode) in cases {
        for at in (0..bytes.len() - 4).step_by(2) {
            for claim in [u32::MAX, u32::MAX - 7, 1 << 24, 0x0001_0000] {
                let mut bytes = bytes.clone();
                bytes[at..at + 4].copy_from_slice(&claim.to_le_bytes());
                let used = allocated(|| decode(&bytes));
                assert!(
                    used <= 4 * bytes.len() + 4096,
                    "{used} bytes allocated for {}, word at {at}",
                    bytes.len()
                );
            }
        }
    }
}
