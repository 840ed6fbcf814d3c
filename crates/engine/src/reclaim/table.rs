//! Counts of slots, as one encoded record for each segment.
//!
//! A record lists the slots with a count above zero, in order. Each slot is stored as its distance from the
//! previous slot, which takes a byte or two for a slot that is referenced once. A count other than one
//! follows its slot.
//!
//! ```text
//! slot     | distance from the slot before, less one; lowest bit: a count follows | count | value |
//! ```
//!
//! A table of nodes has a value for each slot: the number of blocks below the node.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_format::{BlobRef, SegmentId, Slot};

use super::deltas::Delta;
use super::scratch::Scratch;
use super::varint::{Reading, put_varint};
use crate::{Error, Result};

/// Bytes that a record takes in addition to its encoded form: an entry of the tree, and the allocator's part.
const OVERHEAD: usize = 64;

/// A slot, with its count and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub slot: u32,
    pub count: u64,
    pub value: u64,
}

#[derive(Debug)]
enum Record {
    Memory(Box<[u8]>),
    /// The record is a part of a piece of temporary data.
    Stored(BlobRef, Range<usize>),
}

/// The counts of the slots of all segments.
#[derive(Debug, Default)]
pub(super) struct Table {
    has_values: bool,
    records: BTreeMap<SegmentId, Record>,
    bytes: usize,
}

impl Table {
    pub fn with_values() -> Table {
        Table { has_values: true, ..Table::default() }
    }

    /// Bytes that the table takes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether all records are in memory. Records in temporary data are lost when the reclaim ends.
    pub fn is_in_memory(&self) -> bool {
        self.records.values().all(|record| matches!(record, Record::Memory(_)))
    }

    /// The counts of a segment, in order of their slots.
    pub async fn get(&self, segment: SegmentId, scratch: &Scratch) -> Result<Vec<Counted>> {
        let decoded = match self.records.get(&segment) {
            None => Some(Vec::new()),
            Some(Record::Memory(bytes)) => self.decode(bytes),
            Some(Record::Stored(piece, range)) => {
                scratch.read(piece).await?.get(range.clone()).and_then(|bytes| self.decode(bytes))
            }
        };
        decoded.ok_or_else(|| Error::Damaged(format!("the counts of segment {segment}")))
    }

    /// Replaces the counts of a segment.
    pub fn set(&mut self, segment: SegmentId, counts: &[Counted]) {
        let old = match counts.is_empty() {
            true => self.records.remove(&segment),
            false => {
                let bytes = self.encode(counts);
                self.bytes += bytes.len() + OVERHEAD;
                self.records.insert(segment, Record::Memory(bytes))
            }
        };
        if let Some(Record::Memory(bytes)) = old {
            self.bytes -= bytes.len() + OVERHEAD;
        }
    }

    /// Writes records to the store until the records in memory take at most `most` bytes. The records of the
    /// lowest segments are written first, since the counts are changed in order.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing has changed. Other errors end the mark.
    pub async fn spill(&mut self, most: usize, scratch: &Scratch) -> Result<()> {
        let mut chosen = Vec::new();
        let mut left = self.bytes;
        for (segment, record) in &self.records {
            let Record::Memory(bytes) = record else { continue };
            if left <= most {
                break;
            }
            chosen.push(*segment);
            left -= bytes.len() + OVERHEAD;
        }
        let (mut writer, mut ends) = (scratch.writer(), Vec::new());
        for segment in &chosen {
            if let Some(Record::Memory(bytes)) = self.records.get(segment) {
                writer.buffer().extend_from_slice(bytes);
                ends.push(bytes.len());
                writer.end_item().await?;
            }
        }
        let pieces = writer.finish().await?;
        let (mut pieces, mut at) = (pieces.into_iter(), 0);
        let mut piece = pieces.next();
        for (segment, len) in chosen.iter().zip(ends) {
            if piece.is_some_and(|p| at == p.len as usize) {
                (piece, at) = (pieces.next(), 0);
            }
            if let Some(piece) = piece {
                self.records.insert(*segment, Record::Stored(piece, at..at + len));
                at += len;
            }
        }
        self.bytes = left;
        Ok(())
    }

