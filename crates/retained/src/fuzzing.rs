//! Entry points for fuzzing: functions that accept any bytes and panic if this crate violates a guarantee.
//! The targets in `fuzz/` call them, and so do tests.
//!
//! The guarantees: opening does not panic; refused memory is unchanged; every page that is found has the
//! checksum of its record; a memory whose contents were dropped is empty when it is opened again.

#![expect(clippy::expect_used, reason = "a fuzz target reports a broken guarantee by a panic")]

use std::sync::Arc;

use forebay_format::{
    RETAINED_COVERS, RETAINED_HEADER_BYTES, RETAINED_RECORD_BYTES, RETAINED_TABLE, RetainedChunk,
    RetainedHeader, crc32c, fuzzing as seal,
};

use crate::space::slots;
use crate::{BlockRecord, CHUNK, Contents, HeapMemory, Identity, PAGE, Retained};

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzzing targets.
pub const TARGETS: &[Target] = &[("retained_memory", retained_memory)];

/// Chunks of the memory of an input.
const CHUNKS: u32 = 4;
const LIMIT: u64 = 64 << 20;
/// Length of the header of a piece: chunk, offset and length.
const PIECE_HEAD: usize = 6;
/// Number of zeroes that end a piece.
const GAP: usize = 16;

/// Opens a memory in the format of [`pack`], with the checksums as given and corrected.
pub fn retained_memory(data: &[u8]) {
    let mut content = unpack(data);
    check_open(&content);
    correct(&mut content);
    check_open(&content);
}

/// The content of a memory.
pub type Content = Vec<Option<Vec<u8>>>;

/// Opens a memory with this content, and checks the guarantees. Returns whether it could be opened.
pub fn check_open(content: &Content) -> bool {
    let memory = Arc::new(HeapMemory::with_content(content));
    let identity = identity(content);
    let (retained, found) = match Retained::open(memory.clone(), &identity, LIMIT) {
        Ok(opened) => opened,
        Err(lost) => {
            assert!(!lost.to_string().is_empty());
            assert!(memory.content() == *content, "refused memory is unchanged");
            return false;
        }
    };
    let pages = &found.pages;
    assert!(pages.iter().all(|(_, _, page)| crc32c(&page[..]) == page.crc()));
    assert!(pages.is_sorted_by_key(|(_, order, _)| *order));
    assert!(pages.iter().all(|(_, order, _)| *order < retained.order()));
    assert!(found.ranges.iter().all(|(_, order, _)| *order < retained.order()));
    assert_eq!(found.damaged.is_empty(), found.damaged_pages.is_empty());
    assert!(found.damaged.is_sorted_by(|a, b| a < b));

    let of = BlockRecord { disk: 1, block: 2, mask: 3, generation: 4 };
    let page = retained.page(None, of, |page| page.fill(5));
    let cover = found.cover;
    let count = |found: &Contents| (found.pages.len(), found.ranges.len(), found.flags.len());
    let (before, was_kept) = (count(&found), page.is_retained());
    let killed = Retained::open(Arc::new(memory.snapshot()), &identity, LIMIT);
    let (_, again) = killed.expect("a kill leaves the memory sound");
    let expected = (before.0 + usize::from(was_kept), before.1, before.2);
    assert_eq!((count(&again), again.cover, &again.damaged), (expected, cover, &found.damaged));

    drop((page, found));
    assert!(retained.is_empty());
    drop(retained);
    let (_, rest) = Retained::open(memory, &identity, LIMIT).expect("a closed memory is sound");
    assert_eq!((count(&rest), rest.cover, rest.damaged.len()), ((0, 0, 0), cover, 0));
    true
}

/// The identity in the header.
fn identity(content: &Content) -> Identity {
    let mut sealed = [0; RETAINED_HEADER_BYTES];
    if let Some(Some(first)) = content.first() {
        sealed.copy_from_slice(&first[..RETAINED_HEADER_BYTES]);
    }
    seal::seal_retained_header(&mut sealed);
    let (_, header) = RetainedHeader::decode(&sealed).expect("the tag is correct").expect("there is a tag");
    Identity { pool: header.pool, boot: header.boot }
}

/// Corrects every checksum, as an attacker would.
pub fn correct(content: &mut Content) {
    let Some((Some(first), rest)) = content.split_first_mut() else { return };
    seal::seal_retained_header(first);
    RETAINED_COVERS.into_iter().for_each(|at| seal::seal_retained_cover(&mut first[at..]));
    let header = first.first_chunk().and_then(|b| RetainedHeader::decode(b).ok().flatten());
    let id = header.map_or(0, |(_, header)| header.id);
    for (chunk, bytes) in (1..).zip(rest) {
        let Some(bytes) = bytes else { continue };
        let entry = &mut first[RETAINED_TABLE + 8 * chunk as usize..][..8];
        seal::seal_retained_chunk(entry, chunk, id);
        let entry = entry.first_chunk().and_then(|b| RetainedChunk::decode(b, chunk, id).ok().flatten());
        let Some(kind) = entry else { continue };
        let slots = slots(kind);
        // Records precede the pages.
        let pages = match kind {
            RetainedChunk::Pages => slots.start as usize * PAGE,
            RetainedChunk::Records => CHUNK,
        };
        let (records, pages) = bytes.split_at_mut(pages);
        for slot in slots.clone() {
            let record = &mut records[slot as usize * RETAINED_RECORD_BYTES..][..RETAINED_RECORD_BYTES];
            let page = pages.get((slot - slots.start) as usize * PAGE..).and_then(|rest| rest.get(..PAGE));
            // Some pages stay damaged.
            seal::seal_retained_record(record, page.filter(|page| page[0] < 0xf0));
        }
    }
}

/// Parses pieces: chunk (one byte), offset in it (three bytes), length (two bytes), bytes. A chunk with a
/// piece is present.
fn unpack(mut data: &[u8]) -> Content {
    let mut content: Content = vec![None; CHUNKS as usize];
    while let Some((head, rest)) = data.split_first_chunk::<PIECE_HEAD>() {
        let chunk = usize::from(head[0]) % content.len();
        let at = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize % CHUNK;
        let (piece, behind) =
            rest.split_at(usize::from(u16::from_be_bytes([head[4], head[5]])).min(rest.len()));
        let len = piece.len().min(CHUNK - at);
        content[chunk].get_or_insert_with(|| vec![0; CHUNK])[at..at + len].copy_from_slice(&piece[..len]);
        data = behind;
    }
    content
}

/// Converts the content of a small memory to an input of [`retained_memory`].
pub fn pack(content: &Content) -> Vec<u8> {
    let mut data = Vec::new();
    for (chunk, bytes) in content.iter().take(CHUNKS as usize).enumerate() {
        let Some(bytes) = bytes else { continue };
        let (mut at, before) = (0, data.len());
        while let Some(start) = bytes[at..].iter().position(|b| *b != 0).map(|n| at + n) {
            let rest = &bytes[start..];
            let end = rest.windows(GAP).position(|w| w == [0; GAP]).unwrap_or(rest.len()).min(0xffff);
            put_piece(&mut data, chunk, start, &rest[..end]);
            at = start + end;
        }
        if data.len() == before {
            put_piece(&mut data, chunk, 0, &[]);
        }
    }
    data
}

fn put_piece(data: &mut Vec<u8>, chunk: usize, at: usize, bytes: &[u8]) {
    data.push(chunk as u8);
    data.extend_from_slice(&(at as u32).to_be_bytes()[1..]);
    data.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    data.extend_from_slice(bytes);
}
