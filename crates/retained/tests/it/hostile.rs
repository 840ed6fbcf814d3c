//! Any bytes in the memory: opening it never panics, and returns exactly what the rules in `docs/format.md`
//! permit. [`reference`] is a second reader, made from that page alone; both must agree.

use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;
use std::sync::Arc;

use forebay_format::{
    RETAINED_COVERS, RETAINED_RECORD_BYTES, RETAINED_TABLE, RETAINED_VERSION, RetainedChunk, RetainedCover,
    RetainedHeader, RetainedKind, RetainedRecord, crc32c, fuzzing as seal,
};

use crate::common::*;
use forebay_retained::fuzzing::{Content, check_open, correct};
use forebay_retained::*;

/// The largest number of a writer.
const MAX: u64 = 1 << 62;
/// Records of a chunk with pages, and the first that is used.
const PAGE_RECORDS: std::ops::Range<usize> = 4..256;

/// What is found: records with their order and the checksum of their page, damaged disks, cover.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    records: Vec<RetainedRecord>,
    damaged: Vec<u32>,
    cover: Option<(u64, u64)>,
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from[at..at + N].try_into().unwrap()
}

/// A record of the memory: chunk, number, offset in the chunk, content.
type Placed = (usize, usize, RetainedRecord);

/// Every record, or `None` if a rule is violated.
fn records(content: &Content, id: u64) -> Option<Vec<Placed>> {
    let header = content[0].as_ref()?;
    let mut records: Vec<Placed> = Vec::new();
    for chunk in 0..(CHUNK - RETAINED_TABLE) / 8 {
        let entry = bytes(header, RETAINED_TABLE + 8 * chunk);
        let Some(kind) = RetainedChunk::decode(&entry, chunk as u32, id).ok()? else { continue };
        let of_chunk = content.get(chunk).filter(|_| chunk > 0)?.as_ref()?;
        let is_pages = kind == RetainedChunk::Pages;
        for n in 0..if is_pages { PAGE_RECORDS.end } else { CHUNK / RETAINED_RECORD_BYTES } {
            let record = RetainedRecord::decode(&bytes(of_chunk, n * RETAINED_RECORD_BYTES)).ok()?;
            let Some(record) = record else { continue };
            let (is_page, generation) = match record.kind {
                RetainedKind::Page { generation, .. } => (true, generation),
                RetainedKind::Range { generation, .. } => (false, generation),
                RetainedKind::Flag { .. } => (false, 0),
            };
            let in_place = is_page == is_pages && !(is_pages && n < PAGE_RECORDS.start);
            (in_place && record.order <= MAX && generation <= MAX).then_some(())?;
            records.push((chunk, n, record));
        }
    }
    records.sort_by_key(|(.., record)| record.order);
    records.is_sorted_by(|a, b| a.2.order < b.2.order).then_some(records)
}

/// The rules of `docs/format.md`.
fn reference(content: &Content) -> Option<Summary> {
    let chunk = content.first()?.as_ref()?;
    let (version, header) = RetainedHeader::decode(&bytes(chunk, 0)).ok()??;
    let is_ours = (header.pool, header.boot) == (IDENTITY.pool, IDENTITY.boot);
    (version == RETAINED_VERSION && is_ours && header.id != 0).then_some(())?;
    let mut covers = Vec::new();
    for (slot, at) in RETAINED_COVERS.into_iter().enumerate() {
        if let Some(cover) = RetainedCover::decode(&bytes(chunk, at)).ok()? {
            (cover.number > 0 && cover.number % 2 == slot as u64).then_some(())?;
            (cover.number <= MAX && cover.order <= MAX).then_some(())?;
            covers.push(cover);
        }
    }
    covers.sort_by_key(|cover| cover.number);
    covers.windows(2).all(|pair| pair[0].number + 1 == pair[1].number).then_some(())?;
    let cover = covers.last().map(|cover| (cover.seq, cover.order));
    let mut found = Summary { cover, ..Summary::default() };
    for (chunk, n, record) in records(content, header.id)? {
        let page = |chunk: usize| &content[chunk].as_ref().unwrap()[n * PAGE..][..PAGE];
        match record.kind {
            RetainedKind::Page { crc, .. } if crc32c(page(chunk)) != crc => found.damaged.push(record.disk),
            _ => found.records.push(record),
        }
    }
    found.damaged.sort_unstable();
    found.damaged.dedup();
    Some(found)
}

