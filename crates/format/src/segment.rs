//! Segments: a header, batches in order, and, once sealed, a footer with the directory of its slots.

use crate::checksum::{check64, crc32c};
use crate::layout::*;
use crate::{
    BLOCK, Fingerprint, Form, FormatError, MAX_SEGMENT, PoolId, Result, SegmentId, Slot, VERSION, align_up,
    check_version,
};

pub(crate) const HEADER_MAGIC: &[u8; 8] = b"FBSEGMNT";
pub(crate) const FOOTER_MAGIC: &[u8; 8] = b"FBSEALED";

/// The purpose of a segment. Each stream has one open segment at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stream {
    /// Blocks of guests, and catalogue changes.
    Data = 1,
    /// Blocks with a short lifetime.
    Short = 2,
    /// Map nodes and checkpoints.
    Map = 3,
    /// Blocks moved by the cleaner.
    Moved = 4,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 4] = [Stream::Data, Stream::Short, Stream::Map, Stream::Moved];

    pub(crate) fn decode(v: u8) -> Option<Stream> {
        Stream::ALL.into_iter().find(|s| *s as u8 == v)
    }
}

layout!(segment_header, "segment header", BLOCK, {
    MAGIC @ 0, 8, "`FBSEGMNT`";
    VERSION @ 8, 4, "format version";
    STREAM @ 12, 1, "1 data, 2 short, 3 map, 4 moved";
    POOL_ID @ 16, 16, "pool id";
    SEGMENT @ 32, 4, "segment id";
    EPOCH @ 40, 8, "epoch of its writer";
    FIRST_SEQ @ 48, 8, "sequence number of its first batch";
    CHECK @ 4088, 8, "CRC-64/NVME of all bytes before it";
});

/// The first block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Id of the pool to which the segment belongs.
    pub pool: PoolId,
    /// Number of the segment.
    pub segment: SegmentId,
    /// Stream of the segment.
    pub stream: Stream,
    /// Epoch of the server that began the segment.
    pub epoch: u64,
    /// Sequence number of the segment's first batch.
    pub first_seq: u64,
}

impl SegmentHeader {
    /// Encodes the header into one block.
    pub fn encode(&self) -> Vec<u8> {
        use segment_header as l;
        let mut b = vec![0; l::SIZE];
        put_bytes(&mut b, l::MAGIC, HEADER_MAGIC);
        put_u32(&mut b, l::VERSION, VERSION);
        put_u8(&mut b, l::STREAM, self.stream as u8);
        put_bytes(&mut b, l::POOL_ID, &self.pool.0);
        put_u32(&mut b, l::SEGMENT, self.segment.0);
        put_u64(&mut b, l::EPOCH, self.epoch);
        put_u64(&mut b, l::FIRST_SEQ, self.first_seq);
        let check = check64(&b[..l::CHECK.start]);
        put_u64(&mut b, l::CHECK, check);
        b
    }

    /// Decodes the first block of `segment` of `pool`.
    pub fn decode(b: &[u8], pool: PoolId, segment: SegmentId) -> Result<SegmentHeader> {
        use segment_header as l;
        const WHAT: &str = "segment header";
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if &b[l::MAGIC] != HEADER_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if check64(&b[..l::CHECK.start]) != get_u64(b, l::CHECK) {
            return Err(FormatError::Checksum(WHAT));
        }
        // The pool precedes the version: a segment of another pool is damage at its place, whatever build
        // wrote the segment, and no reason to refuse this pool.
        let (of_pool, of_segment) = (PoolId(get_array(b, l::POOL_ID)), SegmentId(get_u32(b, l::SEGMENT)));
        if of_pool != pool {
            return Err(FormatError::Foreign { what: WHAT, field: "pool_id" });
        }
        if of_segment != segment {
            return Err(FormatError::Foreign { what: WHAT, field: "segment" });
        }
        check_version(WHAT, get_u32(b, l::VERSION))?;
        Ok(SegmentHeader {
            pool,
            segment,
            stream: Stream::decode(get_u8(b, l::STREAM))
                .ok_or(FormatError::Value { what: WHAT, field: "stream" })?,
            epoch: get_u64(b, l::EPOCH),
            first_seq: get_u64(b, l::FIRST_SEQ),
        })
    }
}

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SlotKind {
    /// A block of a guest.
    Block = 1,
    /// A node of a block map.
    Node = 2,
}

impl SlotKind {
    pub(crate) fn decode(v: u8) -> Option<SlotKind> {
        [SlotKind::Block, SlotKind::Node].into_iter().find(|k| *k as u8 == v)
    }
}

layout!(directory_entry, "directory entry", 32, {
    SLOT @ 0, 4, "slot";
    FORM @ 4, 1, "form: codec and stored length";
    KIND @ 5, 1, "1 block, 2 map node";
    CRC @ 8, 4, "CRC-32C of the plain content";
    FINGERPRINT @ 16, 16, "fingerprint; zero where none was made";
});

/// A slot in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Position of the slot.
    pub slot: Slot,
    /// Form in which the contents of the slot are stored.
    pub form: Form,
    /// Kind of the slot's contents.
    pub kind: SlotKind,
    /// CRC-32C of the slot's plain contents.
    pub crc: u32,
    /// Fingerprint of the contents; zeroes if they have none.
    pub fingerprint: Fingerprint,
}

impl DirectoryEntry {
    fn is_valid(&self) -> bool {
        self.form.fits(self.slot, MAX_SEGMENT)
    }
}