    fn encode(&self, counts: &[Counted]) -> Box<[u8]> {
        let (mut bytes, mut next) = (Vec::with_capacity(counts.len() * 2), 0);
        for Counted { slot, count, value } in counts {
            put_varint(&mut bytes, u64::from(slot - next) << 1 | u64::from(*count != 1));
            if *count != 1 {
                put_varint(&mut bytes, *count);
            }
            if self.has_values {
                put_varint(&mut bytes, *value);
            }
            next = slot + 1;
        }
        bytes.into_boxed_slice()
    }

    fn decode(&self, bytes: &[u8]) -> Option<Vec<Counted>> {
        let (mut bytes, mut counts, mut next) = (Reading::new(bytes), Vec::new(), 0u32);
        while bytes.left() > 0 {
            let word = bytes.varint()?;
            let slot = next.checked_add(u32::try_from(word >> 1).ok()?).filter(|slot| *slot < Slot::LIMIT)?;
            let count = if word & 1 == 0 { 1 } else { bytes.varint()? };
            let value = if self.has_values { bytes.varint()? } else { 0 };
            counts.push(Counted { slot, count, value });
            next = slot + 1;
        }
        Some(counts)
    }
}

/// Adds changes, in order of their slots, to the counts of a segment. Calls `changed` with each change and
/// the count before and after the change. Returns `None` if a count would be negative.
pub(super) fn apply(
    counts: &[Counted],
    deltas: &[Delta],
    mut changed: impl FnMut(&Delta, u64, u64),
) -> Option<Vec<Counted>> {
    let mut result = Vec::with_capacity(counts.len() + deltas.len());
    let mut old = counts.iter().copied().peekable();
    for delta in deltas {
        let slot = delta.at.addr.slot.0;
        while let Some(before) = old.next_if(|c| c.slot < slot) {
            result.push(before);
        }
        let before = old.next_if(|c| c.slot == slot).unwrap_or(Counted { slot, count: 0, value: 0 });
        let count = before.count.checked_add_signed(delta.by)?;
        changed(delta, before.count, count);
        if count > 0 {
            result.push(Counted { count, ..before });
        }
    }
    result.extend(old);
    Some(result)
}

#[cfg(test)]
mod tests {
    use forebay_format::{Address, BlockRef, Form};

    use super::*;

    fn delta(slot: u32, by: i64) -> Delta {
        let addr = Address { segment: SegmentId(1), slot: Slot(slot) };
        let at = BlockRef { addr, form: Form::RAW_BLOCK, crc: 0 };
        Delta { at, by, index: 0, is_block: true, of_image: false }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let counts =
            [(0, 1, 0), (1, 7, 1), (64, 1, 256), (70_000, 1 << 40, 1 << 35), (Slot::LIMIT - 1, 1, 0)];
        let counts: Vec<_> = counts.map(|(slot, count, value)| Counted { slot, count, value }).into();
        let table = Table::with_values();
        assert_eq!(table.decode(&table.encode(&counts)), Some(counts.clone()));
        let plain: Vec<_> = counts.iter().map(|c| Counted { value: 0, ..*c }).collect();
        let table = Table::default();
        assert_eq!(table.decode(&table.encode(&counts)), Some(plain));
    }

    #[test]
    fn a_raw_block_takes_one_byte() {
        let counts: Vec<_> = (0..100).map(|i| Counted { slot: i * 64, count: 1, value: 0 }).collect();
        assert_eq!(Table::default().encode(&counts).len(), 100);
    }

    #[test]
    fn changes_are_added_and_empty_counts_removed() {
        let counts = [(3, 1), (5, 2), (9, 1)].map(|(slot, count)| Counted { slot, count, value: 0 });
        let mut seen = Vec::new();
        let deltas = [delta(1, 2), delta(3, -1), delta(5, 1), delta(12, 1)];
        let sum = apply(&counts, &deltas, |d, before, after| seen.push((d.at.addr.slot.0, before, after)));
        let sum: Vec<_> = sum.unwrap().iter().map(|c| (c.slot, c.count)).collect();
        assert_eq!(sum, [(1, 2), (5, 3), (9, 1), (12, 1)]);
        assert_eq!(seen, [(1, 0, 2), (3, 1, 0), (5, 2, 3), (12, 0, 1)]);
        assert!(apply(&counts, &[delta(4, -1)], |_, _, _| ()).is_none());
        assert!(apply(&counts, &[delta(5, -3)], |_, _, _| ()).is_none());
    }
}
