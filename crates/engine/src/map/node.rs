//! A node in its packed form: one allocation, immutable once shared.
//!
//! Leaves are always packed, and so are all clean nodes, whatever their level. A packed node is *dense* (a
//! value for each of the 256 entries) or *sparse* (sorted keys, then values). A value takes twelve bytes on
//! the store and ten here, because the segments that a node references are close together: each is kept as a
//! 16-bit distance from `low`, and 0 means "no segment" (a hole or zeroes). A node for which 16 bits do not
//! suffice is *wide* and keeps whole segment numbers. With its key, a block of a sparse leaf takes eleven
//! bytes.
//!
//! ```text
//! dense   | value 0 | value 1 | ... | value 255 |
//! sparse  | key 0 .. key cap-1 | value 0 .. value cap-1 |      the first `count` of each are in use
//! value   | slot and form, 4 | CRC, 4 | segment - low, 2 or 4 |
//! ```

use std::sync::OnceLock;

use forebay_format::{BlockRef, FANOUT, FormatError, MapNode, MapValue, NodeEntries};
use triomphe::{Arc, ThinArc};

use super::index::{At, NodeIndex, SPARSE_MAX};

/// Bytes of a packed node without its slice: counts, length, head, allocator.
const OVERHEAD: usize = size_of::<Head>() + 16 + 8;
/// Minimum distance of `low` from the lowest segment of a node, for later references to older segments.
const LOW_MARGIN: u32 = 1 << 14;
/// Bytes of a buffer that holds any packed node: 256 keys of one byte and 256 wide values of twelve bytes. A
/// dense node has no keys, and a sparse node has fewer entries, so both are smaller.
const SCRATCH: usize = FANOUT * 13;

/// Address of a stored node; empty until the node is stored.
#[derive(Debug, Default)]
pub(super) struct Stored(OnceLock<At>);

impl Stored {
    pub(super) fn get(&self) -> Option<BlockRef> {
        self.0.get().map(|at| at.get())
    }

    pub(super) fn set(&self, at: BlockRef) {
        // Only the first address is kept: the node is identical at every address.
        let _ = self.0.set(at.into());
    }

    /// Forgets the address. Called before the content of this node changes, because the stored node at the
    /// address is then no longer equal to this node.
    pub(super) fn clear(&mut self) {
        self.0.take();
    }
}

/// The entries that a sparse leaf does not list.
#[derive(Debug, Clone)]
pub(super) enum Base {
    /// The entries that the node does not list are holes.
    None,
    /// The entries that the node does not list are those of this stored node.
    Stored(At),
    /// The entries that the node does not list are those of this node, which was not stored when it became a
    /// base.
    Mem(Node),
}

impl Base {
    /// Address of the base; `None` without a base. A base in memory must be stored by now.
    pub(super) fn stored(&self) -> Option<BlockRef> {
        match self {
            Base::None => None,
            Base::Stored(at) => Some(at.get()),
            Base::Mem(node) => Some(node.stored().expect("a base is stored before the leaves based on it")),
        }
    }
}

#[derive(Debug)]
struct Head {
    base: Base,
    stored: Stored,
    place: NodeIndex,
    low: u32,
    count: u16,
    wide: bool,
    dense: bool,
}

impl Head {
    fn width(&self) -> usize {
        if self.wide { 12 } else { 10 }
    }

    /// Offset of the values in a slice of `len` bytes.
    fn values(&self, len: usize) -> usize {
        if self.dense { 0 } else { len / (1 + self.width()) }
    }

    /// Bytes of a value, zero-padded to twelve; `None` if its segment is too far from `low`.
    fn pack(&self, value: MapValue) -> Option<[u8; 12]> {
        let [segment, slot_form, crc] = value.to_words();
        let far = match segment {
            0 => 0,
            _ if segment <= self.low => return None,
            _ => segment - self.low,
        };
        if !self.wide && far > u16::MAX.into() {
            return None;
        }
        let mut b = [0; 12];
        b[..4].copy_from_slice(&slot_form.to_le_bytes());
        b[4..8].copy_from_slice(&crc.to_le_bytes());
        b[8..].copy_from_slice(&far.to_le_bytes());
        Some(b)
    }

    fn unpack(&self, b: &[u8]) -> MapValue {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let far = if self.wide { word(8) } else { u32::from(u16::from_le_bytes([b[8], b[9]])) };
        let segment = if far == 0 { 0 } else { self.low + far };
        MapValue::from_words([segment, word(0), word(4)]).expect("packed from a map value")
    }
}

