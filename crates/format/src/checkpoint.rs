//! Segment records, and a checkpoint of versions 1 and 2: catalogue and segment table as of one batch, in one
//! piece. The roots in its disk records lead to the block maps.

use crate::layout::*;
use crate::root::MAX_SAMPLING;
use crate::{BLOCK, DiskRecord, FormatError, MAX_SEGMENT, Result, SegmentId, Stream};

pub(crate) const MAGIC: &[u8; 8] = b"FBCHECKP";

layout!(checkpoint, "checkpoint", 48, {
    MAGIC @ 0, 8, "`FBCHECKP`";
    SEQ @ 8, 8, "sequence number of the last batch that it covers";
    NEXT_DISK @ 16, 4, "next disk id";
    NEXT_SEGMENT @ 20, 4, "next segment id";
    DISKS @ 24, 4, "disk records, which follow";
    SEGMENTS @ 28, 4, "segment records, which follow those";
    WARM @ 32, 4, "segment ids, four bytes each, which follow those: fingerprints of these were found last";
    SAMPLING @ 36, 1, "the fingerprint index kept one of 2^n fingerprints";
});
layout!(segment_record, "segment record", 40, {
    SEGMENT @ 0, 4, "segment id";
    STREAM @ 4, 1, "1 data, 2 short, 3 map, 4 moved";
    STATE @ 5, 1, "1 open, 2 sealed";
    FOOTER @ 6, 1, "1: sealed with a footer, which is durable; 0: unknown";
    CONTAINER @ 8, 4, "object in which its live slots rest; the segment's own id until they are moved";
    WRITTEN @ 12, 4, "bytes up to the end of its last batch that the checkpoint covers";
    FIRST_SEQ @ 16, 8, "sequence number of its first batch";
    LAST_SEQ @ 24, 8, "sequence number of its last batch that the checkpoint covers";
    MAP_OFFSET @ 32, 4, "byte offset of its relocation map in its container; 0 until it is moved";
    MAP_LEN @ 36, 4, "bytes of its relocation map; 0 until it is moved";
});

/// Whether a segment is open for appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Batches may be appended by its writer.
    Open = 1,
    /// Complete, with footer and directory.
    Sealed = 2,
}

/// A segment in the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its number.
    pub segment: SegmentId,
    /// Its stream.
    pub stream: Stream,
    /// Whether it is open for appends.
    pub state: SegmentState,
    /// Whether it is known to be sealed with a durable footer.
    pub footer: bool,
    /// The object that contains its live slots.
    pub container: u32,
    /// Bytes up to the end of its last batch.
    pub written: u32,
    /// Sequence number of its first batch.
    pub first_seq: u64,
    /// Sequence number of its last batch.
    pub last_seq: u64,
    /// Byte offset and length of its relocation map in its container, once it is moved.
    pub map: Option<(u32, u32)>,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Sequence number of the last batch that it covers.
    pub seq: u64,
    /// Next disk id.
    pub next_disk: u32,
    /// Next segment id.
    pub next_segment: u32,
    /// All disks.
    pub disks: Vec<DiskRecord>,
    /// All segments.
    pub segments: Vec<SegmentRecord>,
    /// Segments in which fingerprints were found most recently, to preload the index.
    pub warm: Vec<SegmentId>,
    /// The fingerprint index kept one of `2^sampling` fingerprints.
    pub sampling: u8,
}

