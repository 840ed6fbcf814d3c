//! Short numbers for segments, so that an entry of the index needs few bits for its segment.
//!
//! Numbers begin at 1. The number of a freed segment is assigned again only after all entries with this
//! number were removed.

use forebay_format::SegmentId;
use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;

/// Bits of a segment's number. With segments of 64 MiB they suffice for 64 TiB; blocks of further segments
/// are not indexed.
pub(super) const NUMBER_BITS: u32 = 20;

/// Bytes for each segment: an element of the list, and an element of the map with its free buckets.
const BYTES_EACH: u64 = 8 + 20;

/// The numbers of segments; see the module documentation.
#[derive(Default)]
pub(super) struct Segments {
    numbers: HashMap<SegmentId, u32, BuildU64Hasher>,
    /// The id of the segment with each number; numbers begin with 1.
    ids: Vec<Option<SegmentId>>,
    /// Numbers to which no entries refer any more.
    free: Vec<u32>,
    /// Numbers of freed segments to which entries may still refer: freed before the present sweep, and freed
    /// since it began.
    sweeping: Vec<u32>,
    freed: Vec<u32>,
}

impl Segments {
    /// Returns the number of a segment; a segment without a number gets a free number. `None` if all numbers
    /// are in use.
    pub fn number(&mut self, segment: SegmentId) -> Option<u32> {
        if let Some(number) = self.numbers.get(&segment) {
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.ids.len() + 1 < 1 << NUMBER_BITS => {
                self.ids.push(None);
                self.ids.len() as u32
            }
            None => return None,
        };
        self.ids[number as usize - 1] = Some(segment);
        self.numbers.insert(segment, number);
        Some(number)
    }

    /// Returns the number of a segment, if it has a number.
    pub fn known(&self, segment: SegmentId) -> Option<u32> {
        self.numbers.get(&segment).copied()
    }

    /// The segment with a number; `None` if it was freed.
    pub fn get(&self, number: u32) -> Option<SegmentId> {
        self.ids.get((number as usize).checked_sub(1)?).copied().flatten()
    }

    /// Records that a segment was freed.
    pub fn remove(&mut self, segment: SegmentId) {
        if let Some(number) = self.numbers.remove(&segment) {
            self.ids[number as usize - 1] = None;
            self.freed.push(number);
        }
    }

    /// Whether a sweep would find entries of freed segments.
    pub fn any_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Records that a sweep of all entries begins.
    pub fn begin_sweep(&mut self) {
        self.sweeping.append(&mut self.freed);
    }

    /// Records that the sweep has removed the entries of all segments that were freed before it began.
    pub fn end_sweep(&mut self) {
        self.free.append(&mut self.sweeping);
    }

    pub fn bytes(&self) -> u64 {
        self.ids.len() as u64 * BYTES_EACH
    }
}
