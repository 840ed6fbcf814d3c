//! Construction of a class map from the claims of a scan.
//!
//! A claim assigns a class to a range of bytes. Each claim is stored as its two ends, in 16 bytes. After the
//! scan the ends are sorted and swept once, so the order of claims is irrelevant, and claims may overlap, as
//! they do when a file system changes during the scan. The number of claims is limited.

use super::ClassMap;
use crate::class::{BLOCK, Claims, Class};

/// Granularity of claims in bytes. The bits below contain the class and the type of an end.
const UNIT: u64 = 512;
const IS_START: u64 = 8;

/// Collects claims of file systems on blocks.
#[derive(Debug)]
pub(crate) struct Builder {
    size: u64,
    max_claims: usize,
    ends: Vec<u64>,
    overflowed: bool,
}

impl Builder {
    /// Creates a builder for a disk of `size` bytes.
    pub fn new(size: u64, max_claims: usize) -> Builder {
        let size = size.min(super::MAX_BLOCKS * BLOCK);
        Builder { size, max_claims, ends: Vec::new(), overflowed: false }
    }

    /// Whether claims were dropped because the limit was reached.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Claims `len` bytes at `offset` for a class. Ignores the part beyond the end of the disk.
    pub fn claim(&mut self, offset: u64, len: u64, class: Class) {
        let end = offset.saturating_add(len).min(self.size);
        if len == 0 || offset >= end {
            return;
        }
        let (start, end) = (offset / UNIT * UNIT, end.div_ceil(UNIT) * UNIT);
        let (start, end) = (start | IS_START | class as u64, end | class as u64);
        // The last claim is extended if this claim follows it: most files are read in the order of their
        // blocks.
        if let Some(last) = self.ends.last_mut()
            && *last == start & !IS_START
        {
            *last = end;
        } else if self.ends.len() / 2 < self.max_claims {
            self.ends.extend([start, end]);
        } else {
            self.overflowed = true;
        }
    }

    /// Builds the map. The class of a block is resolved from the claims to its parts; unclaimed parts are
    /// `Other`.
    pub fn finish(mut self) -> ClassMap {
        let (mut map, mut block) = (ClassMap::empty(), Claims::default());
        let mut active = [0_u64; Class::COUNT];
        let mut at = 0;
        self.ends.sort_unstable();
        let size = self.size;
        let last = size.div_ceil(UNIT) * UNIT;
        for end in self.ends.into_iter().chain([last]) {
            let position = end & !(UNIT - 1);
            if position > at {
                cover(&mut map, &mut block, at..position, &active);
                at = position;
            }
            let class = (end & (IS_START - 1)) as usize;
            match (end & IS_START, active.get_mut(class)) {
                (0, Some(n)) => *n = n.saturating_sub(1),
                (_, Some(n)) => *n += 1,
                (_, None) => (),
            }
        }
        let blocks = size.div_ceil(BLOCK);
        map.push(blocks - map.blocks(), block.resolve());
        map
    }
}

/// Appends the bytes of `range`, which have the same active claims, to the map. `open` has the claims to the
/// incomplete block after the end of the map.
fn cover(map: &mut ClassMap, open: &mut Claims, range: std::ops::Range<u64>, active: &[u64; Class::COUNT]) {
    let mut claims = Claims::default();
    Class::ALL.iter().filter(|c| active[**c as usize] != 0).for_each(|c| claims.add(*c));
    if claims == Claims::default() {
        claims.add(Class::Other);
    }
    let whole = range.end / BLOCK;
    open.join(claims);
    if map.blocks() < whole {
        map.push(1, open.resolve());
        map.push(whole - map.blocks(), claims.resolve());
        *open = Claims::default();
        if !range.end.is_multiple_of(BLOCK) {
            *open = claims;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn partially_claimed_blocks_are_resolved() {
        let mut b = Builder::new(10 * BLOCK + 100, 100);
        b.claim(0, BLOCK + 512, Class::Page);
        b.claim(2 * BLOCK, 1, Class::Code);
        b.claim(3 * BLOCK, 3 * BLOCK, Class::Free);
        b.claim(4 * BLOCK, 512, Class::Metadata);
        b.claim(9 * BLOCK, u64::MAX, Class::Free);
        let map = b.finish();
        let classes: Vec<_> = (0..12).map(|n| map.class_of(n)).collect();
        use Class::*;
        let expected = [Page, Other, Code, Free, Metadata, Free, Other, Other, Other, Free, Free, Other];
        assert_eq!(classes, expected);
        assert_eq!(map.blocks(), 11);
    }

    #[test]
    fn claims_beyond_the_limit_are_dropped() {
        let mut b = Builder::new(1 << 20, 2);
        for n in 0..3 {
            b.claim(n * 2 * BLOCK, BLOCK, Class::Code);
            assert_eq!(b.overflowed(), n == 2);
        }
        assert_eq!(b.finish().bytes_per_class()[Class::Code as usize], 2 * BLOCK);
    }

    proptest! {
        /// Compares the map with an array that has one entry per sector.
        #[test]
        fn map_matches_a_reference_per_sector(
            sectors in 0_u64..300,
            claims in prop::collection::vec((0_u64..300, 0_u64..60, 0_u8..6), 0..40),
        ) {
            let mut builder = Builder::new(sectors * UNIT, 1000);
            let mut naive = vec![Claims::default(); sectors as usize];
            for (start, len, class) in claims {
                let class = Class::from_number(class).unwrap();
                builder.claim(start * UNIT, len * UNIT, class);
                naive.iter_mut().skip(start as usize).take(len as usize).for_each(|c| c.add(class));
            }
            let map = builder.finish();
            prop_assert_eq!(map.blocks(), sectors.div_ceil(8));
            for (block, parts) in naive.chunks(8).enumerate() {
                let mut all = Claims::default();
                for part in parts {
                    if *part == Claims::default() { all.add(Class::Other) } else { all.join(*part) }
                }
                prop_assert_eq!(map.class_of(block as u64), all.resolve());
            }
        }
    }
}