layout!(segment_footer, "segment footer", BLOCK, {
    MAGIC @ 0, 8, "`FBSEALED`";
    VERSION @ 8, 4, "format version";
    COUNT @ 12, 4, "directory entries, which follow this block, padded to whole blocks";
    POOL_ID @ 16, 16, "pool id";
    SEGMENT @ 32, 4, "segment id";
    OFFSET @ 36, 4, "byte offset of this footer in the segment";
    LAST_SEQ @ 40, 8, "sequence number of its last batch";
    DIRECTORY_CRC @ 48, 4, "CRC-32C of the directory entries";
    CHECK @ 4088, 8, "CRC-64/NVME of all bytes before it";
});

/// Footer of a sealed segment, at the offset of the next batch; its directory follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFooter {
    /// The pool to which the segment belongs.
    pub pool: PoolId,
    /// The id of the segment.
    pub segment: SegmentId,
    /// Byte offset of the footer.
    pub offset: u32,
    /// Sequence number of the last batch.
    pub last_seq: u64,
    /// Number of directory entries.
    pub count: u32,
    /// CRC-32C of the directory.
    pub directory_crc: u32,
}

impl SegmentFooter {
    /// Encodes footer and directory, padded to whole blocks. Sets `count` and `directory_crc`.
    pub fn encode(mut self, directory: &[DirectoryEntry]) -> Vec<u8> {
        use {directory_entry as d, segment_footer as l};
        assert!(directory.len() <= Slot::LIMIT as usize && directory.iter().all(DirectoryEntry::is_valid));
        let mut b = vec![0; l::SIZE + directory.len() * d::SIZE];
        for (e, at) in directory.iter().zip(b[l::SIZE..].chunks_exact_mut(d::SIZE)) {
            put_u32(at, d::SLOT, e.slot.0);
            put_u8(at, d::FORM, e.form.0);
            put_u8(at, d::KIND, e.kind as u8);
            put_u32(at, d::CRC, e.crc);
            put_bytes(at, d::FINGERPRINT, &e.fingerprint.0);
        }
        self.count = directory.len() as u32;
        self.directory_crc = crc32c(&b[l::SIZE..]);
        put_bytes(&mut b, l::MAGIC, FOOTER_MAGIC);
        put_u32(&mut b, l::VERSION, VERSION);
        put_u32(&mut b, l::COUNT, self.count);
        put_bytes(&mut b, l::POOL_ID, &self.pool.0);
        put_u32(&mut b, l::SEGMENT, self.segment.0);
        put_u32(&mut b, l::OFFSET, self.offset);
        put_u64(&mut b, l::LAST_SEQ, self.last_seq);
        put_u32(&mut b, l::DIRECTORY_CRC, self.directory_crc);
        let check = check64(&b[..l::CHECK.start]);
        put_u64(&mut b, l::CHECK, check);
        b.resize(align_up(b.len(), BLOCK), 0);
        b
    }

    /// Whether the bytes begin with the magic number of a footer.
    pub fn is_footer(b: &[u8]) -> bool {
        b.starts_with(FOOTER_MAGIC)
    }

    /// Decodes the footer block read at `offset` of `segment`.
    pub fn decode(b: &[u8], pool: PoolId, segment: SegmentId, offset: u32) -> Result<SegmentFooter> {
        use segment_footer as l;
        const WHAT: &str = "segment footer";
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if !Self::is_footer(b) {
            return Err(FormatError::Magic(WHAT));
        }
        if check64(&b[..l::CHECK.start]) != get_u64(b, l::CHECK) {
            return Err(FormatError::Checksum(WHAT));
        }
        let at = (PoolId(get_array(b, l::POOL_ID)), SegmentId(get_u32(b, l::SEGMENT)), get_u32(b, l::OFFSET));
        if at != (pool, segment, offset) {
            return Err(FormatError::Foreign { what: WHAT, field: "position" });
        }
        check_version(WHAT, get_u32(b, l::VERSION))?;
        let footer = SegmentFooter {
            pool,
            segment,
            offset,
            last_seq: get_u64(b, l::LAST_SEQ),
            count: get_u32(b, l::COUNT),
            directory_crc: get_u32(b, l::DIRECTORY_CRC),
        };
        // Each entry describes a slot before the footer.
        if footer.count > footer.offset / Slot::UNIT as u32 {
            return Err(FormatError::Value { what: WHAT, field: "count" });
        }
        Ok(footer)
    }

    /// Bytes of the directory, without padding; at most half of the bytes before the footer.
    pub fn directory_len(&self) -> usize {
        self.count as usize * directory_entry::SIZE
    }

    /// Decodes the directory: at least [`Self::directory_len`] bytes that follow the footer block.
    pub fn decode_directory(&self, b: &[u8]) -> Result<Vec<DirectoryEntry>> {
        use directory_entry as d;
        const WHAT: &str = "segment directory";
        let b = b.get(..self.directory_len()).ok_or(FormatError::Truncated(WHAT))?;
        if crc32c(b) != self.directory_crc {
            return Err(FormatError::Checksum(WHAT));
        }
        let entry = |at: &[u8]| {
            let entry = DirectoryEntry {
                slot: Slot(get_u32(at, d::SLOT)),
                form: Form(get_u8(at, d::FORM)),
                kind: SlotKind::decode(get_u8(at, d::KIND))
                    .ok_or(FormatError::Value { what: WHAT, field: "kind" })?,
                crc: get_u32(at, d::CRC),
                fingerprint: Fingerprint(get_array(at, d::FINGERPRINT)),
            };
            if entry.is_valid() { Ok(entry) } else { Err(FormatError::Value { what: WHAT, field: "slot" }) }
        };
        b.chunks_exact(d::SIZE).map(entry).collect()
    }
}