impl SegmentRecord {
    fn bad_field(&self) -> Option<&'static str> {
        if self.segment.0 == 0 {
            Some("segment")
        } else if self.container == 0 {
            Some("container")
        } else if self.footer && self.state == SegmentState::Open {
            Some("footer")
        } else if u64::from(self.written) > MAX_SEGMENT || !self.written.is_multiple_of(BLOCK as u32) {
            Some("written")
        } else if self.map.is_some() != (self.container != self.segment.0) {
            Some("map_offset")
        } else if self.map.is_some_and(|(offset, len)| {
            offset == 0 || len == 0 || u64::from(offset) + u64::from(len) > MAX_SEGMENT
        }) {
            Some("map_len")
        } else {
            None
        }
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        use segment_record as s;
        assert_eq!(self.bad_field(), None, "the encoded record would be rejected when decoded");
        let start = out.len();
        out.resize(start + s::SIZE, 0);
        let at = &mut out[start..];
        put_u32(at, s::SEGMENT, self.segment.0);
        put_u8(at, s::STREAM, self.stream as u8);
        put_u8(at, s::STATE, self.state as u8);
        put_u8(at, s::FOOTER, self.footer.into());
        put_u32(at, s::CONTAINER, self.container);
        put_u32(at, s::WRITTEN, self.written);
        put_u64(at, s::FIRST_SEQ, self.first_seq);
        put_u64(at, s::LAST_SEQ, self.last_seq);
        put_u32(at, s::MAP_OFFSET, self.map.map_or(0, |m| m.0));
        put_u32(at, s::MAP_LEN, self.map.map_or(0, |m| m.1));
    }

    /// Decodes a record, of which `at` has all bytes and no others.
    pub fn decode(at: &[u8]) -> Result<SegmentRecord> {
        use segment_record as s;
        const WHAT: &str = "segment record";
        let bad = |field| FormatError::Value { what: WHAT, field };
        if at.len() != s::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        let record = SegmentRecord {
            segment: SegmentId(get_u32(at, s::SEGMENT)),
            stream: Stream::decode(get_u8(at, s::STREAM)).ok_or(bad("stream"))?,
            state: match get_u8(at, s::STATE) {
                1 => SegmentState::Open,
                2 => SegmentState::Sealed,
                _ => return Err(bad("state")),
            },
            footer: get_u8(at, s::FOOTER) == 1,
            container: get_u32(at, s::CONTAINER),
            written: get_u32(at, s::WRITTEN),
            first_seq: get_u64(at, s::FIRST_SEQ),
            last_seq: get_u64(at, s::LAST_SEQ),
            map: match (get_u32(at, s::MAP_OFFSET), get_u32(at, s::MAP_LEN)) {
                (0, 0) => None,
                map => Some(map),
            },
        };
        match record.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(record),
        }
    }
}

impl Checkpoint {
    /// A field with a value that writers never produce, if any. Ids must be below the next ids to allocate,
    /// because an id must never be used twice.
    fn bad_field(&self) -> Option<&'static str> {
        if self.disks.iter().any(|d| d.id.0 >= self.next_disk) {
            Some("next_disk")
        } else if self.segments.iter().any(|s| s.segment.0 >= self.next_segment) {
            Some("next_segment")
        } else if self.sampling > MAX_SAMPLING {
            Some("sampling")
        } else {
            None
        }
    }

    /// Encodes the checkpoint as version 2 does.
    pub fn encode(&self) -> Vec<u8> {
        use checkpoint as l;
        assert_eq!(self.bad_field(), None, "the encoded checkpoint would be rejected when decoded");
        let mut b = vec![0; l::SIZE];
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u64(&mut b, l::SEQ, self.seq);
        put_u32(&mut b, l::NEXT_DISK, self.next_disk);
        put_u32(&mut b, l::NEXT_SEGMENT, self.next_segment);
        put_u32(&mut b, l::DISKS, self.disks.len() as u32);
        put_u32(&mut b, l::SEGMENTS, self.segments.len() as u32);
        put_u32(&mut b, l::WARM, self.warm.len() as u32);
        put_u8(&mut b, l::SAMPLING, self.sampling);
        self.disks.iter().for_each(|d| d.encode(&mut b));
        self.segments.iter().for_each(|s| s.encode(&mut b));
        self.warm.iter().for_each(|s| b.extend_from_slice(&s.0.to_le_bytes()));
        b
    }

    /// Decodes the joined pieces, whose checksums the caller must have verified.
    pub fn decode(b: &[u8]) -> Result<Checkpoint> {
        use {checkpoint as l, segment_record as s};
        const WHAT: &str = "checkpoint";
        let bad = |field| FormatError::Value { what: WHAT, field };
        let (head, mut rest) = b.split_at_checked(l::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        if &head[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let disks = (0..get_u32(head, l::DISKS)).map(|_| DiskRecord::decode(&mut rest));
        let disks = disks.collect::<Result<Vec<_>>>()?;
        let count = get_u32(head, l::SEGMENTS) as usize;
        let (table, rest) = rest.split_at_checked(count * s::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let warm = get_u32(head, l::WARM) as usize;
        let (warm, rest) = rest.split_at_checked(warm * 4).ok_or(FormatError::Truncated(WHAT))?;
        if !rest.is_empty() {
            return Err(bad("length"));
        }
        let checkpoint = Checkpoint {
            seq: get_u64(head, l::SEQ),
            next_disk: get_u32(head, l::NEXT_DISK),
            next_segment: get_u32(head, l::NEXT_SEGMENT),
            disks,
            segments: table.chunks_exact(s::SIZE).map(SegmentRecord::decode).collect::<Result<_>>()?,
            warm: warm.chunks_exact(4).map(|b| SegmentId(get_u32(b, 0..4))).collect(),
            sampling: get_u8(head, l::SAMPLING),
        };
        match checkpoint.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(checkpoint),
        }
    }
}
