//! Relocation maps: the new locations of the slots of a moved segment, and their storage forms.
//!
//! A moved block keeps its address, and all references to it remain unchanged. A reader looks up the slots of
//! a moved segment here. A slot that is not listed was not referenced any more, and is deleted.

use crate::checksum::crc32c;
use crate::layout::*;
use crate::{
    BLOCK, Codec, Fingerprint, Form, FormatError, GroupHeader, MAX_SEGMENT, Result, SegmentId, Slot, SlotKind,
};

pub(crate) const MAGIC: &[u8; 8] = b"FBRELOCM";
const WHAT: &str = "relocation map";

/// Maximum number of slot units of a group.
const GROUP_UNITS: u32 = (GroupHeader::SIZE + GroupHeader::MAX_MEMBERS * BLOCK).div_ceil(Slot::UNIT) as u32;

layout!(relocation_map, "relocation map", 32, {
    MAGIC @ 0, 8, "`FBRELOCM`";
    SEGMENT @ 8, 4, "the segment whose slots are listed";
    CONTAINER @ 12, 4, "the segment in which they rest, and this map";
    COUNT @ 16, 4, "entries, which follow, by ascending slot";
    CRC @ 20, 4, "CRC-32C of the entries";
});
layout!(relocation, "relocation map entry", 40, {
    SLOT @ 0, 4, "slot in the segment";
    FORM @ 4, 1, "form that references to it have";
    KIND @ 5, 1, "1 block, 2 map node";
    PLACE_FORM @ 6, 1, "form in which it is stored now";
    CRC @ 8, 4, "CRC-32C of the plain content";
    PLACE @ 12, 4, "slot in the container: of its bytes or of its group";
    UNITS @ 16, 4, "stored length there, in slot units: of its bytes or of its group";
    FINGERPRINT @ 24, 16, "fingerprint; zero where none was made";
});

/// A slot of a moved segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// Slot in the moved segment.
    pub slot: Slot,
    /// Form that references to the slot state.
    pub form: Form,
    /// Kind of the slot's contents.
    pub kind: SlotKind,
    /// CRC-32C of the slot's plain contents.
    pub crc: u32,
    /// Fingerprint of the contents; zeroes if they have none.
    pub fingerprint: Fingerprint,
    /// Slot of the bytes in the container; for a member of a group, the first slot of the group.
    pub place: Slot,
    /// Form in which the bytes are stored in the container.
    pub place_form: Form,
    /// Stored length in the container, in slot units; for a member of a group, the length of the group.
    pub units: u32,
}

/// The new locations of the slots of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelocationMap {
    /// The segment that was moved.
    pub segment: SegmentId,
    /// The segment whose object contains the moved slots.
    pub container: SegmentId,
    /// Moved slots of the segment, in ascending order.
    pub entries: Vec<Relocation>,
}

impl Relocation {
    fn bad_field(&self) -> Option<&'static str> {
        let units = match self.place_form.codec() {
            // At most the raw size of its blocks, which bounds the bytes that a reader fetches for one block.
            Some(Codec::ZstdGroup) => self.units.min(GROUP_UNITS),
            Some(Codec::Raw | Codec::Lz4) => (self.place_form.stored_len() / Slot::UNIT) as u32,
            None => return Some("place_form"),
        };
        if !self.form.fits(self.slot, MAX_SEGMENT) {
            Some("slot")
        } else if u64::from(self.place.0) + u64::from(self.units) > Slot::LIMIT.into() {
            Some("place")
        } else if self.units != units || self.units == 0 {
            Some("units")
        } else {
            None
        }
    }
}

impl RelocationMap {
    /// Bytes of a map with `entries` entries.
    pub const fn encoded_len(entries: usize) -> usize {
        relocation_map::SIZE + entries * relocation::SIZE
    }

    fn bad_field(&self) -> Option<&'static str> {
        if self.segment.0 == 0 {
            Some("segment")
        } else if self.container.0 == 0 || self.container == self.segment {
            Some("container")
        } else if self.entries.is_empty() || self.entries.len() > Slot::LIMIT as usize {
            Some("count")
        } else if !self.entries.is_sorted_by(|a, b| a.slot < b.slot) {
            Some("slot")
        } else {
            self.entries.iter().find_map(Relocation::bad_field)
        }
    }

    /// Encodes the relocation map.
    pub fn encode(&self) -> Vec<u8> {
        use {relocation as r, relocation_map as l};
        assert_eq!(self.bad_field(), None, "the encoded map would be rejected when decoded");
        let mut b = vec![0; Self::encoded_len(self.entries.len())];
        for (e, at) in self.entries.iter().zip(b[l::SIZE..].chunks_exact_mut(r::SIZE)) {
            put_u32(at, r::SLOT, e.slot.0);
            put_u8(at, r::FORM, e.form.0);
            put_u8(at, r::KIND, e.kind as u8);
            put_u8(at, r::PLACE_FORM, e.place_form.0);
            put_u32(at, r::CRC, e.crc);
            put_u32(at, r::PLACE, e.place.0);
            put_u32(at, r::UNITS, e.units);
            put_bytes(at, r::FINGERPRINT, &e.fingerprint.0);
        }
        let crc = crc32c(&b[l::SIZE..]);
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u32(&mut b, l::SEGMENT, self.segment.0);
        put_u32(&mut b, l::CONTAINER, self.container.0);
        put_u32(&mut b, l::COUNT, self.entries.len() as u32);
        put_u32(&mut b, l::CRC, crc);
        b
    }

    /// Decodes the map of `segment` read from `container`.
    pub fn decode(b: &[u8], segment: SegmentId, container: SegmentId) -> Result<RelocationMap> {
        use {relocation as r, relocation_map as l};
        let bad = |field| FormatError::Value { what: WHAT, field };
        let (head, entries) = b.split_at_checked(l::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        if &head[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if entries.len() != get_u32(head, l::COUNT) as usize * r::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if crc32c(entries) != get_u32(head, l::CRC) {
            return Err(FormatError::Checksum(WHAT));
        }
        let named = (SegmentId(get_u32(head, l::SEGMENT)), SegmentId(get_u32(head, l::CONTAINER)));
        if named != (segment, container) {
            return Err(FormatError::Foreign { what: WHAT, field: "segment" });
        }
        let entry = |at: &[u8]| {
            Ok(Relocation {
                slot: Slot(get_u32(at, r::SLOT)),
                form: Form(get_u8(at, r::FORM)),
                kind: SlotKind::decode(get_u8(at, r::KIND)).ok_or(bad("kind"))?,
                crc: get_u32(at, r::CRC),
                fingerprint: Fingerprint(get_array(at, r::FINGERPRINT)),
                place: Slot(get_u32(at, r::PLACE)),
                place_form: Form(get_u8(at, r::PLACE_FORM)),
                units: get_u32(at, r::UNITS),
            })
        };
        let entries = entries.chunks_exact(r::SIZE).map(entry).collect::<Result<Vec<_>>>()?;
        let map = RelocationMap { segment, container, entries };
        match map.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(map),
        }
    }
}
