//! The bytes of a block, determined by its origin, so that a reader can compute the expected content.
//!
//! The bytes are windows of real data with a stamp, sixteen consecutive blocks of the data in a row, so that
//! they compress as guests' data does. The stamp makes blocks equal exactly if they have the same origin: a
//! block of the image, a block that all desktops of a family write alike, or a block that only one desktop
//! writes.

use std::sync::Arc;

use crate::rng::Rng;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const STAMP: usize = 24;
/// Consecutive blocks from one piece of the real data.
const RUN: u64 = 16;
/// Least real data; missing data is generated.
const ARENA_MIN: usize = 1 << 20;

/// The origin of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// All zero.
    Zero,
    /// This block of the image.
    Image(u32),
    /// A block that all desktops write alike, by its number.
    Family(u64),
    /// A block that only this desktop writes, by the number of the write.
    Own(u32, u64),
}

/// The bytes of all blocks.
#[derive(Clone)]
pub struct Content {
    arena: Arc<Vec<u8>>,
}

impl Content {
    /// Blocks made of `data`.
    pub fn new(mut data: Vec<u8>) -> Content {
        let mut rng = Rng::new(1);
        while data.len() < ARENA_MIN {
            // Words of a small vocabulary: they compress about as well as programs.
            let word = Rng::new(rng.below(1024)).next_u64().to_le_bytes();
            data.extend_from_slice(&word[..3 + rng.below(6) as usize]);
        }
        Content { arena: Arc::new(data) }
    }

    /// Fills a block.
    pub fn fill(&self, origin: Origin, block: &mut [u8]) {
        match self.parts(origin) {
            None => block.fill(0),
            Some((window, stamp)) => {
                block.copy_from_slice(window);
                block[..STAMP].copy_from_slice(&stamp);
            }
        }
    }

    /// Whether a block has the expected content.
    pub fn matches(&self, origin: Origin, block: &[u8]) -> bool {
        match self.parts(origin) {
            None => block.iter().all(|b| *b == 0),
            Some((window, stamp)) => block[..STAMP] == stamp && block[STAMP..] == window[STAMP..],
        }
    }

    fn parts(&self, origin: Origin) -> Option<(&[u8], [u8; STAMP])> {
        let (kind, whose, number) = match origin {
            Origin::Zero => return None,
            Origin::Image(block) => (1, 0, u64::from(block)),
            Origin::Family(number) => (2, 0, number),
            Origin::Own(desktop, number) => (3, u64::from(desktop), number),
        };
        let mut stamp = [0; STAMP];
        for (part, value) in stamp.chunks_exact_mut(8).zip([kind, whose, number]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        let run = RUN as usize * BLOCK;
        let mut rng = Rng::new((kind << 56) ^ (whose << 40) ^ (number / RUN));
        let start = rng.below((self.arena.len() - run) as u64 / 8) as usize * 8;
        let start = start + (number % RUN) as usize * BLOCK;
        Some((&self.arena[start..start + BLOCK], stamp))
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
