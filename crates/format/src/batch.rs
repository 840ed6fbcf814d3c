//! A batch: one atomic append to the log.
//!
//! ```text
//! | header 96 | entries ... | zeroes to a whole block | payload, whole blocks |
//! ```
//!
//! Batches have consecutive sequence numbers in the whole pool, and each contains the checksum of the
//! previous one: a batch is valid only if the chain from the checkpoint reaches it. A *group* is a run of
//! batches whose last one has [`GROUP_END`]; recovery applies a group as a whole or not at all.

use std::ops::Range;

use crate::checksum::{Check64, Sum64};
use crate::entry::EntryIter;
use crate::layout::*;
use crate::{
    BLOCK, FormatError, MAX_SEGMENT, PoolId, Result, SegmentId, Slot, VERSION, align_up, check_version,
};

pub(crate) const MAGIC: &[u8; 8] = b"FBBATCH\0";
const WHAT: &str = "batch";
/// The flag of the last batch of a group.
pub const GROUP_END: u32 = 1;

layout!(batch_header, "batch header", 96, {
    MAGIC @ 0, 8, "`FBBATCH\\0`";
    POOL_ID @ 8, 16, "pool id";
    EPOCH @ 24, 8, "epoch of its writer";
    SEQ @ 32, 8, "sequence number, consecutive over the pool";
    CHAIN @ 40, 8, "checksum of the batch before it";
    SEGMENT @ 48, 4, "segment id";
    OFFSET @ 52, 4, "byte offset of this batch in the segment";
    FLAGS @ 56, 4, "1: last of its group";
    ENTRIES_LEN @ 60, 4, "bytes of entries";
    PAYLOAD_LEN @ 64, 4, "bytes of payload, whole blocks";
    VERSION @ 68, 4, "format version";
    GROUP @ 72, 8, "sequence number of the first batch of its group";
    CHECK @ 88, 8, "CRC-64/NVME of the batch without these 8 bytes";
});

/// Header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Id of the pool.
    pub pool: PoolId,
    /// Epoch of the server that wrote the batch.
    pub epoch: u64,
    /// Sequence number of the batch.
    pub seq: u64,
    /// Checksum of the previous batch.
    pub chain: u64,
    /// The segment that contains the batch.
    pub segment: SegmentId,
    /// Byte offset of the batch in the segment.
    pub offset: u32,
    /// Flags of the batch: [`GROUP_END`] or 0.
    pub flags: u32,
    /// Sequence number of the first batch of the batch's group, at least 1 and at most `seq`.
    pub group: u64,
}

impl BatchHeader {
    /// Bytes before the payload, for `entries_len` bytes of entries.
    pub const fn head_len(entries_len: usize) -> usize {
        align_up(batch_header::SIZE + entries_len, BLOCK)
    }

    /// First slot of the payload of a batch at byte `offset` of its segment.
    pub const fn payload_slot(offset: u64, entries_len: usize) -> Slot {
        Slot::at(offset + Self::head_len(entries_len) as u64)
    }

    /// Encodes header and entries into `head`, which must have [`Self::head_len`] bytes of zeroes, and
    /// returns the batch's checksum. `payload` is the sum of the payload that will follow, in whole blocks.
    pub fn encode(&self, head: &mut [u8], entries: &[u8], payload: Sum64) -> u64 {
        use batch_header as l;
        assert_eq!(head.len(), Self::head_len(entries.len()));
        assert!(payload.len().is_multiple_of(BLOCK as u64) && entries.len().is_multiple_of(8));
        assert!(u64::from(self.offset) + head.len() as u64 + payload.len() <= MAX_SEGMENT);
        assert!(self.offset.is_multiple_of(BLOCK as u32) && self.flags & !GROUP_END == 0);
        assert!((1..=self.seq).contains(&self.group));
        put_bytes(head, l::MAGIC, MAGIC);
        put_bytes(head, l::POOL_ID, &self.pool.0);
        put_u64(head, l::EPOCH, self.epoch);
        put_u64(head, l::SEQ, self.seq);
        put_u64(head, l::CHAIN, self.chain);
        put_u32(head, l::SEGMENT, self.segment.0);
        put_u32(head, l::OFFSET, self.offset);
        put_u32(head, l::FLAGS, self.flags);
        put_u32(head, l::ENTRIES_LEN, entries.len() as u32);
        put_u32(head, l::PAYLOAD_LEN, payload.len() as u32);
        put_u32(head, l::VERSION, VERSION);
        put_u64(head, l::GROUP, self.group);
        head[l::SIZE..l::SIZE + entries.len()].copy_from_slice(entries);
        let check = head_sum(head).join(payload).finish();
        put_u64(head, l::CHECK, check);
        check
    }
}

