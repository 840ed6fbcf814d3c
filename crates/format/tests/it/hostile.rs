//! Bytes with correct checksums and invalid contents, as written by an attacker or by a bug.

use crate::common::*;
use forebay_format::*;

/// Changes bytes of a structure of one block, and updates the checksum at its end.
pub fn forged(mut block: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let check = check64(&block[..BLOCK - 8]);
    block[BLOCK - 8..BLOCK].copy_from_slice(&check.to_le_bytes());
    block
}

pub fn value(what: &'static str, field: &'static str) -> FormatError {
    FormatError::Value { what, field }
}

#[test]
fn segments_of_other_versions_pools_and_positions_are_reported() {
    let head = header().encode();
    let decode = |b: &[u8]| SegmentHeader::decode(b, POOL, SegmentId(2)).unwrap_err();
    assert_eq!(decode(&forged(head.clone(), 8, &[5])), FormatError::Newer { found: 5 });
    assert_eq!(decode(&forged(head.clone(), 8, &[3])), FormatError::Older { found: 3 });
    assert_eq!(decode(&forged(head.clone(), 8, &[0])), value("segment header", "version"));
    assert_eq!(decode(&forged(head.clone(), 12, &[5])), value("segment header", "stream"));
    assert!(matches!(decode(&forged(head.clone(), 16, &[1])), FormatError::Foreign { field: "pool_id", .. }));
    // A segment of another pool is damage at its place, whatever build wrote the segment.
    let of_other = forged(forged(head.clone(), 16, &[1]), 8, &[3]);
    assert!(matches!(decode(&of_other), FormatError::Foreign { field: "pool_id", .. }));
    assert!(matches!(decode(&forged(head, 32, &[1])), FormatError::Foreign { field: "segment", .. }));

    let (footer, directory) = footer();
    let foot = footer.encode(&directory);
    let decode = |b: &[u8]| SegmentFooter::decode(b, POOL, SegmentId(2), 1 << 20).unwrap_err();
    assert_eq!(decode(&forged(foot.clone(), 8, &[5])), FormatError::Newer { found: 5 });
    assert_eq!(decode(&forged(foot.clone(), 12, &[0xff; 4])), value("segment footer", "count"));
    assert!(matches!(decode(&forged(foot.clone(), 36, &[1])), FormatError::Foreign { .. }));
    assert!(matches!(decode(&forged(forged(foot, 36, &[1]), 8, &[3])), FormatError::Foreign { .. }));
}