/// A packed node. Cheap to clone: all clones are one node.
#[derive(Debug, Clone)]
pub(crate) struct Node(ThinArc<Head, u8>);

impl Node {
    /// A node that lists `entries`, which are in ascending order. It has no room to grow.
    pub(super) fn build(place: NodeIndex, base: Base, entries: &[(u8, MapValue)]) -> Node {
        let holes_matter = !matches!(base, Base::None);
        let dense = entries.len() == FANOUT || (!holes_matter && entries.len() > SPARSE_MAX);
        let base = if dense { Base::None } else { base };
        let (low, wide) = reach(entries);
        let mut head = Head { base, stored: Stored::default(), place, low, count: 0, wide, dense };
        let width = head.width();
        let (values, len) =
            if dense { (0, FANOUT * width) } else { (entries.len(), entries.len() * (1 + width)) };
        let mut scratch = [0; SCRATCH];
        for (i, (key, value)) in entries.iter().enumerate() {
            let i = if dense {
                usize::from(*key)
            } else {
                scratch[i] = *key;
                i
            };
            let packed = head.pack(*value).expect("low and width were chosen for these entries");
            scratch[values + i * width..][..width].copy_from_slice(&packed[..width]);
        }
        head.count = if dense { FANOUT } else { entries.len() } as u16;
        Node::alloc(head, &scratch[..len])
    }

    /// A dense leaf with the same value in all entries.
    pub(super) fn uniform(place: NodeIndex, value: MapValue) -> Node {
        let entries: Vec<_> = (0..=u8::MAX).map(|p| (p, value)).collect();
        Node::build(place, Base::None, &entries)
    }

    fn alloc(head: Head, slice: &[u8]) -> Node {
        Node(ThinArc::from_header_and_slice(head, slice))
    }

    /// Packs a decoded node; rejects nodes that no writer produces.
    pub(crate) fn from_format(node: MapNode) -> Result<Node, FormatError> {
        let bad = |field| FormatError::Value { what: "map node", field };
        let place = NodeIndex::checked(node.level, node.index).ok_or(bad("index"))?;
        Ok(match node.entries {
            NodeEntries::Full(values) => {
                let entries: Vec<_> = (0..=u8::MAX).zip(values).collect();
                Node::build(place, Base::None, &entries)
            }
            NodeEntries::Sparse { places, .. } if places.len() > SPARSE_MAX => return Err(bad("count")),
            NodeEntries::Sparse { base: Some(_), .. } if place.level() > 0 => return Err(bad("base")),
            NodeEntries::Sparse { base, places } => {
                Node::build(place, base.map_or(Base::None, |at| Base::Stored(at.into())), &places)
            }
        })
    }

    /// The node in its stored layout. A base in memory must be stored by now.
    pub(super) fn to_format(&self) -> MapNode {
        let head = self.head();
        let entries = match head.base.stored() {
            None => entries_without_base(self.iter()),
            base => NodeEntries::Sparse { base, places: self.iter().collect() },
        };
        MapNode { level: head.place.level(), index: head.place.index(), entries }
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }
    pub(super) fn index(&self) -> NodeIndex {
        self.head().place
    }
    pub(super) fn base(&self) -> &Base {
        &self.head().base
    }
    /// Whether a base provides the entries that the node does not list.
    pub(super) fn has_base(&self) -> bool {
        !matches!(self.head().base, Base::None)
    }
    /// Number of entries that the node lists.
    pub(super) fn count(&self) -> usize {
        self.head().count.into()
    }
    /// Address of the node, if it is stored.
    pub(crate) fn stored(&self) -> Option<BlockRef> {
        self.head().stored.get()
    }
    /// Sets the address of the node. Only the first call has an effect.
    pub(crate) fn set_stored(&self, at: BlockRef) {
        self.head().stored.set(at);
    }
    /// Bytes that the node takes in memory, including the allocator's overhead.
    pub(crate) fn bytes(&self) -> usize {
        (OVERHEAD + self.0.slice.len() + 15) & !15
    }
    /// Whether the holder of a mutable borrow may change the node in place.
    pub(super) fn is_changeable(&self) -> bool {
        ThinArc::strong_count(&self.0) == 1 && self.stored().is_none()
    }
    /// Identity of the node, to distinguish shared nodes from equal nodes.
    pub(super) fn ptr(&self) -> *const u8 {
        std::ptr::from_ref(self.head()).cast()
    }

