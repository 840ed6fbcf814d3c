//! Entry points for fuzzing: one plain function for each structure, which takes any bytes and panics if a
//! guarantee of this crate is violated. Called by the targets in `fuzz/`, and by a test with the checked-in
//! corpus.
//!
//! The guarantees: decoders do not panic; accepted bytes can be encoded again, and decode to the same value.
//!
//! Random bytes rarely pass a checksum. So each function tries the bytes unchanged, and again with correct
//! magic number, version and checksum, as an attacker would write them.

#![expect(clippy::expect_used, reason = "a fuzz target reports a broken promise by a panic")]

use crate::checksum::{check64, crc32c};
use crate::layout::*;
use crate::*;

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzzing targets.
pub const TARGETS: &[Target] = &[
    ("superblock", superblock),
    ("checkpoint_root", checkpoint_root),
    ("table_page", table_page),
    ("catalogue_op", catalogue_op),
    ("segment_header", segment_header),
    ("segment_footer", segment_footer),
    ("batch", batch),
    ("entries", entries),
    ("map_node", map_node),
    ("relocation_map", relocation_map),
    ("retained_structure", retained_structure),
];

/// The bytes, at least `len` of them, with the correct magic number.
fn with_magic(data: &[u8], len: usize, magic: &[u8]) -> Vec<u8> {
    let mut b = data.to_vec();
    b.resize(len.max(b.len()), 0);
    b[..magic.len()].copy_from_slice(magic);
    b
}

/// Corrects the checksum at the end of the first block.
fn seal_block(b: &mut [u8]) {
    let check = check64(&b[..BLOCK - 8]);
    put_u64(b, BLOCK - 8..BLOCK, check);
}

/// [`Superblock`]: one copy, and the choice between two.
pub fn superblock(data: &[u8]) {
    let _ = Superblock::decode(data);
    let mut b = with_magic(data, BLOCK, crate::superblock::MAGIC);
    put_u32(&mut b, crate::superblock::superblock::VERSION, VERSION);
    seal_block(&mut b);
    let patched = Superblock::decode(&b);
    if let Ok(superblock) = &patched {
        assert_eq!(Superblock::decode(&superblock.encode()).as_ref(), Ok(superblock));
    }
    // The other copy is made of the bytes after the first copy, or of all of the input.
    let other = data.get(BLOCK..).filter(|rest| !rest.is_empty()).unwrap_or(data);
    let chosen = Superblock::choose([Some(&b), Some(other)]);
    assert_eq!(chosen.is_ok(), Superblock::choose([Some(other), Some(&b)]).is_ok());
    if let (Ok(chosen), Ok(one)) = (chosen, patched) {
        assert!(chosen.generation >= one.generation);
    }
}

/// [`CheckpointRoot`].
pub fn checkpoint_root(data: &[u8]) {
    let b = with_magic(data, 8, crate::root::MAGIC);
    for bytes in [data, &b] {
        if let Ok(root) = CheckpointRoot::decode(bytes) {
            let again = root.encode();
            assert_eq!(again.len(), bytes.len());
            assert_eq!(CheckpointRoot::decode(&again), Ok(root));
        }
    }
}

/// A page of a table, and a directory page with the locations that it lists.
pub fn table_page(data: &[u8]) {
    use crate::page::table_page as l;
    let b = with_magic(data, l::SIZE, crate::page::MAGIC);
    let number = get_u32(&b, l::NUMBER);
    for table in [Table::SEGMENTS, Table::DISKS] {
        for level in [PageLevel::Records, PageLevel::Directory] {
            let Ok(records) = decode_page(&b, table, level, number) else { continue };
            let mut again = PageEncoder::new(table, level, number);
            records.iter().for_each(|(key, record)| again.add(*key, |out| out.extend_from_slice(record)));
            let again = again.finish().expect("a page without records is refused");
            assert_eq!(again.len(), b.len());
            records.iter().for_each(|(_, record)| table_record(record));
            assert_eq!(decode_page(&again, table, level, number), Ok(records));
        }
        if let Ok(pages) = decode_directory(&b, table, number) {
            let last = u64::from(number + 1) * u64::from(Table::DIRECTORY_SPAN);
            assert!(pages.iter().all(|(page, _)| u64::from(*page) < last));
        }
    }
}

/// [`SegmentRecord`] and [`DiskRecord`], from the same bytes.
fn table_record(data: &[u8]) {
    let mut again = Vec::new();
    if let Ok(record) = SegmentRecord::decode(data) {
        record.encode(&mut again);
        assert_eq!(SegmentRecord::decode(&again), Ok(record));
    }
    again.clear();
    if let Ok(record) = DiskRecord::decode(&mut &data[..]) {
        record.encode(&mut again);
        assert_eq!(DiskRecord::decode(&mut &again[..]), Ok(record));
    }
}