#[test]
fn directory_entries_must_fit_into_a_segment() {
    let (footer, directory) = footer();
    let good = footer.encode(&directory);
    for (at, bytes, field) in [
        (0, &[0xff, 0xff, 0xff, 0][..], "slot"), // a block that starts at the last slot
        (0, &[0, 0, 0, 1][..], "slot"),          // beyond the last slot
        (4, &[0xff][..], "slot"),                // a reserved form
        (5, &[3][..], "kind"),
    ] {
        let mut bad = good.clone();
        bad[BLOCK + at..BLOCK + at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c(&bad[BLOCK..BLOCK + directory.len() * 32]);
        let bad = forged(bad, 48, &crc.to_le_bytes());
        let read = SegmentFooter::decode(&bad, POOL, SegmentId(2), 1 << 20).unwrap();
        assert_eq!(read.decode_directory(&bad[BLOCK..]), Err(value("segment directory", field)));
    }
}

/// An impossible length in a batch header is refused before memory is allocated for the batch.
#[test]
fn batch_lengths_are_bounded() {
    let good = batch();
    let peek = |at: usize, value: u32| {
        let mut b = good[..96].to_vec();
        b[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Batch::peek_len(&b)
    };
    assert_eq!(peek(60, 1), Err(value("batch", "entries_len")));
    assert_eq!(peek(64, 512), Err(value("batch", "payload_len")));
    assert_eq!(peek(60, u32::MAX - 7), Err(value("batch", "payload_len")));
    assert_eq!(peek(64, u32::MAX - 4095), Err(value("batch", "payload_len")));
    assert_eq!(peek(64, 1 << 30), Err(value("batch", "payload_len")));
    assert!(peek(64, (1 << 30) - 8192).is_ok_and(|len| len <= 1 << 30));
}

#[test]
fn batches_with_invalid_headers_are_refused() {
    /// Changes a header field and updates the checksum.
    fn forge(at: usize, value: u32) -> Vec<u8> {
        let mut b = batch();
        b[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let mut check = Check64::default();
        [&b[..88], &b[96..]].iter().for_each(|part| check.update(part));
        let check = check.finish();
        b[88..96].copy_from_slice(&check.to_le_bytes());
        b
    }
    let decode = |b: &[u8], at| Batch::decode(b, POOL, SegmentId(2), at).map(drop);
    assert_eq!(decode(&batch(), BATCH_OFFSET), Ok(()));
    assert!(matches!(decode(&batch(), 0), Err(FormatError::Foreign { .. })));
    assert_eq!(decode(&forge(56, 2), BATCH_OFFSET), Err(value("batch", "flags")));
    assert_eq!(decode(&forge(68, 5), BATCH_OFFSET), Err(FormatError::Newer { found: 5 }));
    assert_eq!(decode(&forge(68, 3), BATCH_OFFSET), Err(FormatError::Older { found: 3 }));
    assert_eq!(decode(&forge(68, 0), BATCH_OFFSET), Err(value("batch", "version")));
    // The group begins after the batch, or nowhere.
    assert_eq!(decode(&forge(72, 202), BATCH_OFFSET), Err(value("batch", "group")));
    assert_eq!(decode(&forge(72, 0), BATCH_OFFSET), Err(value("batch", "group")));
    assert_eq!(decode(&forge(52, 8200), 8200), Err(value("batch", "offset")));
    assert_eq!(decode(&forge(52, (1 << 30) - 4096), (1 << 30) - 4096), Err(value("batch", "offset")));
    assert_eq!(decode(&forge(52, u32::MAX - 4095), u32::MAX - 4095), Err(value("batch", "offset")));
}

/// Contents outside of the batch's payload would belong to another batch, and would not be covered by the
/// checksum.
#[test]
fn entries_must_refer_to_the_payload_of_their_batch() {
    let payload_at = BatchHeader::payload_slot(u64::from(BATCH_OFFSET), 40).0;
    let put = |slot| Entry::Put {
        disk: DiskId(1),
        block: 0,
        slot: Slot(slot),
        form: Form::RAW_BLOCK,
        crc: 0,
        fingerprint: Fingerprint::default(),
    };
    let first = |entry: Entry| {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let whole = encode_batch(&bytes, &[0; BLOCK]);
        let batch = Batch::decode(&whole, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
        batch.entries().next().unwrap().map(drop)
    };
    assert_eq!(first(put(payload_at)), Ok(()));
    for slot in [0, payload_at - 1, payload_at + 1, payload_at + 64] {
        assert_eq!(first(put(slot)), Err(value("entry", "slot")));
    }
    let (slot, form) = (Slot(payload_at + 32), Form::raw(2049));
    assert_eq!(first(Entry::Node { slot, form, crc: 0 }), Err(value("entry", "slot")));
    assert_eq!(first(Entry::Blob { slot, len: 2048 }), Ok(()));
    assert_eq!(first(Entry::Blob { slot, len: 2049 }), Err(value("entry", "slot")));
}

#[test]
fn entries_with_values_out_of_range_are_refused() {
    let entries = entries(Slot(192));
    let forge = |n: usize, at: usize, bytes: &[u8]| {
        let mut b = Vec::new();
        entries[n].encode(&mut b);
        b[at..at + bytes.len()].copy_from_slice(bytes);
        EntryIter::new(&b).next().unwrap().unwrap_err()
    };
    assert_eq!(forge(0, 0, &[0]), value("entry", "tag"));
    assert_eq!(forge(0, 0, &[8]), value("entry", "tag"));
    assert_eq!(forge(0, 1, &[0xc0]), value("entry", "slot"));
    assert_eq!(forge(0, 4, &[0; 4]), value("entry", "disk"));
    assert_eq!(forge(0, 8, &[0xff; 8]), value("entry", "block_index"));
    assert_eq!(forge(0, 16, &[0xff; 4]), value("entry", "slot"));
    assert_eq!(forge(1, 16, &[0; 12]), value("entry", "target"));
    assert_eq!(forge(1, 23, &[0xc0]), value("entry", "target"));
    assert_eq!(forge(2, 1, &[2]), value("entry", "allocated"));
    assert_eq!(forge(2, 8, &[0xff; 8]), value("entry", "count"));
    assert_eq!(forge(2, 16, &[0xff; 8]), value("entry", "count"));
    assert_eq!(forge(2, 16, &[0; 8]), value("entry", "count"));
    assert_eq!(forge(4, 1, &[128]), value("entry", "form"));
    assert_eq!(forge(5, 4, &[0xff; 8]), value("entry", "slot"));
    assert_eq!(forge(6, 4, &[1]), value("entry", "len"));
    assert_eq!(forge(6, 4, &[0xf8, 0xff, 0xff, 0xff]), FormatError::Truncated("entry"));
}

#[test]
fn invalid_disk_records_are_refused() {
    let mut good = Vec::new();
    disk(5, "name", Role::Volume).encode(&mut good);
    let forge = |at: usize, bytes: &[u8]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        DiskRecord::decode(&mut &b[..]).unwrap_err()
    };
    let bad = |field| value("disk record", field);
    assert_eq!(forge(0, &[0; 4]), bad("id"));
    assert_eq!(forge(4, &[0]), bad("role"));
    assert_eq!(forge(4, &[2]), bad("parent"));
    assert_eq!(forge(24, &[1]), bad("parent"));
    let mut document = good.clone();
    document[4] = 5;
    assert!(DiskRecord::decode(&mut &document[..]).is_ok_and(|record| record.parent.is_none()));
    document[24] = 5;
    assert_eq!(
        DiskRecord::decode(&mut &document[..]).unwrap_err(),
        bad("parent"),
        "the disk is its own parent"
    );
    assert_eq!(forge(28, &[5]), bad("origin"));
    assert_eq!(forge(5, &[4]), bad("sync"));
    // Higher levels would shift block numbers by 64 or more bits.
    assert_eq!(forge(6, &[7]), bad("height"));
    assert_eq!(forge(7, &[0]), bad("name"));
    assert_eq!(forge(7, &[0xff]), FormatError::Truncated("disk record"));
    assert_eq!(forge(96, &[0]), bad("name"));
    assert_eq!(forge(96, b"\n"), bad("name"));
    assert_eq!(forge(96, &[0xff]), bad("name"));
    assert_eq!(forge(8, &[1]), bad("size_bytes"));
    assert_eq!(forge(63, &[0xff]), bad("root"));
    // An unknown mark; a time of a loss without a loss.
    assert_eq!(forge(74, &[5]), bad("mark"));
    assert_eq!(forge(80, &[1]), bad("mark"));
}

#[test]
fn invalid_catalogue_changes_are_refused() {
    let forge = |n: usize, at: usize, bytes: &[u8]| {
        let mut b = Vec::new();
        ops()[n].encode(&mut b);
        b[at..at + bytes.len()].copy_from_slice(bytes);
        CatalogueOp::decode(&b).unwrap_err()
    };
    let bad = |field| value("catalogue change", field);
    assert_eq!(forge(0, 0, &[9]), bad("kind"));
    assert_eq!(forge(0, 0, &[7]), bad("mark"));
    assert_eq!(forge(0, 0, &[2]), bad("length"));
    assert_eq!(forge(0, 4, &[6]), bad("disk"));
    assert_eq!(forge(0, 8, &[5]), bad("from"));
    assert_eq!(forge(1, 4, &[0; 4]), bad("disk"));
    assert_eq!(forge(2, 8, &[0; 4]), bad("from"));
    assert_eq!(forge(2, 8, &[5]), bad("from"));
    assert_eq!(forge(3, 16, &[1]), bad("size_bytes"));
    assert_eq!(forge(5, 4, &[0; 4]), bad("disk"));
    assert_eq!(forge(5, 8, &[0; 4]), bad("from"));
    assert_eq!(forge(5, 40, &[0; 8]), bad("count"));
    assert_eq!(forge(5, 30, &[0x10]), bad("count"));
    assert_eq!(forge(5, 24, &[0xff; 8]), bad("count"));
    // Overlapping ranges of the same disk.
    assert_eq!(forge(5, 8, &[5]), bad("source_block"));
    assert_eq!(forge(6, 4, &[0; 4]), bad("disk"));
    assert_eq!(forge(6, 24, &[5]), bad("mark"));
    assert_eq!(forge(6, 32, &[1]), bad("mark"));
    assert_eq!(forge(6, 0, &[2]), bad("length"));
    assert_eq!(forge(8, 4, &[0; 4]), bad("disk"));
    // A segment of the pool; no segment; a block instead of a node.
    assert_eq!(forge(8, 27, &[0]), bad("root"));
    assert_eq!(forge(8, 24, &[0; 4]), bad("root"));
    assert_eq!(forge(8, 31, &[0x80]), bad("root"));
}

#[test]
fn invalid_segment_records_are_refused() {
    let mut good = Vec::new();
    segment_records()[2].encode(&mut good);
    let forge = |at: usize, bytes: &[u8]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        SegmentRecord::decode(&b).unwrap_err()
    };
    let bad = |field| value("segment record", field);
    assert_eq!(forge(0, &[0; 4]), bad("segment"));
    assert_eq!(forge(4, &[0]), bad("stream"));
    assert_eq!(forge(5, &[3]), bad("state"));
    assert_eq!(forge(5, &[1, 1]), bad("footer"));
    assert_eq!(forge(8, &[0; 4]), bad("container"));
    assert_eq!(forge(12, &[0xff; 4]), bad("written"));
    assert_eq!(forge(8, &[4]), bad("map_offset"));
    assert_eq!(SegmentRecord::decode(&good[..39]).unwrap_err(), FormatError::Truncated("segment record"));
}

#[test]
fn invalid_roots_of_checkpoints_are_refused() {
    let good = root().encode();
    let forge = |at: usize, bytes: &[u8]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        CheckpointRoot::decode(&b).unwrap_err()
    };
    const WHAT: &str = "checkpoint root";
    assert_eq!(forge(0, b"x"), FormatError::Magic(WHAT));
    assert_eq!(forge(24, &[0xff; 4]), FormatError::Truncated(WHAT));
    assert_eq!(forge(28, &[0xff; 4]), FormatError::Truncated(WHAT));
    assert_eq!(forge(28, &[1]), value(WHAT, "length"));
    assert_eq!(forge(32, &[65]), value(WHAT, "sampling"));
    // The second reference has the number of the first directory page; the first refers to segment 0.
    assert_eq!(forge(48 + 32 + 4, &[0]), value(WHAT, "directories"));
    assert_eq!(forge(48 + 8, &[0]), value(WHAT, "page"));
}

#[test]
fn invalid_pages_of_tables_are_refused() {
    let good = segment_page().1;
    let decode = |b: &[u8]| decode_page(b, Table::SEGMENTS, PageLevel::Records, 2).map(|_| ()).unwrap_err();
    let forge = |at: usize, bytes: &[u8]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&b)
    };
    const WHAT: &str = "table page";
    let foreign = |field| FormatError::Foreign { what: WHAT, field };
    assert_eq!(forge(0, b"x"), FormatError::Magic(WHAT));
    assert_eq!(forge(8, &[2]), foreign("table"));
    assert_eq!(forge(9, &[1]), foreign("table"));
    assert_eq!(forge(12, &[3]), foreign("number"));
    assert_eq!(forge(16, &[0xff; 4]), FormatError::Truncated(WHAT));
    assert_eq!(forge(16, &[2]), value(WHAT, "count"));
    assert_eq!(decode(&[&good[..16], &[0; 16]].concat()), value(WHAT, "count"));
    // A key of another page, and one twice.
    assert_eq!(forge(32, &384_u32.to_le_bytes()), value(WHAT, "key"));
    assert_eq!(forge(32 + 48, &256_u32.to_le_bytes()), value(WHAT, "key"));
    assert_eq!(forge(32 + 4, &[0xff; 4]), FormatError::Truncated(WHAT));

    let mut directory = directory_page().1;
    directory[32 + 8] = 0;
    assert_eq!(decode_directory(&directory, Table::DISKS, 1), Err(value(WHAT, "reference")));
    directory[32 + 4] = 23;
    assert_eq!(decode_directory(&directory, Table::DISKS, 1), Err(FormatError::Truncated(WHAT)));
    // There are no keys of such a page.
    assert_eq!(decode_directory(&directory, Table::DISKS, u32::MAX), Err(foreign("number")));
}

