//! From a range of bytes to blocks.

use std::ops::Range;

use forebay_format::BLOCK;

/// The blocks that a byte range overlaps; an empty range overlaps none.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    let first = offset / BLOCK as u64;
    first..if len == 0 { first } else { (offset + len).div_ceil(BLOCK as u64) }
}

/// The blocks that a byte range overlaps, with the part of each block that is in the range.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    blocks_of(offset, len as u64).map(move |block| {
        let start = block * BLOCK as u64;
        let within = offset.max(start) - start..end.min(start + BLOCK as u64) - start;
        (block, within.start as usize..within.end as usize)
    })
}