/// [`CatalogueOp`].
pub fn catalogue_op(data: &[u8]) {
    if let Ok(op) = CatalogueOp::decode(data) {
        let mut again = Vec::new();
        op.encode(&mut again);
        assert_eq!(again.len(), data.len());
        assert_eq!(CatalogueOp::decode(&again), Ok(op));
    }
}

/// [`SegmentHeader`].
pub fn segment_header(data: &[u8]) {
    use crate::segment::segment_header as l;
    let mut b = with_magic(data, BLOCK, crate::segment::HEADER_MAGIC);
    put_u32(&mut b, l::VERSION, VERSION);
    seal_block(&mut b);
    let (pool, segment) = (PoolId(get_array(&b, l::POOL_ID)), SegmentId(get_u32(&b, l::SEGMENT)));
    let _ = SegmentHeader::decode(data, pool, segment);
    if let Ok(header) = SegmentHeader::decode(&b, pool, segment) {
        assert_eq!(SegmentHeader::decode(&header.encode(), pool, segment), Ok(header));
    }
}

/// [`SegmentFooter`] and the directory after it.
pub fn segment_footer(data: &[u8]) {
    use crate::segment::segment_footer as l;
    let mut b = with_magic(data, BLOCK, crate::segment::FOOTER_MAGIC);
    put_u32(&mut b, l::VERSION, VERSION);
    let len = get_u32(&b, l::COUNT) as usize * crate::segment::directory_entry::SIZE;
    if let Some(directory) = b.get(BLOCK..BLOCK + len) {
        let crc = crc32c(directory);
        put_u32(&mut b, l::DIRECTORY_CRC, crc);
    }
    seal_block(&mut b);
    let (pool, segment) = (PoolId(get_array(&b, l::POOL_ID)), SegmentId(get_u32(&b, l::SEGMENT)));
    let offset = get_u32(&b, l::OFFSET);
    for bytes in [data, &b] {
        let Ok(footer) = SegmentFooter::decode(bytes, pool, segment, offset) else { continue };
        let Ok(directory) = footer.decode_directory(&bytes[BLOCK..]) else { continue };
        let again = footer.encode(&directory);
        let read =
            SegmentFooter::decode(&again, pool, segment, offset).expect("a footer that was just encoded");
        assert_eq!(read.count, footer.count);
        assert_eq!(read.decode_directory(&again[BLOCK..]), Ok(directory));
    }
}

/// [`Batch`] with its entries and payload.
pub fn batch(data: &[u8]) {
    use crate::batch::batch_header as l;
    /// Maximum length of a batch that is tried: longer batches cover no more code, and cost memory.
    const MAX_LEN: usize = 1 << 20;
    let mut b = with_magic(data, l::SIZE, crate::batch::MAGIC);
    put_u32(&mut b, l::VERSION, VERSION);
    let (pool, segment) = (PoolId(get_array(&b, l::POOL_ID)), SegmentId(get_u32(&b, l::SEGMENT)));
    let offset = get_u32(&b, l::OFFSET);
    let _ = Batch::decode(data, pool, segment, offset);
    let Some(len) = Batch::peek_len(&b).ok().filter(|len| *len <= MAX_LEN) else { return };
    b.resize(len, 0);
    let head_len = BatchHeader::head_len(get_u32(&b, l::ENTRIES_LEN) as usize);
    let check = crate::batch::check(&b[..head_len], &b[head_len..]);
    put_u64(&mut b, l::CHECK, check);
    let Ok(batch) = Batch::decode(&b, pool, segment, offset) else { return };
    assert_eq!(batch.payload_range().end, u64::from(offset) + len as u64);
    for entry in batch.entries().map_while(Result::ok) {
        assert_content_inside(&batch, &entry);
    }
    let mut head = vec![0; head_len];
    let check = batch.header.encode(&mut head, batch.entry_bytes(), crate::Sum64::of(batch.payload));
    head.extend_from_slice(batch.payload);
    let again = Batch::decode(&head, pool, segment, offset).expect("a batch that was just encoded");
    assert_eq!((again.header, again.check), (batch.header, check));
    assert_eq!((again.entry_bytes(), again.payload), (batch.entry_bytes(), batch.payload));
}

fn assert_content_inside(batch: &Batch, entry: &Entry) {
    let (slot, len) = match entry {
        Entry::Put { slot, form, .. } if form.codec() == Some(Codec::ZstdGroup) => (slot, 1),
        Entry::Put { slot, form, .. } | Entry::Node { slot, form, .. } => (slot, form.stored_len() as u64),
        Entry::Blob { slot, len } | Entry::Relocate { slot, len, .. } => (slot, u64::from(*len)),
        Entry::Reference { .. } | Entry::Zero { .. } | Entry::Catalogue(_) => return,
    };
    let payload = batch.payload_range();
    assert!(slot.offset() >= payload.start && slot.offset() + len <= payload.end);
}

