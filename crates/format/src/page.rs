//! Paged tables: the records of a checkpoint by their number, in pages.
//!
//! A *page* holds the records of a range of numbers. It is written as a piece, and written again when one of
//! its records has changed. A *directory page* lists the pages of a range of page numbers with their
//! locations. The root of the checkpoint lists the directory pages of all tables. So a checkpoint writes the
//! pages that changed, the directory pages above them, and the root.

use crate::layout::*;
use crate::superblock::blob_ref;
use crate::{BlobRef, FormatError, Result, align_up};

pub(crate) const MAGIC: &[u8; 8] = b"FBTABLEP";
const WHAT: &str = "table page";

layout!(table_page, "table page", 32, {
    MAGIC @ 0, 8, "`FBTABLEP`";
    TABLE @ 8, 1, "the table: 1 segments, 2 disks";
    LEVEL @ 9, 1, "0 a page of records, 1 a directory page";
    NUMBER @ 12, 4, "number of the page among those of its level";
    COUNT @ 16, 4, "records, which follow by ascending key";
});
layout!(table_record, "table page record", 8, {
    KEY @ 0, 4, "number of the record in its table; in a directory page: number of a page";
    LEN @ 4, 4, "bytes of the record, which follow, then zeroes up to a multiple of eight; in a directory page: a blob reference";
});

/// A table of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Number of the table.
    pub id: u8,
    /// Number of keys whose records are on one page.
    pub span: u32,
}

impl Table {
    /// The segment table: segment records by segment id.
    pub const SEGMENTS: Table = Table { id: 1, span: 128 };
    /// The catalogue: disk records by disk id.
    pub const DISKS: Table = Table { id: 2, span: 32 };
    /// Page numbers that are listed on one directory page.
    pub const DIRECTORY_SPAN: u32 = 256;

    /// The page that holds the record of a key.
    pub const fn page_of(self, key: u32) -> u32 {
        key / self.span
    }

    /// Returns the number of the directory page that lists a page.
    pub const fn directory_of(page: u32) -> u32 {
        page / Table::DIRECTORY_SPAN
    }
}

/// The two kinds of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageLevel {
    /// The page holds records.
    Records = 0,
    /// The page lists pages.
    Directory = 1,
}

impl PageLevel {
    fn span(self, table: Table) -> u32 {
        match self {
            PageLevel::Records => table.span,
            PageLevel::Directory => Table::DIRECTORY_SPAN,
        }
    }
}

/// A page that is being encoded.
#[derive(Debug)]
pub struct PageEncoder {
    bytes: Vec<u8>,
    count: u32,
    /// The keys that can still follow.
    keys: std::ops::Range<u64>,
}

impl PageEncoder {
    /// A page without records.
    pub fn new(table: Table, level: PageLevel, number: u32) -> PageEncoder {
        use table_page as l;
        let mut bytes = vec![0; l::SIZE];
        put_bytes(&mut bytes, l::MAGIC, MAGIC);
        put_u8(&mut bytes, l::TABLE, table.id);
        put_u8(&mut bytes, l::LEVEL, level as u8);
        put_u32(&mut bytes, l::NUMBER, number);
        PageEncoder { bytes, count: 0, keys: keys_of(table, level, number) }
    }

    /// Adds a record, which `encode` appends. Keys must be within the page, and ascend.
    pub fn add(&mut self, key: u32, encode: impl FnOnce(&mut Vec<u8>)) {
        use table_record as l;
        assert!(self.keys.contains(&key.into()), "the encoded page would be rejected when decoded");
        self.keys.start = u64::from(key) + 1;
        self.count += 1;
        let at = self.bytes.len();
        self.bytes.resize(at + l::SIZE, 0);
        encode(&mut self.bytes);
        let len = self.bytes.len() - at - l::SIZE;
        put_u32(&mut self.bytes[at..], l::KEY, key);
        put_u32(&mut self.bytes[at..], l::LEN, len as u32);
        self.bytes.resize(at + l::SIZE + align_up(len, 8), 0);
    }

    /// The encoded page; `None` if it has no records, since an empty page is not stored.
    pub fn finish(mut self) -> Option<Vec<u8>> {
        put_u32(&mut self.bytes, table_page::COUNT, self.count);
        (self.count > 0).then_some(self.bytes)
    }
}

fn keys_of(table: Table, level: PageLevel, number: u32) -> std::ops::Range<u64> {
    let span = u64::from(level.span(table));
    let first = u64::from(number) * span;
    first..(first + span).min(1 << 32)
}

/// The records of a page, with their keys. The caller must have verified the checksum of the page.
pub fn decode_page(b: &[u8], table: Table, level: PageLevel, number: u32) -> Result<Vec<(u32, &[u8])>> {
    use {table_page as l, table_record as r};
    let bad = |field| Err(FormatError::Value { what: WHAT, field });
    let (head, mut rest) = b.split_at_checked(l::SIZE).ok_or(FormatError::Truncated(WHAT))?;
    if &head[l::MAGIC] != MAGIC {
        return Err(FormatError::Magic(WHAT));
    }
    if (get_u8(head, l::TABLE), get_u8(head, l::LEVEL)) != (table.id, level as u8) {
        return Err(FormatError::Foreign { what: WHAT, field: "table" });
    }
    if get_u32(head, l::NUMBER) != number {
        return Err(FormatError::Foreign { what: WHAT, field: "number" });
    }
    let mut keys = keys_of(table, level, number);
    let mut records = Vec::new();
    for _ in 0..get_u32(head, l::COUNT) {
        let (record, after) = rest.split_at_checked(r::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let (key, len) = (get_u32(record, r::KEY), get_u32(record, r::LEN) as usize);
        let padded = align_up(len, 8);
        let (content, after) = after.split_at_checked(padded).ok_or(FormatError::Truncated(WHAT))?;
        if !keys.contains(&key.into()) {
            return bad("key");
        }
        keys.start = u64::from(key) + 1;
        records.push((key, &content[..len]));
        rest = after;
    }
    if records.is_empty() || !rest.is_empty() {
        return bad("count");
    }
    Ok(records)
}

/// The pages that a directory page lists, with their locations.
pub fn decode_directory(b: &[u8], table: Table, number: u32) -> Result<Vec<(u32, BlobRef)>> {
    let records = decode_page(b, table, PageLevel::Directory, number)?;
    let reference = |(key, bytes): (u32, &[u8])| {
        let bytes = bytes.first_chunk::<{ blob_ref::SIZE }>().filter(|all| all.len() == bytes.len());
        let bytes = bytes.ok_or(FormatError::Truncated(WHAT))?;
        Ok((key, BlobRef::decode(bytes).ok_or(FormatError::Value { what: WHAT, field: "reference" })?))
    };
    records.into_iter().map(reference).collect()
}
