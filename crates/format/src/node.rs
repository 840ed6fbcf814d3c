//! A stored node of a block map.
//!
//! A node has 256 entries. A *full* node lists all entries. A *sparse* node lists some entries; it inherits
//! the other entries from its base, or they are holes if it has no base. A base must not be a sparse node
//! with a base, so a chain of bases has one step. In a leaf (level 0) an entry refers to a block; in a higher
//! node, it refers to a node of the level below. Values are encoded as in [`crate::values`].

use crate::layout::*;
use crate::values::{MAX_BYTES, pack, unpack};
use crate::{BLOCK, BlockRef, Form, FormatError, MapValue, Result, Slot, align_up};

const MAGIC: u32 = u32::from_le_bytes(*b"FBMN");
/// Highest level of a node; seven levels of 256 entries cover [`MAX_BLOCKS`].
pub const MAX_LEVEL: u8 = 6;
/// Maximum number of blocks of a disk: 2^64 bytes.
pub const MAX_BLOCKS: u64 = 1 << 52;
/// Number of entries of a node.
pub const FANOUT: usize = 256;
const FULL: u8 = 1;
const _: () = assert!(32 + FANOUT * (1 + MAX_BYTES) <= BLOCK, "any node fits a block");
const SPARSE: u8 = 2;

layout!(map_node, "map node", 32, {
    MAGIC @ 0, 4, "`FBMN`";
    LEVEL @ 4, 1, "0 leaf; else levels above the leaves";
    KIND @ 5, 1, "1 full: 256 values follow; 2 sparse: as many keys, then values";
    COUNT @ 6, 2, "places listed";
    INDEX @ 8, 8, "number of this node in its level: first block >> 8 * (level + 1)";
    BASE @ 16, 12, "of a sparse node: its base, as a block reference, or a hole";
});

/// The entries listed in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEntries {
    /// The node lists all 256 entries.
    Full(Vec<MapValue>),
    /// The node lists some entries, in ascending order; all other entries are those of the base.
    Sparse {
        /// The node that has the other entries: a full node, or a sparse node without a base. `None` if the
        /// other entries are holes.
        base: Option<BlockRef>,
        /// Index and value of each listed entry.
        places: Vec<(u8, MapValue)>,
    },
}

/// A node of a block map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapNode {
    /// Level of the node; 0 for a leaf.
    pub level: u8,
    /// Number of this node in its level.
    pub index: u64,
    /// Entries of the node.
    pub entries: NodeEntries,
}

impl MapNode {
    /// A field with a value that writers never produce, if any.
    fn bad_field(&self) -> Option<&'static str> {
        if self.level > MAX_LEVEL {
            Some("level")
        } else if self.index >= MAX_BLOCKS.div_ceil(1 << (8 * (u32::from(self.level) + 1))) {
            Some("index")
        } else {
            None
        }
    }

    /// Returns the form for storing an encoded node: it distinguishes a full node from a sparse node.
    pub fn form(encoded: &[u8]) -> Form {
        match encoded.get(map_node::KIND.start) {
            Some(&FULL) => Form::full_node(encoded.len()),
            _ => Form::raw(encoded.len()),
        }
    }

    /// Encodes the node, padded to whole slots; at most one block. The indexes of a sparse node must be
    /// ascending.
    pub fn encode(&self) -> Vec<u8> {
        use map_node as l;
        assert_eq!(self.bad_field(), None, "the encoded node would be rejected when decoded");
        let mut b = vec![0; l::SIZE];
        put_u32(&mut b, l::MAGIC, MAGIC);
        put_u8(&mut b, l::LEVEL, self.level);
        put_u64(&mut b, l::INDEX, self.index);
        match &self.entries {
            NodeEntries::Full(places) => {
                assert_eq!(places.len(), FANOUT);
                put_u8(&mut b, l::KIND, FULL);
                put_u16(&mut b, l::COUNT, FANOUT as u16);
                pack(places.iter().copied(), &mut b);
            }
            NodeEntries::Sparse { base, places } => {
                assert!(places.is_sorted_by(|a, b| a.0 < b.0));
                put_u8(&mut b, l::KIND, SPARSE);
                put_u16(&mut b, l::COUNT, places.len() as u16);
                put_bytes(&mut b, l::BASE, &base.map_or(MapValue::Hole, MapValue::At).encode());
                b.extend(places.iter().map(|(place, _)| place));
                pack(places.iter().map(|(_, value)| *value), &mut b);
            }
        }
        b.resize(align_up(b.len(), Slot::UNIT), 0);
        assert!(b.len() <= BLOCK);
        b
    }

    /// Decodes a node from its stored bytes, including padding.
    pub fn decode(b: &[u8]) -> Result<MapNode> {
        use map_node as l;
        const WHAT: &str = "map node";
        let bad = |field| FormatError::Value { what: WHAT, field };
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if get_u32(b, l::MAGIC) != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let values =
            |from: usize, count: usize| b.get(from..).and_then(|b| unpack(b, count)).ok_or(bad("values"));
        let count = get_u16(b, l::COUNT) as usize;
        if count > FANOUT {
            return Err(bad("count"));
        }
        let entries = match get_u8(b, l::KIND) {
            FULL if count == FANOUT => NodeEntries::Full(values(l::SIZE, FANOUT)?),
            SPARSE => {
                let base = match MapValue::decode(&get_array(b, l::BASE)).ok_or(bad("base"))? {
                    MapValue::Hole => None,
                    MapValue::At(r) => Some(r),
                    MapValue::Zero => return Err(bad("base")),
                };
                let keys = b.get(l::SIZE..l::SIZE + count).ok_or(FormatError::Truncated(WHAT))?;
                if !keys.is_sorted_by(|a, b| a < b) {
                    return Err(bad("keys"));
                }
                let values = values(l::SIZE + count, count)?;
                NodeEntries::Sparse { base, places: keys.iter().copied().zip(values).collect() }
            }
            _ => return Err(bad("kind")),
        };
        let node = MapNode { level: get_u8(b, l::LEVEL), index: get_u64(b, l::INDEX), entries };
        match node.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(node),
        }
    }
}