#[test]
fn invalid_map_nodes_are_refused() {
    let forge = |n: usize, at: usize, bytes: &[u8]| {
        let mut b = nodes()[n].encode();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        MapNode::decode(&b).unwrap_err()
    };
    let bad = |field| value("map node", field);
    assert_eq!(forge(0, 4, &[7]), bad("level"));
    assert_eq!(forge(0, 4, &[255]), bad("level"));
    assert_eq!(forge(0, 5, &[3]), bad("kind"));
    assert_eq!(forge(0, 6, &[255, 0]), bad("kind"));
    assert_eq!(forge(0, 6, &[1, 1]), bad("count"));
    assert_eq!(forge(0, 8, &[0xff; 8]), bad("index"));
    assert_eq!(forge(1, 32, &[3]), bad("keys"));
    assert_eq!(forge(0, 32, &[0xff]), bad("values"));
    assert_eq!(forge(1, 16, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]), bad("base"));
    assert_eq!(forge(2, 8, &[1]), bad("index"));
}

/// A slot that exceeds its 24 bits would overwrite the form.
#[test]
#[should_panic(expected = "r.addr.slot.0 < Slot::LIMIT")]
fn a_slot_beyond_the_limit_is_not_encoded() {
    MapValue::At(block_ref(1, Slot::LIMIT)).encode();
}