fn summary(found: &Contents) -> Summary {
    let cover = found.cover.map(|cover| (cover.seq, cover.order));
    let mut records = Vec::new();
    for (of, order, page) in &found.pages {
        assert_eq!(crc32c(&page[..]), page.crc());
        let BlockRecord { disk, block, mask, generation } = *of;
        let kind = RetainedKind::Page { block, mask, crc: page.crc(), generation };
        records.push(RetainedRecord { disk, order: *order, kind });
    }
    for (of, order, _) in &found.ranges {
        let RangeRecord { disk, start, end, allocated, generation } = *of;
        let kind = RetainedKind::Range { start, end, allocated, generation };
        records.push(RetainedRecord { disk, order: *order, kind });
    }
    records.sort_by_key(|record| record.order);
    Summary { records, damaged: found.damaged.clone(), cover }
}

/// Opens the content, and compares the result with that of the reference. Returns why it was refused.
fn check(content: &Content) -> Option<String> {
    let memory = Arc::new(HeapMemory::with_content(content));
    let expected = reference(content);
    match Retained::open(memory.clone(), &IDENTITY, LIMIT) {
        Ok((_retained, found)) => {
            let mut expected = expected.expect("the reference refuses it");
            // Flags have no order in the contents.
            let is_flag = |record: &RetainedRecord| matches!(record.kind, RetainedKind::Flag { .. });
            let flags = expected.records.extract_if(.., |record| is_flag(record));
            let flags: Vec<_> = flags.map(|record| (record.disk, record.kind)).collect();
            let found_flags =
                found.flags.iter().map(|(disk, kind, _)| (*disk, RetainedKind::Flag { kind: *kind }));
            assert_eq!(found_flags.collect::<Vec<_>>(), flags);
            assert_eq!(summary(&found), expected);
            None
        }
        Err(lost) => {
            assert!(expected.is_none(), "{lost}, but the reference accepts it");
            assert!(memory.content() == *content, "refused memory is unchanged");
            Some(lost.to_string())
        }
    }
}

fn header(content: &mut Content) -> &mut Vec<u8> {
    content[0].as_mut().unwrap()
}

/// The records of the sample.
fn placed(content: &Content) -> Vec<Placed> {
    records(content, ID).unwrap()
}

/// Changes bytes of a record, and corrects its tag.
fn forge(content: &Content, (chunk, n, _): Placed, at: usize, with: &[u8]) -> Content {
    let mut content = content.clone();
    let of_chunk = content[chunk].as_mut().unwrap();
    let record = &mut of_chunk[n * RETAINED_RECORD_BYTES..][..RETAINED_RECORD_BYTES];
    record[at..at + with.len()].copy_from_slice(with);
    seal::seal_retained_record(record, None);
    content
}

/// The first page, range and flag of the sample.
fn one_of_each(content: &Content) -> [Placed; 3] {
    let all = placed(content);
    let first = |is: fn(&RetainedKind) -> bool| *all.iter().find(|(.., record)| is(&record.kind)).unwrap();
    [
        first(|kind| matches!(kind, RetainedKind::Page { .. })),
        first(|kind| matches!(kind, RetainedKind::Range { .. })),
        first(|kind| matches!(kind, RetainedKind::Flag { .. })),
    ]
}

#[test]
fn the_sample_is_sound_and_has_every_structure() {
    let content = sample();
    assert_eq!(content.len(), 3);
    assert_eq!(check(&content), None);
    assert!(check_open(&content));
    let found = reference(&content).unwrap();
    assert_eq!((found.records.len(), found.cover), (36 + 7 + 2 + 2, Some((u64::MAX, 0))));
}

/// Every byte of the header, of the covers, of some entries of the chunk table and of some records, in use or
/// not.
#[test]
fn a_changed_byte_of_a_structure_is_found() {
    let content = sample();
    let in_use = 2 * RETAINED_COVERS[1] - RETAINED_COVERS[0];
    let (mut refused, mut accepted) = (0, 0);
    let mut flip = |chunk: usize, at: usize| {
        let mut content = content.clone();
        content[chunk].as_mut().unwrap()[at] ^= 1 << (at % 8);
        let is_refused = check(&content).is_some();
        *if is_refused { &mut refused } else { &mut accepted } += 1;
        is_refused
    };
    for at in 0..in_use {
        assert!(flip(0, at), "byte {at} of the header");
    }
    for at in in_use..in_use + 8 {
        assert!(!flip(0, at), "byte {at} of the header is reserved");
    }
    for at in RETAINED_TABLE..RETAINED_TABLE + 5 * 8 {
        assert!(flip(0, at), "byte {at} of the chunk table");
    }
    assert!(flip(0, CHUNK - 1), "the last entry of the chunk table");
    for (chunk, n, _) in one_of_each(&content) {
        for at in 0..RETAINED_RECORD_BYTES {
            assert!(flip(chunk, n * RETAINED_RECORD_BYTES + at), "byte {at} of record {n} of chunk {chunk}");
        }
    }
    // Records that cannot be used, were used, and were never used.
    for n in [0, 3, 14, 200] {
        let is_refused = |at| flip(1, n * RETAINED_RECORD_BYTES + at);
        let refused: Vec<_> = (0..RETAINED_RECORD_BYTES).map(is_refused).collect();
        assert!((0..8).all(|at| refused[at]) && (8..64).all(|at| !refused[at]), "record {n}");
    }
    assert_eq!((refused, accepted), (144 + 40 + 1 + 3 * 64 + 4 * 8, 8 + 4 * 56));
}

