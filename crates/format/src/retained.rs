//! Retained memory: the answered writes of a pool, in memory that outlives the server process.
//!
//! The structures are in memory and not on the store. A writer can be killed between any two stores, so each
//! structure has a *tag*, a word of 8 bytes that is stored last and cleared first: with tag 0 it does not
//! exist. Any other tag holds the CRC-32C of the structure; if that does not match, the bytes were changed by
//! something else than a kill.

use crate::checksum::crc32c;
use crate::layout::*;
use crate::{BLOCK, FormatError, Result};

/// Format version of retained memory that this release writes. It reads no other version.
pub const RETAINED_VERSION: u32 = 1;

pub(crate) const MAGIC: &[u8; 8] = b"FBRETAIN";
pub(crate) const HEADER_MARK: &[u8; 4] = b"HEAD";
pub(crate) const COVER_MARK: &[u8; 4] = b"COVR";
const CHUNK_MARK: &[u8; 3] = b"CHK";
pub(crate) const RECORD_MARK: &[u8; 4] = b"RECD";

layout!(retained_header, "retained memory: header", BLOCK, {
    MAGIC @ 0, 8, "`FBRETAIN`";
    VERSION @ 8, 4, "version of this structure of the memory";
    POOL_ID @ 16, 16, "pool id";
    BOOT_ID @ 32, 16, "id of the boot of the host";
    ID @ 48, 8, "id of this memory, random and not 0";
    CRC @ 56, 4, "tag: CRC-32C of all bytes before it";
    MARK @ 60, 4, "tag: `HEAD`";
    COVERS @ 64, 2 * retained_cover::SIZE, "two cover slots";
});
layout!(retained_cover, "retained memory: cover slot", 40, {
    CRC @ 0, 4, "tag: CRC-32C of all bytes after the tag";
    MARK @ 4, 4, "tag: `COVR`";
    NUMBER @ 8, 8, "number of the statement, from 1; number n is in slot n mod 2";
    SEQ @ 16, 8, "sequence number of a batch";
    ORDER @ 24, 8, "if the log's history reaches that batch, it has the records of a smaller order";
    FLOOR @ 32, 8, "sequence number of a batch that the log's history reaches: records were removed for it";
});
layout!(retained_chunk, "retained memory: chunk table entry", 8, {
    CRC @ 0, 4, "tag: CRC-32C of the kind, the number of the chunk (4 bytes) and the id of the memory";
    KIND @ 4, 1, "1 pages, 2 records";
    MARK @ 5, 3, "tag: `CHK`";
});
layout!(retained_record, "retained memory: record", 64, {
    CRC @ 0, 4, "tag: CRC-32C of all bytes after the tag";
    MARK @ 4, 4, "tag: `RECD`";
    DISK @ 8, 4, "disk id";
    KIND @ 12, 1, "1 page, 2 zeroed range, 3 flag";
    MASK @ 13, 1, "page: its valid sectors, the first in the lowest bit";
    ALLOCATED @ 14, 1, "zeroed range: 1 if its blocks stay allocated";
    FLAG @ 15, 1, "flag: its kind";
    PAGE_CRC @ 16, 4, "page: CRC-32C of its bytes";
    BLOCK @ 24, 8, "page: its block; zeroed range: the first block";
    END @ 32, 8, "zeroed range: the block after the last one";
    GENERATION @ 40, 8, "page, zeroed range: freezes of the disk's buffer before it";
    ORDER @ 48, 8, "number in the order of publication";
});

/// Every layout of retained memory, in the order of `docs/format.md`.
pub const RETAINED_LAYOUTS: &[Layout] =
    &[retained_header::LAYOUT, retained_cover::LAYOUT, retained_chunk::LAYOUT, retained_record::LAYOUT];

/// Bytes of the header of retained memory up to its tag.
pub const RETAINED_HEADER_BYTES: usize = retained_header::MARK.end;
/// Offsets of the cover slots.
pub const RETAINED_COVERS: [usize; 2] =
    [retained_header::COVERS.start, retained_header::COVERS.start + RETAINED_COVER_BYTES];
/// Bytes of a cover slot.
pub const RETAINED_COVER_BYTES: usize = retained_cover::SIZE;
/// Offset of the chunk table.
pub const RETAINED_TABLE: usize = retained_header::SIZE;
/// Bytes of a record.
pub const RETAINED_RECORD_BYTES: usize = retained_record::SIZE;

fn tag_matches(b: &[u8], crc: std::ops::Range<usize>, mark: &[u8; 4], of: &[u8]) -> bool {
    &b[crc.end..crc.end + 4] == mark && get_u32(b, crc) == crc32c(of)
}

