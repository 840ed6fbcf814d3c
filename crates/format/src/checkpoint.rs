//! A checkpoint: catalogue and segment table as of one batch. The block maps are reached from the roots in
//! its disk records.

use crate::layout::*;
use crate::{DiskRecord, FormatError, MAX_SEGMENT, Result, SegmentId, Stream};

pub(crate) const MAGIC: &[u8; 8] = b"FBCHECKP";

layout!(checkpoint, "checkpoint", 48, {
    MAGIC @ 0, 8, "`FBCHECKP`";
    SEQ @ 8, 8, "sequence number of the last batch that it covers";
    NEXT_DISK @ 16, 4, "next disk id";
    NEXT_SEGMENT @ 20, 4, "next segment id";
    DISKS @ 24, 4, "disk records, which follow";
    SEGMENTS @ 28, 4, "segment records, which follow those";
});
layout!(segment_record, "segment record", 40, {
    SEGMENT @ 0, 4, "segment id";
    STREAM @ 4, 1, "1 data, 2 short, 3 map, 4 moved";
    STATE @ 5, 1, "1 open, 2 sealed";
    CONTAINER @ 8, 4, "object in which its live slots rest; the segment's own id until they are moved";
    WRITTEN @ 12, 4, "bytes up to the end of its last batch that the checkpoint covers";
    FIRST_SEQ @ 16, 8, "sequence number of its first batch";
    LAST_SEQ @ 24, 8, "sequence number of its last batch that the checkpoint covers";
});

/// Whether a segment still grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Batches may be appended by its writer.
    Open = 1,
    /// Complete, with footer and directory.
    Sealed = 2,
}

/// A segment, as the checkpoint knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Which.
    pub segment: SegmentId,
    /// Its stream.
    pub stream: Stream,
    /// Whether it still grows.
    pub state: SegmentState,
    /// The object in which its live slots rest.
    pub container: u32,
    /// Bytes up to the end of its last batch.
    pub written: u32,
    /// Sequence number of its first batch.
    pub first_seq: u64,
    /// Sequence number of its last batch.
    pub last_seq: u64,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Last batch that it covers.
    pub seq: u64,
    /// Next disk id.
    pub next_disk: u32,
    /// Next segment id.
    pub next_segment: u32,
    /// All disks.
    pub disks: Vec<DiskRecord>,
    /// All segments.
    pub segments: Vec<SegmentRecord>,
}

impl SegmentRecord {
    fn bad_field(&self) -> Option<&'static str> {
        if self.segment.0 == 0 {
            Some("segment")
        } else if self.container == 0 {
            Some("container")
        } else if u64::from(self.written) > MAX_SEGMENT {
            Some("written")
        } else {
            None
        }
    }
}

impl Checkpoint {
    /// What no writer produces, if there is such a field. Ids must be below those that are handed out next:
    /// none may ever be used twice.
    fn bad_field(&self) -> Option<&'static str> {
        if self.disks.iter().any(|d| d.id.0 >= self.next_disk) {
            Some("next_disk")
        } else if self.segments.iter().any(|s| s.segment.0 >= self.next_segment) {
            Some("next_segment")
        } else {
            self.segments.iter().find_map(SegmentRecord::bad_field)
        }
    }

    /// Encodes it; the caller splits the bytes into pieces.
    pub fn encode(&self) -> Vec<u8> {
        use {checkpoint as l, segment_record as s};
        assert_eq!(self.bad_field(), None, "it could not be read back");
        let mut b = vec![0; l::SIZE];
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u64(&mut b, l::SEQ, self.seq);
        put_u32(&mut b, l::NEXT_DISK, self.next_disk);
        put_u32(&mut b, l::NEXT_SEGMENT, self.next_segment);
        put_u32(&mut b, l::DISKS, self.disks.len() as u32);
        put_u32(&mut b, l::SEGMENTS, self.segments.len() as u32);
        self.disks.iter().for_each(|d| d.encode(&mut b));
        for r in &self.segments {
            let start = b.len();
            b.resize(start + s::SIZE, 0);
            let at = &mut b[start..];
            put_u32(at, s::SEGMENT, r.segment.0);
            put_u8(at, s::STREAM, r.stream as u8);
            put_u8(at, s::STATE, r.state as u8);
            put_u32(at, s::CONTAINER, r.container);
            put_u32(at, s::WRITTEN, r.written);
            put_u64(at, s::FIRST_SEQ, r.first_seq);
            put_u64(at, s::LAST_SEQ, r.last_seq);
        }
        b
    }

    /// Decodes the joined pieces, whose checksums the caller has verified.
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
        if !rest.is_empty() {
            return Err(bad("length"));
        }
        let table = table.chunks_exact(s::SIZE);
        let record = |at: &[u8]| {
            Ok(SegmentRecord {
                segment: SegmentId(get_u32(at, s::SEGMENT)),
                stream: Stream::decode(get_u8(at, s::STREAM)).ok_or(bad("stream"))?,
                state: match get_u8(at, s::STATE) {
                    1 => SegmentState::Open,
                    2 => SegmentState::Sealed,
                    _ => return Err(bad("state")),
                },
                container: get_u32(at, s::CONTAINER),
                written: get_u32(at, s::WRITTEN),
                first_seq: get_u64(at, s::FIRST_SEQ),
                last_seq: get_u64(at, s::LAST_SEQ),
            })
        };
        let checkpoint = Checkpoint {
            seq: get_u64(head, l::SEQ),
            next_disk: get_u32(head, l::NEXT_DISK),
            next_segment: get_u32(head, l::NEXT_SEGMENT),
            disks,
            segments: table.map(record).collect::<Result<Vec<_>>>()?,
        };
        match checkpoint.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(checkpoint),
        }
    }
}
