//! Map values as a node lists them, in about half the bytes that they take one by one.
//!
//! Most blocks lie on the store in the order in which a disk has them, one right behind the other. So of most only
//! form and checksum are listed. Each value begins with one byte:
//!
//! | byte | the value | follows |
//! |---|---|---|
//! | up to 0xbf | a block in this form, right behind the one that was listed last | checksum |
//! | 0xc0 | a hole | |
//! | 0xc1 | allocated zeroes | |
//! | 0xc2 | a block in the segment of the last one | slot (3 bytes), form, checksum |
//! | 0xc3 | a block anywhere | segment, slot (3 bytes), form, checksum |
//!
//! No form is above 0xbf: its top two bits are the codec, of which there are three.

use crate::{Address, BlockRef, Form, MapValue, SegmentId, Slot};

const HOLE: u8 = 0xc0;
const ZERO: u8 = 0xc1;
const IN_SEGMENT: u8 = 0xc2;
const ANYWHERE: u8 = 0xc3;

/// Most bytes of a value.
pub(crate) const MAX_BYTES: usize = 13;

/// Where a block would lie that is right behind `last`.
fn behind(last: &BlockRef) -> Address {
    let slot = last.addr.slot.0 + (last.form.stored_len() / Slot::UNIT) as u32;
    Address { slot: Slot(slot), ..last.addr }
}

/// Lists values.
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
        assert!(segment.0 != 0 && slot.0 < Slot::LIMIT, "it could not be read back");
        if last.is_none_or(|last| behind(&last) != at.addr) {
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

/// Reads `count` values from the front of `bytes`; `None` where no writer lists them so.
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
            form => (behind(&last?), Form(form)),
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
    fn blocks_in_a_row_take_five_bytes_each() {
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
    fn any_values_come_back() {
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
    fn what_no_writer_lists_is_refused() {
        for bytes in [
            // The first has none before it.
            &[0x3f, 1, 2, 3, 4][..],
            &[IN_SEGMENT, 0, 0, 0, 0, 1, 2, 3, 4],
            // Segment 0, and a form of no codec.
            &[ANYWHERE, 0, 0, 0, 0, 0, 0, 0, 0x3f, 1, 2, 3, 4],
            &[ANYWHERE, 1, 0, 0, 0, 0, 0, 0, 0xc0, 1, 2, 3, 4],
            // Behind the last slot there is none.
            &[ANYWHERE, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4],
            &[0xc4],
        ] {
            assert_eq!(unpack(bytes, bytes.len().div_ceil(13)), None, "{bytes:?}");
        }
    }
}
