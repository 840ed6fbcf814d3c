//! Segment records: the segment table of a checkpoint.

use crate::layout::*;
use crate::{BLOCK, FormatError, MAX_SEGMENT, Result, SegmentId, Stream};

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
    /// The writer of the segment may append batches.
    Open = 1,
    /// The segment is complete, with footer and directory.
    Sealed = 2,
}

/// The record of a segment in the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Number of the segment.
    pub segment: SegmentId,
    /// Stream of the segment.
    pub stream: Stream,
    /// Whether the segment is open for appends.
    pub state: SegmentState,
    /// Whether it is known to be sealed with a durable footer.
    pub footer: bool,
    /// Number of the object that contains the live slots of the segment.
    pub container: u32,
    /// Bytes up to the end of its last batch.
    pub written: u32,
    /// Sequence number of the segment's first batch.
    pub first_seq: u64,
    /// Sequence number of the segment's last batch.
    pub last_seq: u64,
    /// Byte offset and length of the relocation map in the container, once the segment is moved.
    pub map: Option<(u32, u32)>,
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

    /// Decodes a record; `at` has exactly the bytes of the record.
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