#[test]
fn a_changed_byte_of_a_page_loses_that_page_alone() {
    let content = sample();
    let before = reference(&content).unwrap();
    let (chunk, n, record) = one_of_each(&content)[0];
    for at in [0, 1000, PAGE - 1] {
        let mut content = content.clone();
        content[chunk].as_mut().unwrap()[n * PAGE + at] ^= 0x10;
        assert_eq!(check(&content), None);
        let memory = Arc::new(HeapMemory::with_content(&content));
        let (retained, found) = Retained::open(memory.clone(), &IDENTITY, LIMIT).unwrap();
        assert_eq!((&found.damaged, found.damaged_pages.len()), (&vec![record.disk], 1));
        assert_eq!(found.pages.len() + found.ranges.len() + found.flags.len(), before.records.len() - 1);
        // A kill before the damage was acted upon does not hide it, whatever else was dropped.
        drop((found.pages, found.ranges, found.flags));
        assert_eq!(reopen(&memory).unwrap().1.damaged, [record.disk]);
        drop(found.damaged_pages);
        assert!(retained.is_empty() && reopen(&memory).unwrap().1.damaged.is_empty());
        // The page of a slot that is not in use.
        content[chunk] = self::sample()[chunk].clone();
        content[chunk].as_mut().unwrap()[250 * PAGE + at] ^= 0x10;
        assert_eq!(
            (check(&content), reference(&content).unwrap()),
            (None, reference(&self::sample()).unwrap())
        );
    }
}

/// With correct checksums: refused are numbers and places that no writer produces, whatever the caller makes
/// of the rest.
#[test]
fn forged_records_are_refused_unless_a_writer_could_have_made_them() {
    let content = sample();
    let [page, range, flag] = one_of_each(&content);
    let check_forged = |record: Placed, at: usize, with: &[u8]| check(&forge(&content, record, at, with));
    let damaged = |why: &str| Some(format!("the retained memory is damaged: {why}"));
    let (number, invalid) = (damaged("a record has an impossible number"), damaged("a record is invalid"));
    for huge in [MAX + 1, u64::MAX] {
        for record in [page, range, flag] {
            assert_eq!(check_forged(record, 48, &huge.to_le_bytes()), number, "order");
        }
        for record in [page, range] {
            assert_eq!(check_forged(record, 40, &huge.to_le_bytes()), number, "generation");
        }
    }
    for record in [page, range, flag] {
        for kind in [0, 4, 255] {
            assert_eq!(check_forged(record, 12, &[kind]), invalid, "kind {kind}");
        }
    }
    assert_eq!(check_forged(range, 14, &[2]), invalid, "allocated");
    assert_eq!(check_forged(range, 24, &[20]), invalid, "an empty range");
    assert_eq!(check_forged(range, 24, &[255; 8]), invalid, "a range that ends before its start");
    let place = damaged("a record is in the wrong place");
    assert_eq!(check_forged(page, 12, &[2, 0, 0]).map(|_| ()), Some(()), "a range in a chunk with pages");
    assert_eq!(check_forged(page, 12, &[3]), place, "a flag in a chunk with pages");
    assert_eq!(check_forged(range, 12, &[1]), place, "a page in a chunk with records");
    let same_order = damaged("two records have the same order");
    for (one, other) in [(page, range), (range, flag), (flag, page)] {
        assert_eq!(check_forged(one, 48, &other.2.order.to_le_bytes()), same_order);
    }
    // A copy of a record, and of a record with its page.
    let copy = |from: usize, to: usize, with_page: bool| {
        let mut content = content.clone();
        let of_chunk = content[1].as_mut().unwrap();
        of_chunk.copy_within(
            from * RETAINED_RECORD_BYTES..(from + 1) * RETAINED_RECORD_BYTES,
            to * RETAINED_RECORD_BYTES,
        );
        if with_page {
            of_chunk.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
        }
        check(&content)
    };
    assert_eq!((copy(page.1, 200, false), copy(page.1, 200, true)), (same_order.clone(), same_order));
    assert_eq!(copy(page.1, 3, false), place);
    // For the caller to judge: any disk, any block, any sectors, ranges over each other, the largest numbers.
    for record in [page, range, flag] {
        assert_eq!(check_forged(record, 8, &[255; 4]), None);
        assert_eq!(check_forged(record, 48, &MAX.to_le_bytes()), None);
    }
    assert_eq!(check_forged(page, 13, &[0]), None);
    assert_eq!(check_forged(page, 24, &[255; 8]), None);
    assert_eq!(check_forged(range, 32, &[255; 8]), None);
    assert_eq!(check_forged(page, 40, &MAX.to_le_bytes()), None);
}

