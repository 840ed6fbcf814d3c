//! Entries: the operations in a batch, which apply in order.

use crate::layout::*;
use std::ops::Range;

use crate::{
    BlockRef, CatalogueOp, DiskId, Form, FormatError, MAX_BLOCKS, MAX_SEGMENT, MapValue, Result, SegmentId,
    Slot, align_up,
};

/// Keyed BLAKE3 of a block, truncated to 128 bits; all zero if it was not computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Fingerprint(pub [u8; 16]);

const WHAT: &str = "entry";
const PUT: u8 = 1;
const REFERENCE: u8 = 2;
const ZERO: u8 = 3;
const NODE: u8 = 4;
const BLOB: u8 = 5;
const CATALOGUE: u8 = 6;
const RELOCATE: u8 = 7;

layout!(put, "entry: put", 40, {
    TAG @ 0, 1, "1";
    FORM @ 1, 1, "form: codec and stored length";
    DISK @ 4, 4, "disk id";
    BLOCK_INDEX @ 8, 8, "logical block number";
    SLOT @ 16, 4, "slot in this segment, within this batch's payload";
    CRC @ 20, 4, "CRC-32C of the plain content";
    FINGERPRINT @ 24, 16, "fingerprint; zero where none was made";
});
layout!(reference, "entry: reference", 32, {
    TAG @ 0, 1, "2";
    DISK @ 4, 4, "disk id";
    BLOCK_INDEX @ 8, 8, "logical block number";
    TARGET @ 16, 12, "the block that is stored already, as a block reference";
});
layout!(zero, "entry: zero", 24, {
    TAG @ 0, 1, "3";
    ALLOCATED @ 1, 1, "0 hole, 1 allocated zeroes";
    DISK @ 4, 4, "disk id";
    BLOCK_INDEX @ 8, 8, "first logical block number";
    COUNT @ 16, 8, "blocks";
});
layout!(node, "entry: map node", 16, {
    TAG @ 0, 1, "4";
    FORM @ 1, 1, "form: stored length";
    SLOT @ 4, 4, "slot in this segment, within this batch's payload";
    CRC @ 8, 4, "CRC-32C of the node, padded to its stored length";
});
layout!(blob, "entry: piece", 16, {
    TAG @ 0, 1, "5";
    SLOT @ 4, 4, "first slot in this segment, within this batch's payload";
    LEN @ 8, 4, "bytes: a piece of a checkpoint, or blocks that were moved here";
});
layout!(catalogue, "entry: catalogue change", 8, {
    TAG @ 0, 1, "6";
    LEN @ 4, 4, "bytes of the change, which follows; a multiple of 8";
});

layout!(relocate, "entry: relocation", 16, {
    TAG @ 0, 1, "7";
    SEGMENT @ 4, 4, "the segment whose live slots rest in this batch's segment from here on";
    SLOT @ 8, 4, "first slot of the relocation map in this segment, within this batch's payload";
    LEN @ 12, 4, "bytes of the relocation map";
});

/// One entry of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A block of a disk, whose contents are in this batch's payload.
    Put {
        /// The disk that contains the block.
        disk: DiskId,
        /// Logical number of the block.
        block: u64,
        /// Slot in which the contents of the block are stored.
        slot: Slot,
        /// Form in which the contents of the block are stored.
        form: Form,
        /// CRC-32C of the block's plain contents.
        crc: u32,
        /// Fingerprint of the block; zeroes if it has none.
        fingerprint: Fingerprint,
    },
    /// A block of a disk, whose contents are stored already.
    Reference {
        /// The disk that contains the block.
        disk: DiskId,
        /// Logical number of the block.
        block: u64,
        /// Where the content of the block is stored.
        target: BlockRef,
    },
    /// A range of blocks that are zero from this entry on.
    Zero {
        /// The disk that contains the range.
        disk: DiskId,
        /// First logical block number of the range.
        block: u64,
        /// Number of blocks in the range.
        count: u64,
        /// Whether the range stays allocated.
        allocated: bool,
    },
    /// A node of a block map, in this batch's payload.
    Node {
        /// Slot in which the map node is stored.
        slot: Slot,
        /// Form of the map node, which states its stored length.
        form: Form,
        /// CRC-32C of the node's stored bytes.
        crc: u32,
    },
    /// Bytes in this batch's payload that other structures refer to: a piece of a checkpoint, or moved
    /// blocks.
    Blob {
        /// First slot of the bytes of the blob.
        slot: Slot,
        /// Number of bytes of the blob.
        len: u32,
    },
    /// The entry changes the catalogue.
    Catalogue(CatalogueOp),
    /// The live slots of a segment are located in the segment of this batch from this entry on.
    Relocate {
        /// The segment whose slots were moved.
        segment: SegmentId,
        /// First slot of the relocation map, in this batch's payload.
        slot: Slot,
        /// Bytes of the relocation map.
        len: u32,
    },
}

