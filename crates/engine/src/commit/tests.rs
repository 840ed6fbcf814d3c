//! Reducing a group and applying it, without a pool.

use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, CatalogueOp, DiskId, MapValue, Stream};

use super::apply::Change;
use super::group::{Completed, Group};
use super::group_changes::changes_of;
use super::reduce::{Reduced, Reducer};
use crate::Error;
use crate::dedup::Dedup;
use crate::disk::Disk;
use crate::log::{Item, Log};
use crate::testing::{Parts, parts, volume};
use crate::workers::Inline;

const SIZE: u64 = 64 * BLOCK as u64;

/// A volume of 64 blocks.
async fn create(parts: &Parts, id: u32) -> Arc<Disk> {
    parts.applier.apply_op(&CatalogueOp::Create { disk: volume(id, SIZE), from: None }).await.unwrap();
    parts.applier.disk(DiskId(id)).unwrap()
}

/// A group of whole blocks of one disk, each filled with one byte.
fn group(disk: &Arc<Disk>, blocks: &[(u64, u8)]) -> Group {
    let mut buffers = disk.buffers.lock();
    for (block, byte) in blocks {
        buffers.change(*block..*block + 1, |buffer| buffer.write(*block, 0..BLOCK, &[*byte; BLOCK], None));
    }
    Group::of(disk.clone(), buffers.freeze().unwrap())
}

/// What reduction made of a group: blocks to be stored, references, zeroed ranges.
fn counts(items: &[Item<'_>]) -> (usize, usize, usize) {
    let count = |is: fn(&Item<'_>) -> bool| items.iter().filter(|item| is(item)).count();
    (
        count(|item| matches!(item, Item::Block { .. })),
        count(|item| matches!(item, Item::Reference { .. } | Item::Same { .. })),
        count(|item| matches!(item, Item::Zero { .. })),
    )
}

/// Reduces a group as one slice.
async fn reduce<'a>(
    reducer: &Reducer,
    log: &mut Log,
    group: &'a Group,
    completed: &'a Completed,
) -> Reduced<'a> {
    reducer.begin(&Inline).reduce(log, changes_of(group, completed).collect()).await
}