#[test]
fn forged_headers_and_tables_are_refused() {
    let content = sample();
    let forged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut content = content.clone();
        change(header(&mut content));
        check(&content).unwrap_or_else(|| "accepted".into())
    };
    let in_header = |at: usize, with: &[u8]| {
        forged(&|header| {
            header[at..at + with.len()].copy_from_slice(with);
            seal::seal_retained_header(header);
        })
    };
    assert!(in_header(8, &[0]).contains("version 0, which this release no longer reads"));
    assert!(in_header(8, &[2]).contains("version 2, which is newer"));
    assert!(in_header(16, b"x").contains("another pool"));
    assert!(in_header(32, b"x").contains("the last start of the host"));
    assert!(in_header(48, &[0; 8]).contains("it has no id"));
    assert!(in_header(48, &[1]).contains("an entry of the chunk table is invalid"), "of another memory");
    assert!(forged(&|header| header[56..64].fill(0)).contains("is empty"));

    let in_cover = |slot: usize, at: usize, with: &[u8]| {
        forged(&|header| {
            let cover = &mut header[RETAINED_COVERS[slot]..];
            cover[at..at + with.len()].copy_from_slice(with);
            seal::seal_retained_cover(cover);
        })
    };
    // The sample has the numbers 2 and 1.
    for number in [0, 3, 4, MAX + 2] {
        assert!(in_cover(0, 8, &u64::to_le_bytes(number)).contains("a cover slot is impossible"), "{number}");
    }
    assert!(in_cover(1, 24, &[255; 8]).contains("a cover slot is impossible"));
    assert_eq!(in_cover(1, 16, &[255; 8]), "accepted");
    assert_eq!(in_cover(1, 8, &[3]), "accepted");

    let in_table = |chunk: u32, kind: RetainedChunk| {
        forged(&|header| {
            header[RETAINED_TABLE + 8 * chunk as usize..][..8].copy_from_slice(&kind.encode(chunk, ID));
        })
    };
    for kind in [RetainedChunk::Pages, RetainedChunk::Records] {
        assert!(in_table(0, kind).contains("lists the header"));
        for absent in [3, 1000, (CHUNK - RETAINED_TABLE) as u32 / 8 - 1] {
            assert!(in_table(absent, kind).contains("a part of the memory is missing"), "{absent}");
        }
    }
    assert!(in_table(1, RetainedChunk::Records).contains("wrong place"));
    // The bytes of pages are no records.
    assert!(in_table(2, RetainedChunk::Pages).contains("wrong place"));
    let moved =
        forged(&|header| header.copy_within(RETAINED_TABLE + 8..RETAINED_TABLE + 16, RETAINED_TABLE + 16));
    assert!(moved.contains("an entry of the chunk table is invalid"), "{moved}");
}

/// One change of the content.
fn change(random: &mut Random, content: &mut Content) {
    let target = random.below(content.len());
    let other = content[random.below(content.len())].clone();
    let Some(bytes) = &mut content[target] else { return };
    // Mostly where there are structures.
    let hot = [0..128, RETAINED_TABLE..RETAINED_TABLE + 32, 256..4096, 4 * PAGE..60 * PAGE, 0..CHUNK];
    let within = hot[random.below(hot.len())].clone();
    let at = within.start + random.below(within.len()) / 8 * 8;
    let len = [1, 8, 64, 512, 4096][random.below(5)].min(CHUNK - at);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at..at + len].fill([0, 255][random.below(2)]),
        2 => bytes[at..at + len].fill_with(|| random.next() as u8),
        3 | 4 => {
            // Structures at other places.
            let from = within.start / 64 * 64 + random.below(within.len()) / 64 * 64;
            let len = len.max(64).min(CHUNK - from.max(at / 64 * 64));
            bytes.copy_within(from..from + len, at / 64 * 64);
        }
        5 => bytes[at..at + 8].copy_from_slice(&[MAX, MAX + 1, u64::MAX, 1][random.below(4)].to_le_bytes()),
        6 if random.below(4) == 0 => content[target] = None,
        6 => bytes[at] = random.next() as u8,
        _ => content[target] = other,
    }
}

