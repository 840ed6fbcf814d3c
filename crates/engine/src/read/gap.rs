//! The parts of a read: its mode, what was found in RAM, and the blocks that have to be read from the store.

use std::ops::Range;

use forebay_format::{BLOCK, BlockRef};

use crate::buffer::copy_sectors;

/// How a disk is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// The read succeeds only if all of it is in RAM.
    CachedOnly,
    /// The read waits for the store if necessary.
    Wait,
    /// As `Wait`, for reads by the pool itself: they have no effect on the read cache, the counters and the
    /// recordings of boots.
    Internal,
    /// As `Internal`, for reads of whole disks: they wait for their share of the store next to the reads of
    /// guests.
    Background,
}

impl ReadMode {
    /// Whether the read has no effect on the read cache, the counters and the recordings of boots.
    pub fn is_internal(self) -> bool {
        matches!(self, ReadMode::Internal | ReadMode::Background)
    }
}

/// Where a read found its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// All blocks of the read were in RAM.
    Ram,
    /// Some blocks were being read by other readers, for which this read waited.
    OtherReads,
    /// Some blocks of the read came from the store.
    Store,
}

/// What a read has found so far.
#[derive(Default)]
pub(crate) struct Gathered {
    /// The blocks that are not in RAM.
    pub gaps: Vec<Gap>,
    /// Some bytes are from the write buffers, so the commit of these bytes has not ended.
    pub is_uncommitted: bool,
}

/// Result of a read that is complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub origin: Origin,
    /// See [`Gathered::is_uncommitted`].
    pub is_uncommitted: bool,
}

/// A part of a read that has to be read from the store.
pub(crate) struct Gap {
    /// Logical number of the block.
    pub block: u64,
    /// Offset of the block's bytes in the reader's buffer.
    pub at: usize,
    /// The requested bytes of the block.
    pub within: Range<usize>,
    /// Mask of the sectors that were already filled from the write buffer.
    pub have: u8,
    /// Where the block is stored.
    pub target: BlockRef,
}

impl Gap {
    /// Copies the block into the reader's buffer.
    pub fn fill(&self, content: &[u8; BLOCK], out: &mut [u8]) {
        let out = &mut out[self.at..self.at + self.within.len()];
        copy_sectors(content, !self.have, &self.within, out);
    }
}
