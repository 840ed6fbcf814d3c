//! The location of a stored block: segment, slot, form, checksum.
//!
//! A slot is a position inside the segment *as it was written*, in units of [`Slot::UNIT`] bytes, so a block
//! is located from its address without any table. When the cleaner moves data, only the segment table
//! changes; addresses never change.

use crate::layout::{get_u32, layout, put_u32};

/// Number of a segment; never reused, even after the segment is deleted. The segments of a pool have the
/// numbers from 1 on; the segments of the images of a cluster have the numbers from
/// [`SegmentId::FIRST_OF_IMAGES`] on, which are unique in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// The lowest number of a segment of an image of the cluster.
    pub const FIRST_OF_IMAGES: u32 = 1 << 31;

    /// Whether the segment belongs to an image of the cluster, and not to a pool.
    pub const fn is_of_image(self) -> bool {
        self.0 >= SegmentId::FIRST_OF_IMAGES
    }
}

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Position in a segment, in units of 64 bytes, below 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Slot(pub u32);

impl Slot {
    /// Bytes of the unit in which slots are numbered.
    pub const UNIT: usize = 64;
    /// Exclusive upper limit of slots: segments are at most 1 GiB.
    pub const LIMIT: u32 = 1 << 24;
    /// Byte offset in the segment. Never overflows, for any number.
    pub const fn offset(self) -> u64 {
        self.0 as u64 * Self::UNIT as u64
    }
    /// The slot at a byte offset, which must be a multiple of [`Slot::UNIT`].
    pub const fn at(offset: u64) -> Slot {
        debug_assert!(offset.is_multiple_of(Self::UNIT as u64));
        Slot((offset / Self::UNIT as u64) as u32)
    }
}

/// The logical address of a stored block: never reused, never changed when data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Address {
    /// The segment in which the block or node was first written.
    pub segment: SegmentId,
    /// Position of the block or node in the segment.
    pub slot: Slot,
}

impl Address {
    /// A number that orders addresses by segment, then by slot.
    pub const fn to_u64(self) -> u64 {
        ((self.segment.0 as u64) << 24) | self.slot.0 as u64
    }

    /// Returns the address with this number.
    pub const fn from_u64(number: u64) -> Address {
        Address { segment: SegmentId((number >> 24) as u32), slot: Slot(number as u32 & 0xff_ffff) }
    }
}

/// The encoding of a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The block is stored uncompressed.
    Raw = 0,
    /// The block is stored as one LZ4 block.
    Lz4 = 1,
    /// A member of a group that is compressed together with zstd.
    ZstdGroup = 2,
}

/// Codec and stored length in one byte: codec in the top two bits; below them, the stored length in slot
/// units less one, or, for [`Codec::ZstdGroup`], the member's number in its group. For map nodes, codec 0
/// means a sparse node, codec 1 a full one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Form(pub u8);

impl Form {
    /// Form of a whole block that is stored uncompressed.
    pub const RAW_BLOCK: Form = Form(63);