/// The identity of a retained memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedHeader {
    /// Id of the pool.
    pub pool: [u8; 16],
    /// Id of the boot of the host.
    pub boot: [u8; 16],
    /// Id of the memory.
    pub id: u64,
}

impl RetainedHeader {
    /// Encodes the header up to its tag, which is the last word.
    pub fn encode(&self) -> [u8; RETAINED_HEADER_BYTES] {
        use retained_header as l;
        let mut b = [0; RETAINED_HEADER_BYTES];
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u32(&mut b, l::VERSION, RETAINED_VERSION);
        put_bytes(&mut b, l::POOL_ID, &self.pool);
        put_bytes(&mut b, l::BOOT_ID, &self.boot);
        put_u64(&mut b, l::ID, self.id);
        let crc = crc32c(&b[..l::CRC.start]);
        put_u32(&mut b, l::CRC, crc);
        put_bytes(&mut b, l::MARK, HEADER_MARK);
        b
    }

    /// Decodes a header and its version, which can differ from [`RETAINED_VERSION`]: only the position of
    /// magic number, version and tag is the same in all versions. `None` if the tag is 0.
    pub fn decode(b: &[u8; RETAINED_HEADER_BYTES]) -> Result<Option<(u32, RetainedHeader)>> {
        use retained_header as l;
        const WHAT: &str = "header of retained memory";
        if b[l::CRC.start..] == [0; 8] {
            return Ok(None);
        }
        if &b[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if !tag_matches(b, l::CRC, HEADER_MARK, &b[..l::CRC.start]) {
            return Err(FormatError::Checksum(WHAT));
        }
        let header = RetainedHeader {
            pool: get_array(b, l::POOL_ID),
            boot: get_array(b, l::BOOT_ID),
            id: get_u64(b, l::ID),
        };
        Ok(Some((get_u32(b, l::VERSION), header)))
    }
}

/// A statement of the header: if the log's history reaches a batch, it has the records of a smaller order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedCover {
    /// Number of the statement.
    pub number: u64,
    /// Sequence number of the batch.
    pub seq: u64,
    /// Order number: records with a lower order are in the log up to `seq`.
    pub order: u64,
    /// Sequence number of a batch that history reaches: records that the log has up to it were removed.
    pub floor: u64,
}

impl RetainedCover {
    /// Encodes a cover slot; the tag is the first word.
    pub fn encode(&self) -> [u8; RETAINED_COVER_BYTES] {
        use retained_cover as l;
        let mut b = [0; RETAINED_COVER_BYTES];
        put_u64(&mut b, l::NUMBER, self.number);
        put_u64(&mut b, l::SEQ, self.seq);
        put_u64(&mut b, l::ORDER, self.order);
        put_u64(&mut b, l::FLOOR, self.floor);
        let crc = crc32c(&b[l::NUMBER.start..]);
        put_u32(&mut b, l::CRC, crc);
        put_bytes(&mut b, l::MARK, COVER_MARK);
        b
    }

    /// Decodes a cover slot; `None` if it does not hold a statement.
    pub fn decode(b: &[u8; RETAINED_COVER_BYTES]) -> Result<Option<RetainedCover>> {
        use retained_cover as l;
        if b[..l::NUMBER.start] == [0; 8] {
            return Ok(None);
        }
        if !tag_matches(b, l::CRC, COVER_MARK, &b[l::NUMBER.start..]) {
            return Err(FormatError::Checksum("cover slot"));
        }
        Ok(Some(RetainedCover {
            number: get_u64(b, l::NUMBER),
            seq: get_u64(b, l::SEQ),
            order: get_u64(b, l::ORDER),
            floor: get_u64(b, l::FLOOR),
        }))
    }
}

/// The use of a chunk of retained memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedChunk {
    /// Pages, and a record for each at the front.
    Pages = 1,
    /// The chunk holds records, and no pages.
    Records = 2,
}

impl RetainedChunk {
    fn crc(self, chunk: u32, id: u64) -> u32 {
        let mut b = [0; 13];
        b[0] = self as u8;
        b[1..5].copy_from_slice(&chunk.to_le_bytes());
        b[5..].copy_from_slice(&id.to_le_bytes());
        crc32c(&b)
    }

    /// The entry of the chunk table for a chunk of the memory with this id.
    pub fn encode(self, chunk: u32, id: u64) -> [u8; 8] {
        use retained_chunk as l;
        let mut b = [0; l::SIZE];
        put_u32(&mut b, l::CRC, self.crc(chunk, id));
        put_u8(&mut b, l::KIND, self as u8);
        put_bytes(&mut b, l::MARK, CHUNK_MARK);
        b
    }