#[test]
#[should_panic(expected = "validated by the caller")]
fn a_record_that_could_not_be_decoded_is_not_encoded() {
    disk(1, "a\0b", Role::Volume).encode(&mut Vec::new());
}

#[test]
fn invalid_relocation_maps_are_refused() {
    let good = relocation_map();
    let (segment, container) = (good.segment, good.container);
    let decode = |bytes: &[u8]| RelocationMap::decode(bytes, segment, container);
    let forged = |at: usize, bytes: &[u8]| {
        let mut b = good.encode();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c(&b[32..]);
        b[20..24].copy_from_slice(&crc.to_le_bytes());
        decode(&b).unwrap_err()
    };
    let entry = |n: usize| 32 + n * 40;
    // A slot beyond the largest segment, a length that contradicts the form, entries out of order.
    assert_eq!(forged(entry(0) + 12, &[0xff; 8]), value("relocation map", "place"));
    assert_eq!(forged(entry(2) + 16, &[1, 0, 0, 0]), value("relocation map", "units"));
    assert_eq!(forged(entry(1), &[0, 0, 0, 0]), value("relocation map", "slot"));
    assert_eq!(forged(entry(0) + 5, &[9]), value("relocation map", "kind"));
    assert_eq!(forged(entry(0) + 6, &[0xff]), value("relocation map", "place_form"));
    // More entries than bytes; the map of another segment; a flipped bit.
    assert_eq!(forged(16, &[0xff; 4]), FormatError::Truncated("relocation map"));
    let foreign = RelocationMap::decode(&good.encode(), SegmentId(3), container);
    assert_eq!(foreign, Err(FormatError::Foreign { what: "relocation map", field: "segment" }));
    let mut flipped = good.encode();
    flipped[40] ^= 1;
    assert_eq!(decode(&flipped), Err(FormatError::Checksum("relocation map")));
}