    /// Uncompressed, in `len` bytes, rounded up to the slot unit; 1 to 4096.
    pub const fn raw(len: usize) -> Form {
        assert!(len > 0 && len <= crate::BLOCK);
        Form((len.div_ceil(Slot::UNIT) - 1) as u8)
    }
    /// Returns the form of one LZ4 block of `len` bytes (1 to 4096), rounded up to the slot unit.
    pub const fn lz4(len: usize) -> Form {
        Form(Form::raw(len).0 | (Codec::Lz4 as u8) << 6)
    }
    /// A full map node of `len` bytes, rounded up to the slot unit; 1 to 4096. Nodes are not compressed, so
    /// codec 1 is available to mark full nodes.
    pub const fn full_node(len: usize) -> Form {
        Form::lz4(len)
    }
    /// Returns whether the map node of this form is full; `None` for forms of other contents.
    pub const fn of_node(self) -> Option<bool> {
        match self.codec() {
            Some(Codec::Raw) => Some(false),
            Some(Codec::Lz4) => Some(true),
            _ => None,
        }
    }
    /// Returns the form of member `number` of a group, below 64.
    pub const fn member(number: u8) -> Form {
        assert!(number < 64);
        Form(number | (Codec::ZstdGroup as u8) << 6)
    }
    /// The number of a member in its group.
    pub const fn member_number(self) -> u8 {
        self.0 & 63
    }
    /// Returns the codec; `None` for the reserved value.
    pub const fn codec(self) -> Option<Codec> {
        match self.0 >> 6 {
            0 => Some(Codec::Raw),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::ZstdGroup),
            _ => None,
        }
    }
    /// Whether contents in this form at `slot` end at byte `end` of the segment or before. For a member of a
    /// group only the start is checked, because the group states the length.
    pub const fn fits(self, slot: Slot, end: u64) -> bool {
        match self.codec() {
            Some(Codec::Raw | Codec::Lz4) => slot.offset() + self.stored_len() as u64 <= end,
            Some(Codec::ZstdGroup) => slot.offset() < end,
            None => false,
        }
    }
    /// Stored length in bytes, for all codecs except [`Codec::ZstdGroup`].
    pub const fn stored_len(self) -> usize {
        ((self.0 & 63) as usize + 1) * Slot::UNIT
    }
}

layout!(block_ref, "block reference", 12, {
    SEGMENT @ 0, 4, "segment id; 0: see slot";
    SLOT_FORM @ 4, 4, "slot (low 24 bits), form (high 8 bits); with segment 0: 0 hole, 1 allocated zeroes";
    CRC @ 8, 4, "CRC-32C of the block's plain content";
});

/// A stored block: its address, its form, and the checksum of its plain contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRef {
    /// Address of the stored block.
    pub addr: Address,
    /// Form in which the block is stored.
    pub form: Form,
    /// CRC-32C of the block's plain content.
    pub crc: u32,
}

/// The value of one block in a block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MapValue {
    /// The block was never written, or was discarded: it reads as zeroes.
    #[default]
    Hole,
    /// Written as zeroes and reported as allocated: reads as zeroes, occupies no slot.
    Zero,
    /// The block is stored at this reference.
    At(BlockRef),
}

impl MapValue {
    /// Encoded size in bytes.
    pub const SIZE: usize = block_ref::SIZE;

    /// Encodes the block reference into 12 bytes.
    pub fn encode(self) -> [u8; 12] {
        let mut b = [0; 12];
        let w = self.to_words();
        put_u32(&mut b, block_ref::SEGMENT, w[0]);
        put_u32(&mut b, block_ref::SLOT_FORM, w[1]);
        put_u32(&mut b, block_ref::CRC, w[2]);
        b
    }
    /// Decodes 12 bytes; `None` for bytes that writers never produce.
    pub fn decode(b: &[u8; 12]) -> Option<MapValue> {
        MapValue::from_words([
            get_u32(b, block_ref::SEGMENT),
            get_u32(b, block_ref::SLOT_FORM),
            get_u32(b, block_ref::CRC),
        ])
    }
    /// The three words that maps keep in memory. The slot of a block must be below [`Slot::LIMIT`], and its
    /// segment not 0: other values would be decoded as a different value.
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
    /// The value of three words; `None` for words that writers never produce.
    pub const fn from_words(w: [u32; 3]) -> Option<MapValue> {
        match w {
            [0, 0, 0] => Some(MapValue::Hole),
            [0, 1, 0] => Some(MapValue::Zero),
            [0, _, _] => None,
            [segment, slot_form, crc] => {
                let form = Form((slot_form >> 24) as u8);
                let slot = Slot(slot_form & (Slot::LIMIT - 1));
                // This is a hot path: the reader checks whether the segment is that long.
                if form.codec().is_none() {
                    return None;
                }
                let addr = Address { segment: SegmentId(segment), slot };
                Some(MapValue::At(BlockRef { addr, form, crc }))
            }
        }
    }
}
