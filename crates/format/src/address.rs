//! Where a stored block is: segment, slot, form, checksum.
//!
//! A slot is a position inside the segment *as it was written*, in units of [`Slot::UNIT`] bytes, so the
//! address of a block leads to its bytes without any table. When the cleaner moves data, only the segment
//! table changes; addresses stay as they are, for ever.

use crate::layout::{get_u32, layout, put_u32};

/// Number of a segment; starts at 1 and is never used again, even after the segment is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SegmentId(pub u32);

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Position in a segment, in units of 64 bytes, below 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Slot(pub u32);

impl Slot {
    /// Bytes of one slot unit.
    pub const UNIT: usize = 64;
    /// One past the highest slot: segments are at most 1 GiB.
    pub const LIMIT: u32 = 1 << 24;
    /// Byte offset in the segment. Never overflows, whatever the number.
    pub const fn offset(self) -> u64 {
        self.0 as u64 * Self::UNIT as u64
    }
    /// The slot at a byte offset, which must be a multiple of [`Slot::UNIT`].
    pub const fn at(offset: u64) -> Slot {
        debug_assert!(offset.is_multiple_of(Self::UNIT as u64));
        Slot((offset / Self::UNIT as u64) as u32)
    }
}

/// The logical place of a stored block: never reused, never rewritten when data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Address {
    /// The segment in which it was first written.
    pub segment: SegmentId,
    /// Its place there.
    pub slot: Slot,
}

impl Address {
    /// One number that orders addresses by place.
    pub const fn to_u64(self) -> u64 {
        ((self.segment.0 as u64) << 24) | self.slot.0 as u64
    }
}

/// How a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    Raw = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One member of a group that is compressed together with zstd.
    ZstdGroup = 2,
}

/// Codec and stored length in one byte: codec in the top two bits; below them, the stored length in slot
/// units less one, or, for [`Codec::ZstdGroup`], the member's number in its group. Of map nodes codec 0 is a sparse
/// one, codec 1 a full one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Form(pub u8);

impl Form {
    /// A whole block, stored as it is.
    pub const RAW_BLOCK: Form = Form(63);

    /// Stored as it is, in `len` bytes, rounded up to the slot unit; 1 to 4096.
    pub const fn raw(len: usize) -> Form {
        assert!(len > 0 && len <= crate::BLOCK);
        Form((len.div_ceil(Slot::UNIT) - 1) as u8)
    }
    /// One LZ4 block of `len` bytes, rounded up to the slot unit; 1 to 4096.
    pub const fn lz4(len: usize) -> Form {
        Form(Form::raw(len).0 | (Codec::Lz4 as u8) << 6)
    }
    /// A full map node of `len` bytes, rounded up to the slot unit; 1 to 4096. Nodes are not compressed, so codec 1
    /// is free to say that.
    pub const fn full_node(len: usize) -> Form {
        Form::lz4(len)
    }
    /// Whether this is the form of a map node, and of a full one: `Some(true)`.
    pub const fn of_node(self) -> Option<bool> {
        match self.codec() {
            Some(Codec::Raw) => Some(false),
            Some(Codec::Lz4) => Some(true),
            _ => None,
        }
    }
    /// Member `number` of a group, below 64.
    pub const fn member(number: u8) -> Form {
        assert!(number < 64);
        Form(number | (Codec::ZstdGroup as u8) << 6)
    }
    /// Of a member of a group: its number.
    pub const fn member_number(self) -> u8 {
        self.0 & 63
    }
    /// The codec; `None` for the value that is reserved.
    pub const fn codec(self) -> Option<Codec> {
        match self.0 >> 6 {
            0 => Some(Codec::Raw),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::ZstdGroup),
            _ => None,
        }
    }
    /// Whether this is the form of something stored at `slot` that ends at byte `end` of its segment or before.
    /// Of a member of a group only the begin is judged: the group has the length.
    pub const fn fits(self, slot: Slot, end: u64) -> bool {
        match self.codec() {
            Some(Codec::Raw | Codec::Lz4) => slot.offset() + self.stored_len() as u64 <= end,
            Some(Codec::ZstdGroup) => slot.offset() < end,
            None => false,
        }
    }
    /// Stored length in bytes, of all codecs but [`Codec::ZstdGroup`].
    pub const fn stored_len(self) -> usize {
        ((self.0 & 63) as usize + 1) * Slot::UNIT
    }
}

layout!(block_ref, "block reference", 12, {
    SEGMENT @ 0, 4, "segment id; 0: see slot";
    SLOT_FORM @ 4, 4, "slot (low 24 bits), form (high 8 bits); with segment 0: 0 hole, 1 allocated zeroes";
    CRC @ 8, 4, "CRC-32C of the block's plain content";
});

/// A stored block: its address, its form, and the checksum of its plain content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRef {
    /// Where it is.
    pub addr: Address,
    /// How it is stored.
    pub form: Form,
    /// CRC-32C of its plain content.
    pub crc: u32,
}

/// What a block map says of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MapValue {
    /// Never written, or discarded: reads as zeroes.
    #[default]
    Hole,
    /// Written as zeroes and to be reported as allocated: reads as zeroes, takes no slot.
    Zero,
    /// Stored.
    At(BlockRef),
}

impl MapValue {
    /// Encoded size in bytes.
    pub const SIZE: usize = block_ref::SIZE;

    /// Encodes into 12 bytes.
    pub fn encode(self) -> [u8; 12] {
        let mut b = [0; 12];
        let w = self.to_words();
        put_u32(&mut b, block_ref::SEGMENT, w[0]);
        put_u32(&mut b, block_ref::SLOT_FORM, w[1]);
        put_u32(&mut b, block_ref::CRC, w[2]);
        b
    }
    /// Decodes 12 bytes; `None` where no writer produces them.
    pub fn decode(b: &[u8; 12]) -> Option<MapValue> {
        MapValue::from_words([
            get_u32(b, block_ref::SEGMENT),
            get_u32(b, block_ref::SLOT_FORM),
            get_u32(b, block_ref::CRC),
        ])
    }
    /// The three words that maps keep in memory. The slot of a block must be below [`Slot::LIMIT`], and its
    /// segment not 0: anything else would be read back as another value.
    pub const fn to_words(self) -> [u32; 3] {
        match self {
            MapValue::Hole => [0, 0, 0],
            MapValue::Zero => [0, 1, 0],
            MapValue::At(r) => {
                assert!(r.addr.segment.0 != 0 && r.addr.slot.0 < Slot::LIMIT);
                [r.addr.segment.0, r.addr.slot.0 | (r.form.0 as u32) << 24, r.crc]
            }
        }
    }
    /// The value of three words; `None` where no writer produces them.
    pub const fn from_words(w: [u32; 3]) -> Option<MapValue> {
        match w {
            [0, 0, 0] => Some(MapValue::Hole),
            [0, 1, 0] => Some(MapValue::Zero),
            [0, _, _] => None,
            [segment, slot_form, crc] => {
                let form = Form((slot_form >> 24) as u8);
                let slot = Slot(slot_form & (Slot::LIMIT - 1));
                // Whether the segment reaches that far is for its reader to find out: this is a hot path.
                if form.codec().is_none() {
                    return None;
                }
                let addr = Address { segment: SegmentId(segment), slot };
                Some(MapValue::At(BlockRef { addr, form, crc }))
            }
        }
    }
}