    /// The node's own entry at `place`; `None` if the base determines the entry.
    pub(super) fn own(&self, place: u8) -> Option<MapValue> {
        let (head, slice) = (self.head(), &self.0.slice);
        let i = if head.dense { place.into() } else { find(&slice[..head.count.into()], place).ok()? };
        Some(head.unpack(&slice[head.values(slice.len()) + i * head.width()..][..head.width()]))
    }

    /// Returns the entries that the node lists, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, MapValue)> + '_ {
        self.listed(0)
    }

    /// Returns the listed entries from `first` on, in ascending order.
    pub(super) fn listed(&self, first: u8) -> impl Iterator<Item = (u8, MapValue)> + '_ {
        let (head, slice) = (self.head(), &self.0.slice);
        let count = self.count();
        let start = match first {
            _ if head.dense => first.into(),
            0 => 0,
            _ => find(&slice[..count], first).unwrap_or_else(|i| i),
        };
        let width = head.width();
        let values = slice[head.values(slice.len()) + start * width..].chunks_exact(width);
        let key = |i: usize| if head.dense { i as u8 } else { slice[i] };
        (start..count).zip(values).map(move |(i, b)| (key(i), head.unpack(b)))
    }

    /// Sets an entry: in place if the node has no other holder and is not stored, otherwise in a copy that
    /// replaces `self`. Without a base, a hole occupies no space.
    pub(super) fn set(&mut self, place: u8, value: MapValue) {
        if !self.set_here(place, value) {
            *self = self.with(place, value);
        }
    }

    /// Changes the node in place; returns `false` if it is shared, stored or full, or if `value` cannot be
    /// packed.
    fn set_here(&mut self, place: u8, value: MapValue) -> bool {
        self.0.with_arc_mut(|arc| {
            let Some(node) = Arc::get_mut(arc) else { return false };
            let len = node.length();
            let head = &mut node.header_mut();
            let Some(packed) = head.pack(value).filter(|_| head.stored.get().is_none()) else { return false };
            let (width, count, values, dense) =
                (head.width(), head.count as usize, head.values(len), head.dense);
            let absent = value == MapValue::Hole && matches!(head.base, Base::None);
            let found = if dense { Ok(place.into()) } else { find(&node.slice()[..count], place) };
            let at = |i: usize| values + i * width;
            let (i, now) = match found {
                Ok(i) if absent && !dense => (i, count - 1),
                Ok(i) => {
                    node.slice_mut()[at(i)..][..width].copy_from_slice(&packed[..width]);
                    return true;
                }
                Err(_) if absent => return true,
                Err(_) if count == values || count == SPARSE_MAX => return false,
                Err(i) => (i, count + 1),
            };
            let slice = node.slice_mut();
            if now > count {
                slice.copy_within(i..count, i + 1);
                slice.copy_within(at(i)..at(count), at(i + 1));
                slice[i] = place;
                slice[at(i)..][..width].copy_from_slice(&packed[..width]);
            } else {
                slice.copy_within(i + 1..count, i);
                slice.copy_within(at(i + 1)..at(count), at(i));
            }
            node.header_mut().count = now as u16;
            true
        })
    }

    /// A copy with one entry changed, and a little room to grow.
    pub(super) fn with(&self, place: u8, value: MapValue) -> Node {
        let (old, from) = (self.head(), &self.0.slice);
        let absent = value == MapValue::Hole && !self.has_base();
        let packed = match old.pack(value) {
            Some(packed) if !old.dense && self.count() < SPARSE_MAX && !absent => packed,
            _ => return self.rebuilt(place, value),
        };
        let (i, skip) = match find(&from[..self.count()], place) {
            Ok(i) => (i, 1),
            Err(i) => (i, 0),
        };
        let (count, width) = (self.count(), old.width());
        let now = count + 1 - skip;
        let values = capacity(now, width);
        let (old_values, at) = (old.values(from.len()), |i: usize| values + i * width);
        let mut scratch = [0; SCRATCH];
        scratch[..i].copy_from_slice(&from[..i]);
        scratch[i] = place;
        scratch[i + 1..now].copy_from_slice(&from[i + skip..count]);
        scratch[values..at(i)].copy_from_slice(&from[old_values..][..i * width]);
        scratch[at(i)..at(i + 1)].copy_from_slice(&packed[..width]);
        let rest = &from[old_values + (i + skip) * width..old_values + count * width];
        scratch[at(i + 1)..at(now)].copy_from_slice(rest);
        let stored = Stored::default();
        let head = Head { base: old.base.clone(), stored, count: now as u16, ..*old };
        Node::alloc(head, &scratch[..values * (1 + width)])
    }

    /// Works like [`Node::with`], but slower: unpacks all values, and chooses the form again.
    fn rebuilt(&self, place: u8, value: MapValue) -> Node {
        let mut entries: Vec<_> = self.iter().collect();
        match entries.binary_search_by_key(&place, |e| e.0) {
            Ok(i) => entries[i].1 = value,
            Err(i) => entries.insert(i, (place, value)),
        }
        if !self.has_base() && entries.len() < FANOUT {
            entries.retain(|(_, v)| *v != MapValue::Hole);
        }
        Node::build(self.index(), self.base().clone(), &entries)
    }

    /// Returns this node with a different representation of its base, which has been stored since.
    pub(super) fn on(&self, base: Base) -> Node {
        let old = self.head();
        Node::alloc(Head { base, stored: Stored::default(), ..*old }, &self.0.slice)
    }

    /// Replaces the base in place; `false` if the node has another holder.
    pub(super) fn set_base(&mut self, base: Base) -> bool {
        self.0.with_arc_mut(|arc| match Arc::get_mut(arc) {
            Some(node) => {
                node.header_mut().base = base;
                true
            }
            None => false,
        })
    }

    /// Merges the node with its base into a node without a base.
    pub(super) fn merged(&self, base: &Node) -> Node {
        let mut values = [MapValue::Hole; FANOUT];
        base.iter().for_each(|(p, v)| values[usize::from(p)] = v);
        self.laid_over(values)
    }

    /// Merges the node with a base in which every entry is `value`.
    pub(super) fn over(&self, value: MapValue) -> Node {
        self.laid_over([value; FANOUT])
    }

    fn laid_over(&self, mut values: [MapValue; FANOUT]) -> Node {
        self.iter().for_each(|(p, v)| values[usize::from(p)] = v);
        let entries: Vec<_> = (0..=u8::MAX).zip(values).filter(|(_, v)| *v != MapValue::Hole).collect();
        Node::build(self.index(), Base::None, &entries)
    }
}

