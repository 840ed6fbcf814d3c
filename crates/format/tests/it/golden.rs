//! Golden files in `tests/golden`, written by each version, decode; those of the current version, and those
//! of structures that have not changed since, also encode to the same bytes. They are never changed.
//! `FOREBAY_WRITE_GOLDEN=1 cargo test --workspace --test it golden` writes missing files.

use std::path::PathBuf;

use crate::common::*;
use forebay_format::*;

/// Compares a golden file with the current encoding, and returns it.
fn golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if !path.exists() && std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, encoded).expect("the directory of golden files is writable");
    }
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(bytes == encoded, "{name}: the current encoding differs from the golden file");
    bytes
}

/// Returns the golden file of a structure that the current version encodes differently.
fn older(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn superblock_of_version_1() {
    let expected = Superblock { memory: 0, boot: 0, ..superblock() };
    assert_eq!(Superblock::decode(&older("v1-superblock.bin")), Ok(expected));
}

#[test]
fn superblock_of_version_2() {
    assert_eq!(Superblock::decode(&older("v2-superblock.bin")), Ok(superblock()));
}

#[test]
fn superblock_of_version_3() {
    let bytes = golden("v3-superblock.bin", &superblock().encode());
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
}

/// The first superblock that a pool of an older version gets makes older releases refuse it.
#[test]
fn an_older_superblock_is_written_as_version_3() {
    for name in ["v1-superblock.bin", "v2-superblock.bin"] {
        let mut upgraded = Superblock::decode(&older(name)).unwrap();
        upgraded.generation += 1;
        let (old, new) = (older(name), upgraded.encode());
        assert_eq!(new[8], 3);
        assert_eq!(Superblock::choose([Some(&old), Some(&new)]), Ok(upgraded));
    }
}

#[test]
fn root_of_version_3() {
    let bytes = golden("v3-checkpoint-root.bin", &root().encode());
    assert_eq!(CheckpointRoot::decode(&bytes), Ok(root()));
}

#[test]
fn pages_of_version_3() {
    let (records, encoded) = segment_page();
    let bytes = golden("v3-table-page.bin", &encoded);
    let read = decode_page(&bytes, Table::SEGMENTS, PageLevel::Records, 2).unwrap();
    let read = read.into_iter().map(|(key, record)| (key, SegmentRecord::decode(record).unwrap()));
    assert_eq!(read.collect::<Vec<_>>(), records);
    let (pages, encoded) = directory_page();
    let bytes = golden("v3-table-directory.bin", &encoded);
    assert_eq!(decode_directory(&bytes, Table::DISKS, 1), Ok(pages));
}

#[test]
fn checkpoint_of_version_2() {
    let bytes = golden("v2-checkpoint-marks.bin", &checkpoint_marks().encode());
    assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint_marks()));
}

#[test]
fn checkpoint_of_version_1() {
    let bytes = golden("v1-checkpoint.bin", &checkpoint().encode());
    assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint()));
}

#[test]
fn checkpoint_of_a_cleaned_pool_of_version_1() {
    let bytes = golden("v1-checkpoint-moved.bin", &checkpoint_moved().encode());
    assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint_moved()));
}

#[test]
fn checkpoint_with_footers_of_version_1() {
    let bytes = golden("v1-checkpoint-footers.bin", &checkpoint_footers().encode());
    assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint_footers()));
}

#[test]
fn relocation_of_version_1() {
    let map = relocation_map();
    let bytes = golden("v1-relocation-map.bin", &map.encode());
    assert_eq!(RelocationMap::decode(&bytes, SegmentId(2), SegmentId(4)), Ok(map));

    let entry = Entry::Relocate { segment: SegmentId(2), slot: Slot(640), len: bytes.len() as u32 };
    let mut encoded = Vec::new();
    entry.encode(&mut encoded);
    let bytes = golden("v1-entry-relocation.bin", &encoded);
    assert_eq!(EntryIter::new(&bytes).collect::<Result<Vec<_>>>(), Ok(vec![entry]));
}