impl Entry {
    /// Appends the encoded entry, a multiple of eight bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert_eq!(
            self.bad_field(&(0..MAX_SEGMENT)),
            None,
            "the encoded entry would be rejected when decoded"
        );
        let start = out.len();
        fn grow(out: &mut Vec<u8>, n: usize, tag: u8) -> &mut [u8] {
            let start = out.len();
            out.resize(start + n, 0);
            out[start] = tag;
            &mut out[start..]
        }
        match self {
            Entry::Put { disk, block, slot, form, crc, fingerprint } => {
                let b = grow(out, put::SIZE, PUT);
                put_u8(b, put::FORM, form.0);
                put_u32(b, put::DISK, disk.0);
                put_u64(b, put::BLOCK_INDEX, *block);
                put_u32(b, put::SLOT, slot.0);
                put_u32(b, put::CRC, *crc);
                put_bytes(b, put::FINGERPRINT, &fingerprint.0);
            }
            Entry::Reference { disk, block, target } => {
                let b = grow(out, reference::SIZE, REFERENCE);
                put_u32(b, reference::DISK, disk.0);
                put_u64(b, reference::BLOCK_INDEX, *block);
                put_bytes(b, reference::TARGET, &MapValue::At(*target).encode());
            }
            Entry::Zero { disk, block, count, allocated } => {
                let b = grow(out, zero::SIZE, ZERO);
                put_u8(b, zero::ALLOCATED, u8::from(*allocated));
                put_u32(b, zero::DISK, disk.0);
                put_u64(b, zero::BLOCK_INDEX, *block);
                put_u64(b, zero::COUNT, *count);
            }
            Entry::Node { slot, form, crc } => {
                let b = grow(out, node::SIZE, NODE);
                put_u8(b, node::FORM, form.0);
                put_u32(b, node::SLOT, slot.0);
                put_u32(b, node::CRC, *crc);
            }
            Entry::Blob { slot, len } => {
                let b = grow(out, blob::SIZE, BLOB);
                put_u32(b, blob::SLOT, slot.0);
                put_u32(b, blob::LEN, *len);
            }
            Entry::Catalogue(change) => {
                grow(out, catalogue::SIZE, CATALOGUE);
                change.encode(out);
                let len = out.len() - start - catalogue::SIZE;
                put_u32(&mut out[start..], catalogue::LEN, len as u32);
            }
            Entry::Relocate { segment, slot, len } => {
                let b = grow(out, relocate::SIZE, RELOCATE);
                put_u32(b, relocate::SEGMENT, segment.0);
                put_u32(b, relocate::SLOT, slot.0);
                put_u32(b, relocate::LEN, *len);
            }
        }
        debug_assert!((out.len() - start).is_multiple_of(8));
    }

    /// A field with a value that writers never produce, if any; `payload` is the range of the segment that
    /// must include its contents.
    fn bad_field(&self, payload: &Range<u64>) -> Option<&'static str> {
        let inside = |slot: Slot, form: Form| slot.offset() >= payload.start && form.fits(slot, payload.end);
        match self {
            Entry::Put { disk, .. } | Entry::Reference { disk, .. } | Entry::Zero { disk, .. }
                if disk.0 == 0 =>
            {
                Some("disk")
            }
            Entry::Put { block, .. } | Entry::Reference { block, .. } if *block >= MAX_BLOCKS => {
                Some("block_index")
            }
            Entry::Put { slot, form, .. } if !inside(*slot, *form) => Some("slot"),
            Entry::Zero { block, count, .. }
                if *count == 0 || block.checked_add(*count).is_none_or(|end| end > MAX_BLOCKS) =>
            {
                Some("count")
            }
            Entry::Node { form, .. } if form.of_node().is_none() => Some("form"),
            Entry::Node { slot, form, .. } if !inside(*slot, *form) => Some("slot"),
            Entry::Relocate { segment, .. } if segment.0 == 0 => Some("segment"),
            Entry::Relocate { len: 0, .. } => Some("len"),
            Entry::Blob { slot, len } | Entry::Relocate { slot, len, .. }
                if slot.offset() < payload.start || slot.offset() + u64::from(*len) > payload.end =>
            {
                Some("slot")
            }
            _ => None,
        }
    }

    /// Decodes the entry at the front of `b`; returns it and its length.
    fn decode(b: &[u8]) -> Result<(Entry, usize)> {
        let tag = *b.first().ok_or(FormatError::Truncated(WHAT))?;
        let size = match tag {
            PUT => put::SIZE,
            REFERENCE => reference::SIZE,
            ZERO => zero::SIZE,
            NODE => node::SIZE,
            BLOB => blob::SIZE,
            CATALOGUE => return Entry::decode_catalogue(b),
            RELOCATE => relocate::SIZE,
            _ => return Err(bad("tag")),
        };
        let b = b.get(..size).ok_or(FormatError::Truncated(WHAT))?;
        Ok((Entry::decode_fixed(tag, b)?, size))
    }

    /// Decodes an entry of fixed size, all of whose bytes are in `b`.
    fn decode_fixed(tag: u8, b: &[u8]) -> Result<Entry> {
        Ok(match tag {
            PUT => Entry::Put {
                disk: DiskId(get_u32(b, put::DISK)),
                block: get_u64(b, put::BLOCK_INDEX),
                slot: Slot(get_u32(b, put::SLOT)),
                form: Form(get_u8(b, put::FORM)),
                crc: get_u32(b, put::CRC),
                fingerprint: Fingerprint(get_array(b, put::FINGERPRINT)),
            },
            REFERENCE => {
                let Some(MapValue::At(target)) = MapValue::decode(&get_array(b, reference::TARGET)) else {
                    return Err(bad("target"));
                };
                let disk = DiskId(get_u32(b, reference::DISK));
                Entry::Reference { disk, block: get_u64(b, reference::BLOCK_INDEX), target }
            }
            ZERO => Entry::Zero {
                disk: DiskId(get_u32(b, zero::DISK)),
                block: get_u64(b, zero::BLOCK_INDEX),
                count: get_u64(b, zero::COUNT),
                allocated: match get_u8(b, zero::ALLOCATED) {
                    0 => false,
                    1 => true,
                    _ => return Err(bad("allocated")),
                },
            },
            NODE => Entry::Node {
                slot: Slot(get_u32(b, node::SLOT)),
                form: Form(get_u8(b, node::FORM)),
                crc: get_u32(b, node::CRC),
            },
            BLOB => Entry::Blob { slot: Slot(get_u32(b, blob::SLOT)), len: get_u32(b, blob::LEN) },
            RELOCATE => Entry::Relocate {
                segment: SegmentId(get_u32(b, relocate::SEGMENT)),
                slot: Slot(get_u32(b, relocate::SLOT)),
                len: get_u32(b, relocate::LEN),
            },
            _ => return Err(bad("tag")),
        })
    }

    /// Decodes a catalogue change, whose length is stated in the entry.
    fn decode_catalogue(b: &[u8]) -> Result<(Entry, usize)> {
        let head = b.get(..catalogue::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let len = get_u32(head, catalogue::LEN) as usize;
        if len != align_up(len, 8) {
            return Err(bad("len"));
        }
        let whole = b.get(..catalogue::SIZE + len).ok_or(FormatError::Truncated(WHAT))?;
        Ok((Entry::Catalogue(CatalogueOp::decode(&whole[catalogue::SIZE..])?), whole.len()))
    }
}

