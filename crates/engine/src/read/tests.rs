//! Reading a disk without a pool: buffers, block map, read cache, store.

use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, CatalogueOp, DiskId, Fingerprint, Form, Stream, crc32c};

use super::{Gathered, Origin, ReadMode};
use crate::Error;
use crate::cache::Rank;
use crate::commit::Change;
use crate::disk::Disk;
use crate::log::Item;
use crate::testing::{Parts, parts, volume};
use crate::workers::Inline;

const BLOCKS: u64 = 16;

/// Stores blocks filled with one byte each, and maps them from block 0 on.
async fn stored(parts: &mut Parts, bytes: &[u8]) -> (Arc<Disk>, Vec<BlockRef>) {
    let disk = volume(1, BLOCKS * BLOCK as u64);
    parts.applier.apply_op(&CatalogueOp::Create { disk, from: None }).await.unwrap();
    let disk = parts.applier.disk(DiskId(1)).unwrap();
    let contents: Vec<[u8; BLOCK]> = bytes.iter().map(|byte| [*byte; BLOCK]).collect();
    let item = |(block, content)| Item::Block {
        disk: DiskId(1),
        block,
        content,
        stored: &content[..],
        form: Form::RAW_BLOCK,
        crc: crc32c(content),
        fingerprint: Fingerprint::default(),
        rank: Rank::Normal,
    };
    let items: Vec<Item<'_>> = (0..).zip(&contents).map(item).collect();
    let written = parts.log.write_group(Stream::Data, &items, &Inline).await.unwrap();
    let changes: Vec<Change> = (0..).zip(&written).map(|(block, at)| Change::put(block, *at)).collect();
    parts.applier.apply_changes(&disk, &changes).await.unwrap();
    (disk, written)
}

/// The first byte of each block, which must be that of all its bytes.
fn blocks(bytes: &[u8]) -> Vec<u8> {
    let uniform = |block: &[u8]| block.iter().all(|byte| *byte == block[0]).then_some(block[0]);
    bytes.chunks(BLOCK).map(|block| uniform(block).expect("a block of one byte")).collect()
}

#[tokio::test]
async fn a_read_gathers_buffers_stored_blocks_and_holes() {
    let mut parts = parts().await;
    let (disk, _) = stored(&mut parts, &[1, 2, 3]).await;
    disk.buffers.lock().change(1..2, |buffer| buffer.write(1, 0..BLOCK, &[9; BLOCK], None));
    let mut out = vec![0xee; 4 * BLOCK];
    assert_eq!(parts.reader.read(&disk, 0, &mut out, 0).await.unwrap(), Origin::Store);
    assert_eq!(blocks(&out), [1, 9, 3, 0]);
    // They are in the read cache now.
    let mut found = Gathered::default();
    out.fill(0xee);
    parts.reader.gather(&mut 0, &disk, 0, &mut out, &mut found, ReadMode::CachedOnly).unwrap();
    assert!(found.gaps.is_empty() && found.is_uncommitted);
    assert_eq!(blocks(&out), [1, 9, 3, 0]);
}

#[tokio::test]
async fn a_read_inside_a_block_returns_its_bytes() {
    let mut parts = parts().await;
    let (disk, _) = stored(&mut parts, &[1, 2]).await;
    disk.buffers.lock().change(0..1, |buffer| buffer.write(0, 512..1024, &[9; 512], None));
    let mut out = vec![0xee; 2048];
    parts.reader.read(&disk, 256, &mut out, 0).await.unwrap();
    assert!(out[..256].iter().all(|byte| *byte == 1), "the stored block");
    assert!(out[256..768].iter().all(|byte| *byte == 9), "the write buffer");
    assert!(out[768..].iter().all(|byte| *byte == 1), "the stored block");
}

#[tokio::test]
async fn damage_is_reported_and_counted_and_never_returned() {
    let mut parts = parts().await;
    let (disk, written) = stored(&mut parts, &[1, 2]).await;
    let at = written[1].addr;
    parts.store.damage(at.segment, |bytes| bytes[at.slot.offset() as usize] ^= 1);
    let mut out = vec![0xee; 2 * BLOCK];
    let read = parts.reader.read(&disk, 0, &mut out, 0).await;
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
    assert!(parts.reader.source.is_damaged(&written[1]) && !parts.reader.source.is_damaged(&written[0]));
    assert_eq!(parts.reader.source.damage.get().ops, 1);
    parts.reader.read(&disk, 0, &mut out[..BLOCK], 0).await.unwrap();
    assert_eq!(blocks(&out[..BLOCK]), [1]);
}

#[tokio::test]
async fn reading_ahead_fills_the_cache_with_the_blocks_that_follow() {
    let mut parts = parts().await;
    let (disk, written) = stored(&mut parts, &[1, 2, 3, 4]).await;
    let mut out = vec![0; BLOCK];
    parts.reader.read(&disk, 0, &mut out, 2 * BLOCK as u64).await.unwrap();
    let cached: Vec<bool> = written.iter().map(|at| parts.reader.cache.contains(at.addr)).collect();
    assert_eq!(cached, [true, true, true, false]);
}

#[tokio::test]
async fn a_read_beyond_the_end_is_refused() {
    let mut parts = parts().await;
    let (disk, _) = stored(&mut parts, &[1]).await;
    let mut out = vec![0; BLOCK];
    let read = parts.reader.read(&disk, BLOCKS * BLOCK as u64, &mut out, 0).await;
    assert!(matches!(read, Err(Error::OutOfRange)), "{read:?}");
}