#[test]
fn invalid_groups_are_refused() {
    let mut bytes = vec![7; 100];
    GroupHeader { members: 8, frame_len: 92 }.encode(&mut bytes);
    assert_eq!(GroupHeader::decode(&bytes).map(|(header, frame)| (header.members, frame.len())), Ok((8, 92)));
    assert_eq!(GroupHeader::decode(&bytes[..99]), Err(FormatError::Truncated("group of blocks")));
    assert_eq!(GroupHeader::decode(&bytes[..7]), Err(FormatError::Truncated("group of blocks")));
    for members in [0, 65] {
        bytes[0] = members;
        assert_eq!(GroupHeader::decode(&bytes).unwrap_err(), value("group of blocks", "members"));
    }
    bytes[0] = 1;
    bytes[4..8].copy_from_slice(&4097_u32.to_le_bytes());
    assert_eq!(GroupHeader::decode(&bytes).unwrap_err(), value("group of blocks", "frame_len"));
}

/// The bytes that a reader fetches for one block, or for one directory, are bounded by the largest that a
/// writer produces.
#[test]
fn lengths_beyond_those_of_a_writer_are_refused() {
    let good = relocation_map();
    let forged = |n: usize, units: u32| {
        let mut b = good.encode();
        let at = 32 + n * 40 + 16;
        b[at..at + 4].copy_from_slice(&units.to_le_bytes());
        let crc = crc32c(&b[32..]);
        b[20..24].copy_from_slice(&crc.to_le_bytes());
        RelocationMap::decode(&b, good.segment, good.container)
    };
    let group = good.entries.iter().position(|e| e.place_form.codec() == Some(Codec::ZstdGroup)).unwrap();
    assert!(forged(group, 4097).is_ok());
    assert_eq!(forged(group, 4098), Err(value("relocation map", "units")));

    let (footer, _) = footer();
    let forged = |count: u32| {
        let mut b = footer.encode(&[]);
        b[12..16].copy_from_slice(&count.to_le_bytes());
        let check = check64(&b[..4088]);
        b[4088..4096].copy_from_slice(&check.to_le_bytes());
        SegmentFooter::decode(&b, POOL, footer.segment, footer.offset)
    };
    let most = footer.offset / Slot::UNIT as u32;
    assert!(forged(most).is_ok());
    assert_eq!(forged(most + 1), Err(value("segment footer", "count")));
}