fn bad(field: &'static str) -> FormatError {
    FormatError::Value { what: WHAT, field }
}

/// The entries of a batch, in order; ends after the first entry that cannot be decoded.
#[derive(Debug, Clone)]
pub struct EntryIter<'a> {
    bytes: &'a [u8],
    payload: Range<u64>,
}

impl<'a> EntryIter<'a> {
    /// Iterates over the entry bytes of a batch whose payload range is unknown: contents may be anywhere in a
    /// segment.
    pub fn new(bytes: &'a [u8]) -> Self {
        EntryIter::within(bytes, 0..MAX_SEGMENT)
    }

    /// Iterates over the entry bytes of a batch. An entry whose contents are outside of `payload`, the range
    /// of this batch's payload in the segment, is an error.
    pub fn within(bytes: &'a [u8], payload: Range<u64>) -> Self {
        EntryIter { bytes, payload }
    }

    fn decode(&self) -> Result<(Entry, usize)> {
        let (entry, len) = Entry::decode(self.bytes)?;
        match entry.bad_field(&self.payload) {
            Some(field) => Err(bad(field)),
            None => Ok((entry, len)),
        }
    }
}

impl Iterator for EntryIter<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let decoded = self.decode();
        let used = decoded.as_ref().map_or(self.bytes.len(), |(_, len)| *len);
        self.bytes = &self.bytes[used..];
        Some(decoded.map(|(entry, _)| entry))
    }
}
