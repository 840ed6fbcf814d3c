//! The bytes of a block, determined by its origin, so that a reader can compute the expected content.
//!
//! The bytes are windows of real data with a stamp, sixteen consecutive blocks of the data in a row, so that
//! they compress as guests' data does. The stamp makes blocks equal exactly if they have the same origin: a
//! block of the image, a block that all desktops of a family write alike, or a block that only one desktop
//! writes.

use std::sync::Arc;

use crate::load::{self, Fill};
use crate::rng::Rng;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Consecutive blocks from one piece of the real data.
const RUN: u64 = 16;
/// Minimum bytes of real data; missing data is generated.
const ARENA_MIN: usize = 1 << 20;

/// The origin of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The block is all zero.
    Zero,
    /// This block of the image.
    Image(u32),
    /// A block that all desktops write alike, by its number.
    Family(u64),
    /// A block that only this desktop writes, by the number of the write.
    Own(u32, u64),
}

/// The bytes of all blocks.
pub struct Content(load::Content);

impl Content {
    /// Blocks made of `data`.
    pub fn new(mut data: Vec<u8>) -> Content {
        let mut rng = Rng::new(1);
        while data.len() < ARENA_MIN {
            // Words of a small vocabulary: they compress about as well as programs.
            let word = Rng::new(rng.below(1024)).next_u64().to_le_bytes();
            data.extend_from_slice(&word[..3 + rng.below(6) as usize]);
        }
        Content(load::Content::of(0, &Fill::Stamped(Arc::new(data))).in_runs_of(RUN))
    }

    /// Fills a block.
    pub fn fill(&self, origin: Origin, block: &mut [u8]) {
        match origin.stamp() {
            None => block.fill(0),
            Some((at, version)) => self.0.fill(at, version, block),
        }
    }

    /// Whether a block has the expected content.
    pub fn matches(&self, origin: Origin, block: &[u8]) -> bool {
        match origin.stamp() {
            None => block.iter().all(|b| *b == 0),
            Some((at, version)) => self.0.matches(at, version, block),
        }
    }
}

impl Origin {
    /// The position and version that determine the bytes of a block; `None` for zeroes.
    fn stamp(self) -> Option<(u64, u64)> {
        let (kind, whose, number) = match self {
            Origin::Zero => return None,
            Origin::Image(block) => (1, 0, u64::from(block)),
            Origin::Family(number) => (2, 0, number),
            Origin::Own(desktop, number) => (3, u64::from(desktop), number),
        };
        // A number has the day and the phase in its upper bits.
        let (upper, lower) = (number >> 40, number & ((1 << 40) - 1));
        Some((lower * BLOCK as u64, kind << 60 | upper << 32 | whose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_the_same_origin_match() {
        let content = Content::new(Vec::new());
        let origins = [
            Origin::Zero,
            Origin::Image(3),
            Origin::Image(4),
            Origin::Family(3),
            Origin::Family(1 << 48 | 3),
            Origin::Own(0, 3),
            Origin::Own(1, 3),
        ];
        let mut block = vec![0; BLOCK];
        for origin in origins {
            content.fill(origin, &mut block);
            for other in origins {
                assert_eq!(content.matches(other, &block), other == origin, "{origin:?} {other:?}");
            }
            block[BLOCK - 1] ^= 1;
            assert!(!content.matches(origin, &block), "a damaged bit");
        }
    }
}
