//! Allocation bitmaps, which have the same format in NTFS and ext: the lowest bit of the first byte is the
//! first unit, and a clear bit means free.

use std::ops::Range;

/// Returns the runs of clear bits among the first `count`.
pub(crate) fn clear_runs(bitmap: &[u8], count: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let count = count.min(bitmap.len() * 8);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = next(bitmap, at, count, false);
        at = next(bitmap, start, count, true);
        (start < count).then_some(start..at)
    })
}

/// Returns the first bit from `at` on that equals `set`, or `count`.
fn next(bitmap: &[u8], mut at: usize, count: usize, set: bool) -> usize {
    let skipped = if set { 0 } else { 0xff };
    while at < count {
        let byte = bitmap[at / 8];
        if at.is_multiple_of(8) && byte == skipped {
            at += 8;
        } else if (byte >> (at % 8) & 1 == 1) == set {
            return at;
        } else {
            at += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clear_runs_match_a_bitwise_reference(bitmap in prop::collection::vec(prop::sample::select(vec![0_u8, 255, 1, 0x18, 0x81]), 0..20), count in 0_usize..200) {
            let bits: Vec<_> = clear_runs(&bitmap, count).flatten().collect();
            let naive: Vec<_> = (0..count.min(bitmap.len() * 8)).filter(|i| bitmap[i / 8] >> (i % 8) & 1 == 0).collect();
            prop_assert_eq!(bits, naive);
        }
    }
}