#[test]
fn invalid_structures_of_retained_memory_are_refused() {
    let (header, cover, chunks, records) = retained();
    let [page, range, ..] = records;
    let forge = |record: RetainedRecord, at: usize, bytes: &[u8]| {
        let mut b = record.encode();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c(&b[8..]);
        b[..4].copy_from_slice(&crc.to_le_bytes());
        RetainedRecord::decode(&b)
    };
    assert!(forge(page, 8, &[1]).is_ok());
    assert_eq!(forge(page, 12, &[0]), Err(value("record", "kind")));
    assert_eq!(forge(page, 12, &[4]), Err(value("record", "kind")));
    assert_eq!(forge(range, 14, &[2]), Err(value("record", "allocated")));
    assert_eq!(forge(range, 32, &[5, 0, 0, 0, 0, 0, 0, 0]), Err(value("record", "end")));
    // Each bit is covered by the tag; without a tag there is no structure.
    for bit in 0..64 * 8 {
        let flip = |b: &mut [u8]| b[bit / 8] ^= 1 << (bit % 8);
        let (mut of_record, mut of_header) = (page.encode(), header.encode());
        flip(&mut of_record);
        flip(&mut of_header);
        assert!(RetainedRecord::decode(&of_record).is_err(), "bit {bit} of a record");
        assert!(RetainedHeader::decode(&of_header).is_err(), "bit {bit} of the header");
        if bit < 32 * 8 {
            let mut of_cover = cover.encode();
            flip(&mut of_cover);
            assert!(RetainedCover::decode(&of_cover).is_err(), "bit {bit} of a cover");
        }
        if bit < 8 * 8 {
            let mut entry = chunks[0].encode(3, 5);
            flip(&mut entry);
            assert!(RetainedChunk::decode(&entry, 3, 5).is_err(), "bit {bit} of an entry");
        }
    }
    let (mut of_record, mut of_header) = (page.encode(), header.encode());
    of_record[..8].fill(0);
    of_header[56..].fill(0);
    assert_eq!(
        (RetainedRecord::decode(&of_record), RetainedHeader::decode(&of_header)),
        (Ok(None), Ok(None))
    );
    // Of another chunk, of another memory.
    let entry = chunks[0].encode(3, 5);
    assert_eq!(RetainedChunk::decode(&entry, 4, 5), Err(FormatError::Checksum("chunk table entry")));
    assert_eq!(RetainedChunk::decode(&entry, 3, 6), Err(FormatError::Checksum("chunk table entry")));
}
