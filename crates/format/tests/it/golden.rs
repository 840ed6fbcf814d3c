//! Golden files in `tests/golden` decode, and the decoded values encode to the same bytes. The first release
//! writes version 4; its files are never changed.
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

#[test]
fn superblock_of_version_4() {
    let bytes = golden("v4-superblock.bin", &superblock().encode());
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
}

/// A server writes superblocks when it opens a pool. A pool gets another version by a command only, so a
/// superblock is written in the version in which it was read.
#[test]
fn a_superblock_keeps_the_version_in_which_it_was_read() {
    for version in 0..=VERSION + 1 {
        let mut bytes = superblock().encode();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let check = check64(&bytes[..BLOCK - 8]);
        bytes[BLOCK - 8..].copy_from_slice(&check.to_le_bytes());
        if let Ok(read) = Superblock::decode(&bytes) {
            assert_eq!(read.encode()[8..12], bytes[8..12]);
        }
    }
}

#[test]
fn root_of_version_4() {
    let bytes = golden("v4-checkpoint-root.bin", &root().encode());
    assert_eq!(CheckpointRoot::decode(&bytes), Ok(root()));
}

#[test]
fn pages_of_version_4() {
    let (records, encoded) = segment_page();
    let bytes = golden("v4-table-page.bin", &encoded);
    let read = decode_page(&bytes, Table::SEGMENTS, PageLevel::Records, 2).unwrap();
    let read = read.into_iter().map(|(key, record)| (key, SegmentRecord::decode(record).unwrap()));
    assert_eq!(read.collect::<Vec<_>>(), records);
    let (pages, encoded) = directory_page();
    let bytes = golden("v4-table-directory.bin", &encoded);
    assert_eq!(decode_directory(&bytes, Table::DISKS, 1), Ok(pages));
}

#[test]
fn disk_records_of_version_4() {
    let disks: Vec<DiskRecord> = marked_disks()
        .into_iter()
        .chain([disk(6, "before-update", Role::Snapshot), disk(77, "büro-001", Role::Image)])
        .collect();
    let mut encoded = Vec::new();
    disks.iter().for_each(|disk| disk.encode(&mut encoded));
    let bytes = golden("v4-disk-records.bin", &encoded);
    let mut rest = &bytes[..];
    disks.iter().for_each(|disk| assert_eq!(DiskRecord::decode(&mut rest).as_ref(), Ok(disk)));
    assert!(rest.is_empty());
}

#[test]
fn relocation_of_version_4() {
    let map = relocation_map();
    let bytes = golden("v4-relocation-map.bin", &map.encode());
    assert_eq!(RelocationMap::decode(&bytes, SegmentId(2), SegmentId(4)), Ok(map));

    let entry = Entry::Relocate { segment: SegmentId(2), slot: Slot(640), len: bytes.len() as u32 };
    let mut encoded = Vec::new();
    entry.encode(&mut encoded);
    let bytes = golden("v4-entry-relocation.bin", &encoded);
    assert_eq!(EntryIter::new(&bytes).collect::<Result<Vec<_>>>(), Ok(vec![entry]));
}

#[test]
fn segment_of_version_4() {
    let (footer, directory) = footer();
    let head = golden("v4-segment-header.bin", &header().encode());
    let foot = golden("v4-segment-footer.bin", &footer.encode(&directory));
    assert_eq!(SegmentHeader::decode(&head, POOL, SegmentId(2)), Ok(header()));
    let read = SegmentFooter::decode(&foot, POOL, SegmentId(2), 1 << 20).unwrap();
    assert_eq!((read.count, read.last_seq), (3, 250));
    assert_eq!(read.decode_directory(&foot[BLOCK..]), Ok(directory));
}

#[test]
fn batches_of_version_4() {
    let bytes = golden("v4-batch.bin", &batch());
    let read = Batch::decode(&bytes, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
    assert_eq!((read.header.seq, read.header.epoch, read.header.flags), (201, 7, GROUP_END));
    assert_eq!(read.header.group, 201);
    assert_eq!(read.entries().collect::<Result<Vec<_>>>(), Ok(entries(read.payload_slot)));
    assert_eq!(read.payload, [0xa5; 2 * BLOCK]);

    let bytes = golden("v4-batch-group.bin", &batch_of_group());
    let read = Batch::decode(&bytes, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
    assert_eq!((read.header.seq, read.header.group), (201, 199));
}

#[test]
fn map_nodes_of_version_4() {
    for (name, node) in ["full", "sparse", "sparse-without-base"].into_iter().zip(nodes()) {
        let bytes = golden(&format!("v4-map-node-{name}.bin"), &node.encode());
        assert_eq!(MapNode::decode(&bytes), Ok(node));
    }
}

#[test]
fn catalogue_changes_of_version_4() {
    let names = ["create", "delete", "copy", "resize", "update", "copy-range", "mark", "mark-lost", "attach"];
    assert_eq!(names.len(), ops().len());
    for (name, op) in names.into_iter().zip(ops()) {
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        let bytes = golden(&format!("v4-catalogue-{name}.bin"), &encoded);
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
