//! The class map: a compact map from the blocks of a disk to their classes.
//!
//! The map is a list of runs of blocks of one class. A run is a word: the number of its first block in the
//! high bits, and the number of the class in the low bits. Runs cover the whole disk and adjacent runs have
//! different classes, so a run ends where the next one starts, and a look-up is a binary search.

mod builder;
mod encode;

use std::ops::Range;

pub(crate) use builder::Builder;
pub use encode::DecodeError;
#[cfg(feature = "fuzzing")]
pub(crate) use encode::seal;

use crate::class::{BLOCK, Class};

const CLASS_BITS: u32 = 3;
/// Maximum number of blocks, larger than any disk. It ensures that a run fits in a word and that sums of
/// lengths do not overflow.
pub const MAX_BLOCKS: u64 = 1 << 51;

/// The class of each block of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMap {
    blocks: u64,
    /// Runs of blocks. The first run starts at 0; the list is empty only if `blocks` is 0.
    runs: Vec<u64>,
}

fn start(run: u64) -> u64 {
    run >> CLASS_BITS
}

fn class(run: u64) -> Class {
    Class::from_number((run & ((1 << CLASS_BITS) - 1)) as u8).unwrap_or(Class::Other)
}

impl ClassMap {
    /// Creates a map in which all blocks are [`Class::Other`].
    pub fn new(blocks: u64) -> ClassMap {
        let mut map = ClassMap::empty();
        map.push(blocks, Class::Other);
        map
    }

    fn empty() -> ClassMap {
        ClassMap { blocks: 0, runs: Vec::new() }
    }

    /// Appends `len` blocks, up to [`MAX_BLOCKS`].
    fn push(&mut self, len: u64, of: Class) {
        let len = len.min(MAX_BLOCKS - self.blocks);
        if len != 0 && self.runs.last().is_none_or(|last| class(*last) != of) {
            self.runs.push(self.blocks << CLASS_BITS | of as u64);
        }
        self.blocks += len;
    }

    /// Creates a map of `blocks` blocks from disjoint ranges in ascending order. Blocks between them are
    /// `Other`. The part of a range that overlaps an earlier range or the end of the disk is ignored.
    pub fn from_ranges(blocks: u64, ranges: impl IntoIterator<Item = (Range<u64>, Class)>) -> ClassMap {
        let blocks = blocks.min(MAX_BLOCKS);
        let mut map = ClassMap::empty();
        for (range, class) in ranges {
            let (start, end) = (range.start.clamp(map.blocks, blocks), range.end.min(blocks));
            if start < end {
                map.push(start - map.blocks, Class::Other);
                map.push(end - start, class);
            }
        }
        map.push(blocks - map.blocks, Class::Other);
        map
    }

    /// Number of blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of runs, which use 8 bytes each.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether the disk has no blocks.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the class of a block; `Other` beyond the end of the disk.
    pub fn class_of(&self, block: u64) -> Class {
        if block >= self.blocks {
            return Class::Other;
        }
        let after = self.runs.partition_point(|run| start(*run) <= block);
        after.checked_sub(1).map_or(Class::Other, |i| class(self.runs[i]))
    }

    /// Returns all runs in ascending order. They cover the disk, and adjacent runs have different classes.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, Class)> + '_ {
        self.runs_from(0)
    }

    fn runs_from(&self, first: usize) -> impl Iterator<Item = (Range<u64>, Class)> + '_ {
        self.runs[first..].iter().enumerate().map(move |(i, run)| {
            let end = self.runs.get(first + i + 1).map_or(self.blocks, |next| start(*next));
            (start(*run)..end, class(*run))
        })
    }

    /// Returns the runs of a range of blocks, clipped to the range. The cost is a binary search plus the
    /// returned runs.
    pub fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Class)> + '_ {
        let first = self.runs.partition_point(|run| start(*run) <= range.start).saturating_sub(1);
        let cut = move |(r, c): (Range<u64>, Class)| (r.start.max(range.start)..r.end.min(range.end), c);
        self.runs_from(first).map(cut).skip_while(|(r, _)| r.is_empty()).take_while(|(r, _)| !r.is_empty())
    }

    /// Returns the bytes of each class, indexed by its number.
    pub fn bytes_per_class(&self) -> [u64; Class::COUNT] {
        let mut bytes = [0; Class::COUNT];
        self.runs().for_each(|(range, class)| bytes[class as usize] += (range.end - range.start) * BLOCK);
        bytes
    }

    /// Reduces the map to at most `max` runs: the shortest runs become `Other`, which is always valid.
    pub(crate) fn limit(self, max: usize) -> ClassMap {
        let mut map = self;
        let mut too_short = 2;
        while map.runs.len() > max.max(1) {
            // The runs are changed in place, because there can be many. A run is always read before it is
            // overwritten.
            let (mut kept, mut last) = (0, None);
            for i in 0..map.runs.len() {
                let (first, next) = (start(map.runs[i]), map.runs.get(i + 1));
                let len = next.map_or(map.blocks, |next| start(*next)) - first;
                let class = if len < too_short { Class::Other } else { class(map.runs[i]) };
                if last != Some(class) {
                    map.runs[kept] = first << CLASS_BITS | class as u64;
                    (kept, last) = (kept + 1, Some(class));
                }
            }
            map.runs.truncate(kept);
            too_short *= 2;
        }
        map.runs.shrink_to_fit();
        map
    }
}