/// The sum of header and entries without the field of the checksum.
fn head_sum(head: &[u8]) -> Sum64 {
    Sum64::of(&head[..batch_header::CHECK.start]).join(Sum64::of(&head[batch_header::SIZE..]))
}

pub(crate) fn check(head: &[u8], payload: &[u8]) -> u64 {
    let mut c = Check64::default();
    c.update(&head[..batch_header::CHECK.start]);
    c.update(&head[batch_header::SIZE..]);
    c.update(payload);
    c.finish()
}

/// A batch that was read and verified.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Header of the batch.
    pub header: BatchHeader,
    /// Checksum of the batch, which the header of the next batch repeats.
    pub check: u64,
    /// First slot of the batch's payload.
    pub payload_slot: Slot,
    /// Payload of the batch.
    pub payload: &'a [u8],
    entries: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Length of the batch whose header is at the front of `b`, checked for plausibility only, so that a
    /// reader can determine the number of bytes to read; at most 1 GiB. `b` must have at least the length of
    /// a header.
    pub fn peek_len(b: &[u8]) -> Result<usize> {
        use batch_header as l;
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if &b[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let payload = get_u32(b, l::PAYLOAD_LEN) as usize;
        if !payload.is_multiple_of(BLOCK) {
            return Err(FormatError::Value { what: WHAT, field: "payload_len" });
        }
        let entries = get_u32(b, l::ENTRIES_LEN) as usize;
        if !entries.is_multiple_of(8) {
            return Err(FormatError::Value { what: WHAT, field: "entries_len" });
        }
        let len = BatchHeader::head_len(entries) + payload;
        if len as u64 > MAX_SEGMENT {
            return Err(FormatError::Value { what: WHAT, field: "payload_len" });
        }
        Ok(len)
    }

    /// Whether `b` may be the header of the batch at `offset` of `segment` of `pool`: a search for batches
    /// checks this before it reads and verifies a batch.
    pub fn may_begin(b: &[u8], pool: PoolId, segment: SegmentId, offset: u32) -> bool {
        use batch_header as l;
        Batch::peek_len(b).is_ok()
            && b[l::POOL_ID] == pool.0
            && get_u32(b, l::SEGMENT) == segment.0
            && get_u32(b, l::OFFSET) == offset
    }

    /// Verifies and decodes the batch read at `offset` of `segment` of `pool`.
    pub fn decode(b: &'a [u8], pool: PoolId, segment: SegmentId, offset: u32) -> Result<Batch<'a>> {
        use batch_header as l;
        let len = Batch::peek_len(b)?;
        let b = b.get(..len).ok_or(FormatError::Truncated(WHAT))?;
        let entries_len = get_u32(b, l::ENTRIES_LEN) as usize;
        let (head, payload) = b.split_at(BatchHeader::head_len(entries_len));
        let stored = get_u64(b, l::CHECK);
        if check(head, payload) != stored {
            return Err(FormatError::Checksum(WHAT));
        }
        check_version(WHAT, get_u32(b, l::VERSION))?;
        let header = BatchHeader {
            pool: PoolId(get_array(b, l::POOL_ID)),
            epoch: get_u64(b, l::EPOCH),
            seq: get_u64(b, l::SEQ),
            chain: get_u64(b, l::CHAIN),
            segment: SegmentId(get_u32(b, l::SEGMENT)),
            offset: get_u32(b, l::OFFSET),
            flags: get_u32(b, l::FLAGS),
            group: get_u64(b, l::GROUP),
        };
        if (header.pool, header.segment, header.offset) != (pool, segment, offset) {
            return Err(FormatError::Foreign { what: WHAT, field: "position" });
        }
        if !offset.is_multiple_of(BLOCK as u32) || u64::from(offset) + len as u64 > MAX_SEGMENT {
            return Err(FormatError::Value { what: WHAT, field: "offset" });
        }
        if header.flags & !GROUP_END != 0 {
            return Err(FormatError::Value { what: WHAT, field: "flags" });
        }
        if !(1..=header.seq).contains(&header.group) {
            return Err(FormatError::Value { what: WHAT, field: "group" });
        }
        Ok(Batch {
            header,
            check: stored,
            payload_slot: BatchHeader::payload_slot(offset as u64, entries_len),
            payload,
            entries: &head[l::SIZE..l::SIZE + entries_len],
        })
    }

    /// Encoded entries of the batch, for an [`EntryIter`].
    pub fn entry_bytes(&self) -> &'a [u8] {
        self.entries
    }

    /// The range of its payload in the segment, in bytes.
    pub fn payload_range(&self) -> Range<u64> {
        let start = self.payload_slot.offset();
        start..start + self.payload.len() as u64
    }

    /// Entries of the batch, in order; an entry whose contents are outside of the payload is an error.
    pub fn entries(&self) -> EntryIter<'a> {
        EntryIter::within(self.entries, self.payload_range())
    }
}