#[test]
fn random_changes_have_the_documented_effect() {
    let original = sample();
    with_seeds("random_changes_have_the_documented_effect", 300, |seed| {
        let mut random = Random(seed);
        let mut content = original.clone();
        (0..=random.below(6)).for_each(|_| change(&mut random, &mut content));
        check(&content);
        correct(&mut content);
        check(&content);
        if seed.is_multiple_of(4) {
            check_open(&content);
        }
    });
}

/// Random bytes in all chunks; then also with correct checksums, which makes records of them.
#[test]
fn random_bytes_have_the_documented_effect() {
    with_seeds("random_bytes_have_the_documented_effect", 20, |seed| {
        let mut random = Random(seed);
        let mut content: Content = Vec::new();
        for _ in 0..1 + random.below(3) {
            let is_present = random.below(8) > 0;
            content
                .push(is_present.then(|| (0..CHUNK / 8).flat_map(|_| random.next().to_le_bytes()).collect()));
        }
        check(&content);
        correct(&mut content);
        check(&content);
    });
}

#[test]
fn memory_without_chunks_is_empty() {
    for content in [vec![], vec![None; 3], vec![None, Some(vec![255; CHUNK])]] {
        assert_eq!(check(&content).as_deref(), Some("the retained memory is empty"));
        assert!(!check_open(&content));
    }
    let zeroes = vec![Some(vec![0; CHUNK]); 2];
    assert_eq!(check(&zeroes).as_deref(), Some("the retained memory is empty"));
}

/// Writes the content as a file, cut at `len`.
fn write_file(path: &std::path::Path, content: &Content, len: u64) {
    use std::os::unix::fs::OpenOptionsExt;
    let file =
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    for (chunk, bytes) in content.iter().enumerate().filter_map(|(n, bytes)| Some((n, bytes.as_ref()?))) {
        let at = (chunk * CHUNK) as u64;
        let rest = usize::try_from(len.saturating_sub(at)).unwrap().min(CHUNK);
        file.write_all_at(&bytes[..rest], at).unwrap();
    }
    file.set_len(len).unwrap();
}

fn open_file(path: &std::path::Path) -> Result<(Arc<Retained>, Contents), Lost> {
    let file = open_soon(path).unwrap();
    Retained::open(Arc::new(file), &IDENTITY, LIMIT)
}

/// A chunk in the table that is incomplete is damage. Bytes behind it, or outside of the table, have no
/// effect.
#[test]
fn a_file_of_another_length_is_lost_or_complete() {
    let Some(dir) = tmpfs_dir() else { return };
    let path = dir.path().join("memory");
    let mut content = sample();
    let expected = reference(&content).unwrap();
    // A chunk that is not in the table.
    content.push(Some(vec![7; CHUNK]));
    for pages in 0..4 * 256 + 2 {
        let len = pages * PAGE as u64;
        // Also within a page.
        write_file(&path, &content, len + pages % 3 * 1000);
        match open_file(&path) {
            Err(Lost::Empty) => assert!(pages < 256, "{pages}"),
            Err(Lost::Damaged(why)) => {
                assert_eq!(why, "a part of the memory is missing");
                assert!((256..3 * 256).contains(&pages), "{pages}");
            }
            Ok((retained, found)) => {
                assert!(pages >= 3 * 256, "{pages}");
                let records = found.pages.len() + found.ranges.len() + found.flags.len();
                assert_eq!((records, found.damaged.len()), (expected.records.len(), 0));
                // The other chunks have been given back.
                assert_eq!(retained.stats().bytes, 3 << 20);
            }
            Err(other) => panic!("{pages}: {other}"),
        }
    }
    write_file(&path, &content, u64::MAX >> 10);
    let e = open_soon(&path).map(drop).unwrap_err();
    assert!(e.to_string().contains("larger than retained memory can be"), "{e}");
}

/// The panics of the helpers above are those of a test, not of the code: this proves that they are seen.
#[test]
fn the_comparison_detects_differences() {
    let content = sample();
    let forged = forge(&content, one_of_each(&content)[0], 48, &MAX.to_le_bytes());
    assert!(reference(&forged) != reference(&content));
    assert!(catch_unwind(|| with_seeds("x", 2, |seed| assert_eq!(seed, 0))).is_err());
}