#[test]
fn segments_of_all_versions() {
    let head = golden("v3-segment-header.bin", &header().encode());
    let (footer, directory) = footer();
    let foot = golden("v3-segment-footer.bin", &footer.encode(&directory));
    let before = ["v1", "v2"]
        .map(|v| (older(&format!("{v}-segment-header.bin")), older(&format!("{v}-segment-footer.bin"))));
    for (head, foot) in before.into_iter().chain([(head, foot)]) {
        assert_eq!(SegmentHeader::decode(&head, POOL, SegmentId(2)), Ok(header()));
        let read = SegmentFooter::decode(&foot, POOL, SegmentId(2), 1 << 20).unwrap();
        assert_eq!((read.count, read.last_seq), (3, 250));
        assert_eq!(read.decode_directory(&foot[BLOCK..]), Ok(directory.clone()));
    }
}

#[test]
fn batches_of_all_versions() {
    for bytes in [golden("v3-batch.bin", &batch()), older("v2-batch.bin"), older("v1-batch.bin")] {
        let read = Batch::decode(&bytes, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
        assert_eq!((read.header.seq, read.header.epoch, read.header.flags), (201, 7, GROUP_END));
        assert_eq!(read.header.group, 0);
        assert_eq!(read.entries().collect::<Result<Vec<_>>>(), Ok(entries(read.payload_slot)));
        assert_eq!(read.payload, [0xa5; 2 * BLOCK]);
    }
}

#[test]
fn batches_of_a_known_group_of_all_versions() {
    let new = golden("v3-batch-group.bin", &batch_of_group());
    for bytes in [new, older("v2-batch-group.bin"), older("v1-batch-group.bin")] {
        let read = Batch::decode(&bytes, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
        assert_eq!((read.header.seq, read.header.group), (201, 199));
    }
}

#[test]
fn map_nodes_of_version_1() {
    for (name, node) in ["full", "sparse", "sparse-without-base"].into_iter().zip(nodes()) {
        let bytes = golden(&format!("v1-map-node-{name}.bin"), &node.encode());
        assert_eq!(MapNode::decode(&bytes), Ok(node));
    }
}

#[test]
fn catalogue_changes_of_both_versions() {
    let first = ["create", "delete", "copy", "resize", "update", "copy-range"]
        .map(|name| format!("v1-catalogue-{name}"));
    let second = ["mark", "mark-lost"].map(|name| format!("v2-catalogue-{name}"));
    let names: Vec<_> = first.into_iter().chain(second).collect();
    assert_eq!(names.len(), ops().len());
    for (name, op) in names.into_iter().zip(ops()) {
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        let bytes = golden(&format!("{name}.bin"), &encoded);
        assert_eq!(CatalogueOp::decode(&bytes), Ok(op));
    }
}

/// The checksum algorithms are the documented ones (check values of the CRC catalogue, for "123456789").
#[test]
fn checksums_are_the_documented_ones() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(check64(b"123456789"), 0xae8b_1486_0a79_9888);
}

/// Retained memory has a separate version.
#[test]
fn retained_memory_of_version_1() {
    let (header, cover, chunks, records) = retained();
    let bytes = golden("retained-v1-header.bin", &header.encode());
    assert_eq!(RetainedHeader::decode(&bytes.try_into().unwrap()), Ok(Some((1, header))));
    let bytes = golden("retained-v1-cover.bin", &cover.encode());
    assert_eq!(RetainedCover::decode(&bytes.try_into().unwrap()), Ok(Some(cover)));
    let entries: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.encode(3, 5)).collect();
    let bytes = golden("retained-v1-chunk-table.bin", &entries);
    let entries = bytes.as_chunks().0.iter().map(|entry| RetainedChunk::decode(entry, 3, 5));
    assert_eq!(entries.collect::<Vec<_>>(), chunks.map(|chunk| Ok(Some(chunk))));
    let encoded: Vec<u8> = records.iter().flat_map(RetainedRecord::encode).collect();
    let bytes = golden("retained-v1-records.bin", &encoded);
    let decoded = bytes.as_chunks().0.iter().map(RetainedRecord::decode);
    assert_eq!(decoded.collect::<Vec<_>>(), records.map(|record| Ok(Some(record))));
}