    /// Decodes an entry of the chunk table; `None` if the chunk is not in use.
    pub fn decode(b: &[u8; 8], chunk: u32, id: u64) -> Result<Option<RetainedChunk>> {
        use retained_chunk as l;
        const WHAT: &str = "chunk table entry";
        if *b == [0; l::SIZE] {
            return Ok(None);
        }
        let kind = match get_u8(b, l::KIND) {
            1 => RetainedChunk::Pages,
            2 => RetainedChunk::Records,
            _ => return Err(FormatError::Value { what: WHAT, field: "kind" }),
        };
        if &b[l::MARK] != CHUNK_MARK || get_u32(b, l::CRC) != kind.crc(chunk, id) {
            return Err(FormatError::Checksum(WHAT));
        }
        Ok(Some(kind))
    }
}

/// What a record of retained memory describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedKind {
    /// The record describes the page of the same number.
    Page {
        /// The block that the page holds.
        block: u64,
        /// Sectors of the page that are valid.
        mask: u8,
        /// CRC-32C of the bytes of the page.
        crc: u32,
        /// Number of freezes of the disk's buffer before the write.
        generation: u64,
    },
    /// The record is a zeroed range.
    Range {
        /// The first block of the range.
        start: u64,
        /// The block after the last block of the range.
        end: u64,
        /// Whether the blocks of the range stay allocated.
        allocated: bool,
        /// Number of freezes of the disk's buffer before the zeroing.
        generation: u64,
    },
    /// The record is a flag of the disk.
    Flag {
        /// Kind of the flag.
        kind: u8,
    },
}

/// A record of retained memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedRecord {
    /// Number of the disk.
    pub disk: u32,
    /// Number of the record in the order of publication.
    pub order: u64,
    /// What the record describes.
    pub kind: RetainedKind,
}

impl RetainedRecord {
    /// Encodes the record; the tag is the first word.
    pub fn encode(&self) -> [u8; RETAINED_RECORD_BYTES] {
        use retained_record as l;
        let mut b = [0; RETAINED_RECORD_BYTES];
        put_u32(&mut b, l::DISK, self.disk);
        put_u64(&mut b, l::ORDER, self.order);
        match self.kind {
            RetainedKind::Page { block, mask, crc, generation } => {
                put_u8(&mut b, l::KIND, 1);
                put_u8(&mut b, l::MASK, mask);
                put_u32(&mut b, l::PAGE_CRC, crc);
                put_u64(&mut b, l::BLOCK, block);
                put_u64(&mut b, l::GENERATION, generation);
            }
            RetainedKind::Range { start, end, allocated, generation } => {
                assert!(start < end, "a reader refuses an empty range");
                put_u8(&mut b, l::KIND, 2);
                put_u8(&mut b, l::ALLOCATED, allocated.into());
                put_u64(&mut b, l::BLOCK, start);
                put_u64(&mut b, l::END, end);
                put_u64(&mut b, l::GENERATION, generation);
            }
            RetainedKind::Flag { kind } => {
                put_u8(&mut b, l::KIND, 3);
                put_u8(&mut b, l::FLAG, kind);
            }
        }
        let crc = crc32c(&b[l::DISK.start..]);
        put_u32(&mut b, l::CRC, crc);
        put_bytes(&mut b, l::MARK, RECORD_MARK);
        b
    }

    /// Decodes a record; `None` if the bytes are free.
    pub fn decode(b: &[u8; RETAINED_RECORD_BYTES]) -> Result<Option<RetainedRecord>> {
        use retained_record as l;
        const WHAT: &str = "record";
        if b[..l::DISK.start] == [0; 8] {
            return Ok(None);
        }
        if !tag_matches(b, l::CRC, RECORD_MARK, &b[l::DISK.start..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        let (block, generation) = (get_u64(b, l::BLOCK), get_u64(b, l::GENERATION));
        let kind = match (get_u8(b, l::KIND), get_u8(b, l::ALLOCATED)) {
            (1, _) => {
                let (mask, crc) = (get_u8(b, l::MASK), get_u32(b, l::PAGE_CRC));
                RetainedKind::Page { block, mask, crc, generation }
            }
            (2, allocated @ 0..=1) => {
                let (end, allocated) = (get_u64(b, l::END), allocated == 1);
                if block >= end {
                    return Err(FormatError::Value { what: WHAT, field: "end" });
                }
                RetainedKind::Range { start: block, end, allocated, generation }
            }
            (3, _) => RetainedKind::Flag { kind: get_u8(b, l::FLAG) },
            (2, _) => return Err(FormatError::Value { what: WHAT, field: "allocated" }),
            _ => return Err(FormatError::Value { what: WHAT, field: "kind" }),
        };
        Ok(Some(RetainedRecord { disk: get_u32(b, l::DISK), order: get_u64(b, l::ORDER), kind }))
    }
}
