//! Encoded structures decode to the same values; damaged ones are refused.

use crate::common::*;
use forebay_format::*;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn map_values_decode_to_the_same(value in any_value()) {
        prop_assert_eq!(MapValue::decode(&value.encode()), Some(value));
        prop_assert_eq!(MapValue::from_words(value.to_words()), Some(value));
    }

    #[test]
    fn superblocks_decode_to_the_same(superblock in any_superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn segment_records_decode_to_the_same(record in any_segment_record()) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        prop_assert_eq!(SegmentRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn consecutive_disk_records_decode_to_the_same(disks in vec(any_disk(), 1..5)) {
        let mut bytes = Vec::new();
        disks.iter().for_each(|d| d.encode(&mut bytes));
        let mut rest = &bytes[..];
        for disk in disks {
            prop_assert_eq!(DiskRecord::decode(&mut rest), Ok(disk));
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn catalogue_changes_decode_to_the_same(op in any_op()) {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        prop_assert_eq!(CatalogueOp::decode(&bytes), Ok(op));
    }

    #[test]
    fn map_nodes_decode_to_the_same(node in any_node()) {
        let bytes = node.encode();
        prop_assert!(bytes.len() <= BLOCK && bytes.len().is_multiple_of(Slot::UNIT));
        prop_assert_eq!(MapNode::decode(&bytes), Ok(node));
    }

    #[test]
    fn segment_headers_decode_to_the_same(stream in 0..4_usize, segment: u32, epoch: u64, first_seq: u64) {
        let (stream, segment) = (Stream::ALL[stream], SegmentId(segment));
        let header = SegmentHeader { pool: POOL, segment, stream, epoch, first_seq };
        prop_assert_eq!(SegmentHeader::decode(&header.encode(), POOL, segment), Ok(header));
    }

    #[test]
    fn directories_decode_to_the_same(
        refs in vec((any_ref(), any::<bool>(), any::<[u8; 16]>()), 0..300),
        last_seq: u64,
    ) {
        let entry = |(at, node, print): (BlockRef, bool, [u8; 16])| DirectoryEntry {
            slot: at.addr.slot,
            form: at.form,
            kind: if node { SlotKind::Node } else { SlotKind::Block },
            crc: at.crc,
            fingerprint: Fingerprint(print),
        };
        let directory: Vec<_> = refs.into_iter().map(entry).collect();
        let bytes = SegmentFooter { last_seq, ..footer().0 }.encode(&directory);
        let read = SegmentFooter::decode(&bytes, POOL, SegmentId(2), 1 << 20).unwrap();
        prop_assert_eq!(read.last_seq, last_seq);
        prop_assert_eq!(read.decode_directory(&bytes[BLOCK..]), Ok(directory));
    }

    #[test]
    fn entries_decode_to_the_same(entries in vec(any_entry(), 0..20), blocks in 0..4_usize) {
        let mut bytes = Vec::new();
        entries.iter().for_each(|e| e.encode(&mut bytes));
        prop_assert_eq!(EntryIter::new(&bytes).collect::<Result<Vec<_>>>(), Ok(entries));

        let whole = encode_batch(&bytes, &vec![1; blocks * BLOCK]);
        prop_assert_eq!(Batch::peek_len(&whole[..96]), Ok(whole.len()));
        let batch = Batch::decode(&whole, POOL, SegmentId(2), BATCH_OFFSET).unwrap();
        prop_assert_eq!(batch.entry_bytes(), &bytes[..]);
        prop_assert_eq!(batch.payload.len(), blocks * BLOCK);
    }

    #[test]
    fn decoders_do_not_panic_on_any_bytes(bytes in vec(any::<u8>(), 0..6000)) {
        fuzzing::TARGETS.iter().for_each(|(_, target)| target(&bytes));
    }

    #[test]
    fn decoders_do_not_panic_on_damaged_samples(
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: u8,
    ) {
        for (name, sample) in samples() {
            let mut bytes = sample;
            flips.iter().for_each(|(at, value)| { let at = at.index(bytes.len()); bytes[at] = *value });
            bytes.truncate(bytes.len() - bytes.len() * usize::from(cut) / 1024);
            let (_, target) = fuzzing::TARGETS.iter().find(|(n, _)| *n == name).unwrap();
            target(&bytes);
        }
    }
}

/// One sample for each fuzz target.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let (mut op, mut all) = (Vec::new(), Vec::new());
    ops()[0].encode(&mut op);
    entries(Slot(192)).iter().for_each(|e| e.encode(&mut all));
    let (footer, directory) = footer();
    vec![
        ("superblock", superblock().encode()),
        ("checkpoint_root", root().encode()),
        ("catalogue_op", op),
        ("segment_header", header().encode()),
        ("segment_footer", footer.encode(&directory)),
        ("batch", batch()),
        ("entries", all),
        ("map_node", nodes()[0].encode()),
    ]
}

/// Any flipped bit and any truncation of a structure with a checksum is detected.
#[test]
fn damaged_structures_with_a_checksum_are_refused() {
    let (footer, directory) = footer();
    let footer_len = BLOCK + directory.len() * 32;
    let whole_footer = |b: &[u8]| {
        let footer = SegmentFooter::decode(b, POOL, SegmentId(2), 1 << 20)?;
        footer.decode_directory(&b[BLOCK..]).map(drop)
    };
    type Decode<'a> = &'a dyn Fn(&[u8]) -> Result<()>;
    let cases: [(Vec<u8>, usize, Decode); 4] = [
        (superblock().encode(), BLOCK, &|b| Superblock::decode(b).map(drop)),
        (header().encode(), BLOCK, &|b| SegmentHeader::decode(b, POOL, SegmentId(2)).map(drop)),
        (footer.encode(&directory), footer_len, &whole_footer),
        (batch(), batch().len(), &|b| Batch::decode(b, POOL, SegmentId(2), BATCH_OFFSET).map(drop)),
    ];
    for (mut bytes, covered, decode) in cases {
        assert_eq!(decode(&bytes), Ok(()));
        for bit in 0..covered * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..covered {
            assert!(decode(&bytes[..len]).is_err(), "truncated to {len}");
        }
    }
}

/// Structures covered by the checksum of another one may decode differently when damaged, but not when
/// truncated.
#[test]
fn truncated_structures_are_refused() {
    let root = root().encode();
    assert!((0..root.len()).all(|len| CheckpointRoot::decode(&root[..len]).is_err()));
    let page = segment_page().1;
    let decode = |b| decode_page(b, Table::SEGMENTS, PageLevel::Records, 2);
    assert!(decode(&page).is_ok() && (0..page.len()).all(|len| decode(&page[..len]).is_err()));
    for op in ops() {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        assert!((0..bytes.len()).all(|len| CatalogueOp::decode(&bytes[..len]).is_err()));
    }
    for entry in entries(Slot(192)) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        assert!((1..bytes.len()).all(|len| EntryIter::new(&bytes[..len]).any(|e| e.is_err())));
    }
    // The last value is followed by padding, shorter than a slot unit.
    let node = nodes()[0].encode();
    assert!((0..=node.len() - Slot::UNIT).all(|len| MapNode::decode(&node[..len]).is_err()));
}
