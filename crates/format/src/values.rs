//! Map values in a node, encoded in about half of the bytes that they need individually.
//!
//! Most blocks are stored in the order of their logical block numbers, one directly after the other. So most
//! values consist only of form and checksum. Each value begins with one byte:
//!
//! | byte | value | followed by |
//! |---|---|---|
//! | up to 0xbf | a block in this form, directly after the previous block | checksum |
//! | 0xc0 | a hole | |
//! | 0xc1 | allocated zeroes | |
//! | 0xc2 | a block in the segment of the previous block | slot (3 bytes), form, checksum |
//! | 0xc3 | a block anywhere | segment, slot (3 bytes), form, checksum |
//!
//! No form exceeds 0xbf: its top two bits are the codec, and there are three codecs.

use crate::{Address, BlockRef, Form, MapValue, SegmentId, Slot};

const HOLE: u8 = 0xc0;
const ZERO: u8 = 0xc1;
const IN_SEGMENT: u8 = 0xc2;
const ANYWHERE: u8 = 0xc3;

/// Maximum length of the encoding of a value, in bytes.
pub(crate) const MAX_BYTES: usize = 13;

/// Returns the address that directly follows the block `last`.
fn address_after(last: &BlockRef) -> Address {
    let slot = last.addr.slot.0 + (last.form.stored_len() / Slot::UNIT) as u32;
    Address { slot: Slot(slot), ..last.addr }
}

/// Encodes values of a map node.
pub(crate) fn pack(values: impl Iterator<Item = MapValue>, out: &mut Vec<u8>) {
    let mut last: Option<BlockRef> = None;
    for value in values {
        let at = match value {
            MapValue::Hole => {
                out.push(HOLE);
                continue;
            }
            MapValue::Zero => {
                out.push(ZERO);
                continue;
            }
            MapValue::At(at) => at,
        };
        let Address { segment, slot } = at.addr;
        assert!(segment.0 != 0 && slot.0 < Slot::LIMIT, "the encoded value would be rejected when decoded");
        if last.is_none_or(|last| address_after(&last) != at.addr) {
            if last.is_some_and(|last| last.addr.segment == segment) {
                out.push(IN_SEGMENT);
            } else {
                out.push(ANYWHERE);
                out.extend(segment.0.to_le_bytes());
            }
            out.extend_from_slice(&slot.0.to_le_bytes()[..3]);
        }
        out.push(at.form.0);
        out.extend(at.crc.to_le_bytes());
        last = Some(at);
    }
}

/// Decodes `count` values at the front of `bytes`; `None` for bytes that [`pack`] never produces.
pub(crate) fn unpack(bytes: &[u8], count: usize) -> Option<Vec<MapValue>> {
    let mut values = Vec::with_capacity(count);
    let mut rest = bytes;
    let mut last: Option<BlockRef> = None;
    let byte = |rest: &mut &[u8]| rest.split_off_first().copied();
    for _ in 0..count {
        let tag = byte(&mut rest)?;
        let (addr, form) = match tag {
            HOLE => {
                values.push(MapValue::Hole);
                continue;
            }
            ZERO => {
                values.push(MapValue::Zero);
                continue;
            }
            IN_SEGMENT | ANYWHERE => {
                let segment = match tag {
                    ANYWHERE => SegmentId(u32::from_le_bytes(take(&mut rest)?)),
                    _ => last?.addr.segment,
                };
                let [a, b, c] = take(&mut rest)?;
                (Address { segment, slot: Slot(u32::from_le_bytes([a, b, c, 0])) }, Form(byte(&mut rest)?))
            }
            form => (address_after(&last?), Form(form)),
        };
        let valid = addr.segment.0 != 0 && addr.slot.0 < Slot::LIMIT && form.codec().is_some();
        let at = valid.then_some(BlockRef { addr, form, crc: u32::from_le_bytes(take(&mut rest)?) })?;
        values.push(MapValue::At(at));
        last = Some(at);
    }
    Some(values)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, slot: u32, form: Form) -> MapValue {
        MapValue::At(BlockRef {
            addr: Address { segment: SegmentId(segment), slot: Slot(slot) },
            form,
            crc: 7,
        })
    }

    #[test]
    fn consecutive_blocks_take_five_bytes_each() {
        let mut slot = 100;
        let values: Vec<MapValue> = (0..256)
            .map(|i| {
                let form = Form::lz4(64 + 64 * (i % 60));
                let value = at(9, slot, form);
                slot += (form.stored_len() / Slot::UNIT) as u32;
                value
            })
            .collect();
        let mut bytes = Vec::new();
        pack(values.iter().copied(), &mut bytes);
        assert_eq!(bytes.len(), 256 * 5 + 8);
        assert_eq!(unpack(&bytes, 256), Some(values));
        assert!((0..bytes.len()).all(|len| unpack(&bytes[..len], 256).is_none()));
    }

    #[test]
    fn any_values_decode_to_the_same() {
        let last = Slot::LIMIT - 1;
        let values = [
            MapValue::Zero,
            at(1, 0, Form::RAW_BLOCK),
            MapValue::Hole,
            at(1, 64, Form::raw(64)),
            at(1, 64, Form::raw(64)),
            at(u32::MAX, last, Form::RAW_BLOCK),
            at(u32::MAX, 0, Form::member(5)),
            at(2, 0, Form::lz4(1)),
        ];
        let mut bytes = Vec::new();
        pack(values.iter().copied(), &mut bytes);
        assert!(bytes.len() <= values.len() * MAX_BYTES);
        assert_eq!(unpack(&bytes, values.len()).as_deref(), Some(&values[..]));
    }

    #[test]
    fn values_that_writers_never_produce_are_refused() {
        for bytes in [
            // The first value has no previous block.
            &[0x3f, 1, 2, 3, 4][..],
            &[IN_SEGMENT, 0, 0, 0, 0, 1, 2, 3, 4],
            // Segment 0, and a form with a reserved codec.
            &[ANYWHERE, 0, 0, 0, 0, 0, 0, 0, 0x3f, 1, 2, 3, 4],
            &[ANYWHERE, 1, 0, 0, 0, 0, 0, 0, 0xc0, 1, 2, 3, 4],
            // There is no address after the last slot.
            &[ANYWHERE, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4],
            &[0xc4],
        ] {
            assert_eq!(unpack(bytes, bytes.len().div_ceil(13)), None, "{bytes:?}");
        }
    }
}
