//! What is written: blocks that differ from each other and can be told from each other.
//!
//! A unit (4 KiB, or the request if it is smaller) is a window of a random arena, chosen by the unit's position
//! and version, under a stamp of both. So no two units ever written are equal (a server that deduplicates gains
//! nothing), they do not compress, a reader can recompute the content, and filling a request costs a copy.

use crate::rng::Rng;

const ARENA_BYTES: usize = 256 << 10;
const UNIT_BYTES: usize = 4096;
const STAMP_BYTES: usize = 24;

/// Generator and judge of content; the same for the same seed.
pub(crate) struct Content {
    seed: u64,
    arena: Vec<u8>,
}

impl Content {
    pub fn new(seed: u64) -> Content {
        let mut arena = vec![0; ARENA_BYTES + UNIT_BYTES];
        Rng::new(seed).fill(&mut arena);
        Content { seed, arena }
    }

    /// Fills `data`, which is to be written at `offset`.
    pub fn fill(&self, offset: u64, version: u64, data: &mut [u8]) {
        for (i, unit) in data.chunks_mut(UNIT_BYTES).enumerate() {
            let (window, stamp) = self.unit(position(offset, i), version, unit.len());
            unit.copy_from_slice(window);
            unit[..STAMP_BYTES].copy_from_slice(&stamp);
        }
    }

    /// Whether `data`, read at `offset`, is what `fill` made of it.
    pub fn matches(&self, offset: u64, version: u64, data: &[u8]) -> bool {
        data.chunks(UNIT_BYTES).enumerate().all(|(i, unit)| {
            let (window, stamp) = self.unit(position(offset, i), version, unit.len());
            unit[..STAMP_BYTES] == stamp && unit[STAMP_BYTES..] == window[STAMP_BYTES..]
        })
    }

    fn unit(&self, at: u64, version: u64, len: usize) -> (&[u8], [u8; STAMP_BYTES]) {
        let mut mixed = Rng::new(at ^ version.rotate_left(32));
        let start = mixed.below((ARENA_BYTES / 8) as u64) as usize * 8;
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
    fn content_is_recognised_and_nothing_else_is() {
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
    fn the_units_of_one_request_differ() {
        let mut data = vec![0; 8192];
        Content::new(1).fill(0, 1, &mut data);
        assert_ne!(data[..4096], data[4096..]);
    }
}