/// Writes items, and adds their blocks to the index.
async fn write(reducer: &Reducer, log: &mut Log, items: &[Item<'_>]) -> Vec<BlockRef> {
    let written = log.write_group(Stream::Data, items, &Inline).await.unwrap();
    let fingerprints = items.iter().filter_map(|item| match item {
        Item::Block { fingerprint, .. } => Some(*fingerprint),
        _ => None,
    });
    reducer.record_stored(fingerprints.zip(written.iter().copied()));
    written
}

#[tokio::test]
async fn a_group_is_reduced_to_distinct_blocks_that_are_not_zero() {
    let mut parts = parts().await;
    let disk = create(&parts, 1).await;
    let reducer = Reducer::new(parts.reader.clone(), [3; 32], Dedup::new(1 << 20, 0));
    let group = group(&disk, &[(0, 5), (1, 0), (2, 0), (3, 5), (9, 6)]);
    let completed = Completed::new();
    let reduced = reduce(&reducer, &mut parts.log, &group, &completed).await;
    // Two zeroed neighbours are one range, and the second block of fives refers to the first.
    assert_eq!(counts(&reduced.items()), (2, 1, 1));
    let stats = reducer.stats();
    assert_eq!((stats.new_blocks, stats.duplicate_blocks, stats.zero_blocks), (2, 1, 2));
}

#[tokio::test]
async fn a_block_that_was_stored_before_becomes_a_reference() {
    let mut parts = parts().await;
    let (first, second) = (create(&parts, 1).await, create(&parts, 2).await);
    let reducer = Reducer::new(parts.reader.clone(), [3; 32], Dedup::new(1 << 20, 0));
    let completed = Completed::new();
    let one = group(&first, &[(0, 5)]);
    let reduced = reduce(&reducer, &mut parts.log, &one, &completed).await;
    let stored = reduced.items();
    let written = write(&reducer, &mut parts.log, &stored).await;
    let two = group(&second, &[(7, 5), (8, 9)]);
    let reduced = reduce(&reducer, &mut parts.log, &two, &completed).await;
    let found = reduced.items();
    assert_eq!(counts(&found), (1, 1, 0));
    let reference = found.iter().find_map(|item| match item {
        Item::Reference { target, .. } => Some(*target),
        _ => None,
    });
    assert_eq!(reference, Some(written[0]));
}

#[tokio::test]
async fn an_unchanged_block_is_not_logged() {
    let mut parts = parts().await;
    let disk = create(&parts, 1).await;
    let reducer = Reducer::new(parts.reader.clone(), [3; 32], Dedup::new(1 << 20, 0));
    let completed = Completed::new();
    let one = group(&disk, &[(4, 5)]);
    let reduced = reduce(&reducer, &mut parts.log, &one, &completed).await;
    let stored = reduced.items();
    let written = write(&reducer, &mut parts.log, &stored).await;
    parts.applier.apply_changes(&disk, &[Change::put(4, written[0])]).await.unwrap();
    disk.buffers.lock().thaw();
    let again = group(&disk, &[(4, 5)]);
    let reduced = reduce(&reducer, &mut parts.log, &again, &completed).await;
    assert!(reduced.items().is_empty());
}

fn at(n: u32) -> BlockRef {
    use forebay_format::{Address, Form, SegmentId, Slot};
    BlockRef { addr: Address { segment: SegmentId(1), slot: Slot(n * 64) }, form: Form::RAW_BLOCK, crc: n }
}

fn value(parts: &Parts, disk: u32, block: u64) -> MapValue {
    let tree = parts.applier.disk(DiskId(disk)).unwrap().tree.read().clone();
    tree.get(&parts.reader.nodes.cache, block).unwrap()
}

#[tokio::test]
async fn changes_and_operations_are_applied_in_order() {
    let parts = parts().await;
    let (disk, other) = (create(&parts, 1).await, create(&parts, 2).await);
    let applier = &parts.applier;
    let changes =
        [Change::put(0, at(1)), Change::put(1, at(2)), Change::zero(1, 2, true), Change::put(2, at(3))];
    applier.apply_changes(&disk, &changes).await.unwrap();
    let expected = [MapValue::At(at(1)), MapValue::Zero, MapValue::At(at(3)), MapValue::Hole];
    assert_eq!([0, 1, 2, 3].map(|block| value(&parts, 1, block)), expected);

    let clone = CatalogueOp::Create { disk: volume(3, SIZE), from: Some(DiskId(1)) };
    applier.apply_op(&clone).await.unwrap();
    applier.apply_changes(&disk, &[Change::zero(0, 1, false)]).await.unwrap();
    assert_eq!(value(&parts, 3, 0), MapValue::At(at(1)), "a clone keeps its contents");

    let (disk, from) = (other.id(), DiskId(3));
    let copy = CatalogueOp::CopyRange { disk, block: 10, from, source_block: 0, count: 3 };
    applier.apply_op(&copy).await.unwrap();
    assert_eq!([10, 11, 12].map(|block| value(&parts, 2, block)), expected[..3]);

    let beyond = CatalogueOp::CopyRange { disk, block: 62, from, source_block: 0, count: 3 };
    assert!(matches!(applier.apply_op(&beyond).await, Err(Error::OutOfRange)));

    applier.apply_op(&CatalogueOp::Resize { disk, size: 4 * BLOCK as u64 }).await.unwrap();
    assert_eq!(other.size(), 4 * BLOCK as u64);
    applier.apply_op(&CatalogueOp::Delete { disk }).await.unwrap();
    assert!(applier.disk(disk).is_none());
    let unknown = CatalogueOp::Resize { disk, size: SIZE };
    assert!(matches!(applier.apply_op(&unknown).await, Err(Error::Format(_))));
}