/// Chooses the shorter of the two layouts for a node without a base.
pub(super) fn entries_without_base(places: impl Iterator<Item = (u8, MapValue)>) -> NodeEntries {
    let places: Vec<_> = places.filter(|(_, v)| *v != MapValue::Hole).collect();
    if places.len() <= SPARSE_MAX {
        return NodeEntries::Sparse { base: None, places };
    }
    let mut values = vec![MapValue::Hole; FANOUT];
    places.into_iter().for_each(|(p, v)| values[usize::from(p)] = v);
    NodeEntries::Full(values)
}

/// The index of `key` in sorted `keys`, or its insertion index. Counts without branches, many keys at a time.
fn find(keys: &[u8], key: u8) -> Result<usize, usize> {
    debug_assert!(keys.len() <= SPARSE_MAX);
    let below = keys.iter().map(|k| u8::from(*k < key)).sum::<u8>().into();
    if keys.get(below) == Some(&key) { Ok(below) } else { Err(below) }
}

/// Chooses `low` for these entries, and whether they need whole segment numbers.
fn reach(entries: &[(u8, MapValue)]) -> (u32, bool) {
    let segments = || entries.iter().map(|(_, v)| v.to_words()[0]).filter(|s| *s != 0);
    let (Some(min), Some(max)) = (segments().min(), segments().max()) else { return (0, false) };
    let roomy = (min - 1).saturating_sub(LOW_MARGIN);
    let fits = |low: u32| max - low <= u16::MAX.into();
    match (fits(roomy), fits(min - 1)) {
        (true, _) => (roomy, false),
        (false, true) => (min - 1, false),
        (false, false) => (0, true),
    }
}

/// Capacity for at least `count` entries: uses what the allocator rounds up, in steps of 32 bytes.
fn capacity(count: usize, width: usize) -> usize {
    let bytes = (OVERHEAD + count * (1 + width)).next_multiple_of(32) - OVERHEAD;
    (bytes / (1 + width)).min(SPARSE_MAX)
}