/// [`EntryIter`] on any bytes.
pub fn entries(data: &[u8]) {
    let mut again = Vec::new();
    let accepted: Vec<_> = EntryIter::new(data).map_while(Result::ok).collect();
    accepted.iter().for_each(|entry| entry.encode(&mut again));
    assert!(again.len() <= data.len());
    assert_eq!(EntryIter::new(&again).collect::<Result<Vec<_>>>(), Ok(accepted));
}

/// [`RelocationMap`].
pub fn relocation_map(data: &[u8]) {
    use crate::relocation::relocation_map as l;
    let mut b = with_magic(data, l::SIZE, crate::relocation::MAGIC);
    let crc = crc32c(&b[l::SIZE..]);
    put_u32(&mut b, l::CRC, crc);
    let (segment, container) = (SegmentId(get_u32(&b, l::SEGMENT)), SegmentId(get_u32(&b, l::CONTAINER)));
    let _ = RelocationMap::decode(data, segment, container);
    if let Ok(map) = RelocationMap::decode(&b, segment, container) {
        assert_eq!(RelocationMap::decode(&map.encode(), segment, container), Ok(map));
    }
}

/// [`MapNode`].
pub fn map_node(data: &[u8]) {
    if let Ok(node) = MapNode::decode(data) {
        let again = node.encode();
        assert!(again.len() <= BLOCK);
        assert_eq!(MapNode::decode(&again), Ok(node));
    }
}

/// [`RetainedHeader`], [`RetainedCover`], [`RetainedChunk`] and [`RetainedRecord`], from the same bytes.
pub fn retained_structure(data: &[u8]) {
    let mut given = [0; RETAINED_HEADER_BYTES];
    let len = data.len().min(given.len());
    given[..len].copy_from_slice(&data[..len]);
    let (mut header, mut cover, mut record, mut chunk) = (given, given, given, given);
    seal_retained_header(&mut header);
    seal_retained_cover(&mut cover);
    seal_retained_record(&mut record, None);
    seal_retained_chunk(&mut chunk, 3, 5);
    for b in [given, header] {
        if let Ok(Some((RETAINED_VERSION, header))) = RetainedHeader::decode(&b) {
            assert_eq!(RetainedHeader::decode(&header.encode()), Ok(Some((RETAINED_VERSION, header))));
        }
    }
    for b in [given, cover] {
        if let Ok(Some(cover)) = RetainedCover::decode(&array(&b)) {
            assert_eq!(RetainedCover::decode(&cover.encode()), Ok(Some(cover)));
        }
    }
    for b in [given, record] {
        if let Ok(Some(record)) = RetainedRecord::decode(&b) {
            assert_eq!(RetainedRecord::decode(&record.encode()), Ok(Some(record)));
        }
    }
    for b in [given, chunk] {
        if let Ok(Some(chunk)) = RetainedChunk::decode(&array(&b), 3, 5) {
            assert_eq!(chunk.encode(3, 5), array(&b));
        }
    }
}

fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let (front, _) = b.split_first_chunk().expect("the structure is not longer");
    *front
}

/// Corrects magic number and tag of a header of retained memory.
pub fn seal_retained_header(b: &mut [u8]) {
    use crate::retained::{HEADER_MARK, MAGIC, retained_header as l};
    put_bytes(b, l::MAGIC, MAGIC);
    put_bytes(b, l::MARK, HEADER_MARK);
    let crc = crc32c(&b[..l::CRC.start]);
    put_u32(b, l::CRC, crc);
}

/// Corrects the tag of a cover slot, unless it is 0.
pub fn seal_retained_cover(b: &mut [u8]) {
    use crate::retained::{COVER_MARK, retained_cover as l};
    if b[..l::NUMBER.start] != [0; 8] {
        put_bytes(b, l::MARK, COVER_MARK);
        let crc = crc32c(&b[l::NUMBER.start..l::SIZE]);
        put_u32(b, l::CRC, crc);
    }
}

/// Corrects the entry of a chunk in the chunk table of the memory with this id, unless it is 0.
pub fn seal_retained_chunk(b: &mut [u8], chunk: u32, id: u64) {
    use crate::retained::retained_chunk as l;
    if b[..l::SIZE] != [0; 8] {
        let is_pages = get_u8(b, l::KIND).is_multiple_of(2);
        let kind = if is_pages { RetainedChunk::Pages } else { RetainedChunk::Records };
        b[..l::SIZE].copy_from_slice(&kind.encode(chunk, id));
    }
}

/// Corrects the tag of a record, unless it is 0, and the checksum of its page.
pub fn seal_retained_record(b: &mut [u8], page: Option<&[u8]>) {
    use crate::retained::{RECORD_MARK, retained_record as l};
    if b[..l::DISK.start] != [0; 8] {
        if let Some(page) = page {
            put_u32(b, l::PAGE_CRC, crc32c(page));
        }
        put_bytes(b, l::MARK, RECORD_MARK);
        let crc = crc32c(&b[l::DISK.start..l::SIZE]);
        put_u32(b, l::CRC, crc);
    }
}
