//! The content of writes: blocks that differ from each other and can be identified.
//!
//! A unit (4 KiB, or the request if it is smaller) is a window of a random arena, selected by the unit's
//! position and version, with a stamp of both at its start. Therefore no two written units are equal
//! (deduplication gains nothing), they do not compress, a reader can compute the expected content, and
//! filling a request costs one copy.
//!
//! To measure reduction, the arena is real data instead, or the units are whole blocks of it without a stamp.

use std::sync::Arc;

use super::spec::Fill;
use crate::rng::Rng;

const ARENA_BYTES: usize = 256 << 10;
const UNIT_BYTES: usize = 4096;
const STAMP_BYTES: usize = 24;

/// Generates and verifies content; deterministic for a seed.
pub(crate) struct Content {
    seed: u64,
    arena: Arc<Vec<u8>>,
    /// Windows start at multiples of this.
    grain: usize,
    stamp_bytes: usize,
}

impl Content {
    /// Noise.
    pub fn new(seed: u64) -> Content {
        let mut arena = vec![0; ARENA_BYTES + UNIT_BYTES];
        Rng::new(seed).fill(&mut arena);
        Content { seed, arena: Arc::new(arena), grain: 8, stamp_bytes: STAMP_BYTES }
    }

    /// Content of the kind `fill`.
    pub fn of(seed: u64, fill: &Fill) -> Content {
        let (arena, grain, stamp_bytes) = match fill {
            Fill::Noise => return Content::new(seed),
            Fill::Stamped(arena) => (arena, 8, STAMP_BYTES),
            Fill::Repeated(arena) => (arena, UNIT_BYTES, 0),
        };
        assert!(arena.len() >= 16 * UNIT_BYTES, "an arena of {} bytes is too small", arena.len());
        Content { seed, arena: Arc::clone(arena), grain, stamp_bytes }
    }

    /// Fills `data`, to be written at `offset`.
    pub fn fill(&self, offset: u64, version: u64, data: &mut [u8]) {
        for (i, unit) in data.chunks_mut(UNIT_BYTES).enumerate() {
            let (window, stamp) = self.unit(position(offset, i), version, unit.len());
            unit.copy_from_slice(window);
            unit[..self.stamp_bytes].copy_from_slice(&stamp[..self.stamp_bytes]);
        }
    }

    /// Whether `data`, read at `offset`, is the content that `fill` generates.
    pub fn matches(&self, offset: u64, version: u64, data: &[u8]) -> bool {
        data.chunks(UNIT_BYTES).enumerate().all(|(i, unit)| {
            let (window, stamp) = self.unit(position(offset, i), version, unit.len());
            let n = self.stamp_bytes;
            unit[..n] == stamp[..n] && unit[n..] == window[n..]
        })
    }

    fn unit(&self, at: u64, version: u64, len: usize) -> (&[u8], [u8; STAMP_BYTES]) {
        let mut mixed = Rng::new(at ^ version.rotate_left(32));
        let windows = (self.arena.len() - UNIT_BYTES) / self.grain;
        let start = mixed.below(windows as u64) as usize * self.grain;
        let mut stamp = [0; STAMP_BYTES];
        stamp[0..8].copy_from_slice(&self.seed.to_le_bytes());
        stamp[8..16].copy_from_slice(&at.to_le_bytes());
        stamp[16..24].copy_from_slice(&version.to_le_bytes());
        (&self.arena[start..start + len], stamp)
    }
}

fn position(offset: u64, unit: usize) -> u64 {
    offset + (unit * UNIT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_content_matches() {
        let content = Content::new(7);
        for len in [512, 4096, 16384] {
            let mut data = vec![0; len];
            content.fill(8192, 3, &mut data);
            assert!(content.matches(8192, 3, &data));
            assert!(!content.matches(8192, 4, &data), "another version");
            assert!(!content.matches(12288, 3, &data), "another place");
            assert!(!Content::new(8).matches(8192, 3, &data), "another run");
            data[len - 1] ^= 1;
            assert!(!content.matches(8192, 3, &data), "a damaged bit");
        }
    }

    #[test]
    fn repeated_content_consists_of_blocks_of_the_arena_and_matches() {
        let mut arena = vec![0; 1 << 20];
        Rng::new(5).fill(&mut arena);
        let arena = Arc::new(arena);
        for fill in [Fill::Repeated(arena.clone()), Fill::Stamped(arena.clone())] {
            let content = Content::of(1, &fill);
            let mut data = vec![0; 8192];
            content.fill(0, 9, &mut data);
            assert!(content.matches(0, 9, &data));
            let known = data.chunks(4096).all(|d| arena.chunks(4096).any(|a| a == d));
            assert_eq!(known, matches!(fill, Fill::Repeated(_)));
        }
    }

    #[test]
    fn the_units_of_one_request_differ() {
        let mut data = vec![0; 8192];
        Content::new(1).fill(0, 1, &mut data);
        assert_ne!(data[..4096], data[4096..]);
    }
}
