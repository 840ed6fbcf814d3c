//! The order in which blocks are accessed.

use super::spec::Access;
use crate::rng::Rng;

/// A source of block numbers below a bound.
pub(super) enum Source {
    /// Uniformly random offsets, without end.
    Random,
    /// Four of five in the first fifth, endless.
    Skewed,
    /// Ascending, starting again at the end; contains the next block.
    Sequential(u64),
    /// Offsets of these blocks, each once.
    List(std::vec::IntoIter<u64>),
}

impl From<Access> for Source {
    fn from(access: Access) -> Source {
        match access {
            Access::Random => Source::Random,
            Access::Sequential => Source::Sequential(0),
            Access::Skewed => Source::Skewed,
        }
    }
}

impl Source {
    /// The next block below `blocks`; `None` at the end.
    pub fn next(&mut self, blocks: u64, rng: &mut Rng) -> Option<u64> {
        match self {
            Source::Random => Some(rng.below(blocks)),
            Source::Skewed => {
                let hot = (blocks / 5).max(1);
                let inside = rng.below(5) != 0 || hot == blocks;
                Some(if inside { rng.below(hot) } else { hot + rng.below(blocks - hot) })
            }
            Source::Sequential(next) => {
                let block = *next;
                *next = (block + 1) % blocks;
                Some(block)
            }
            Source::List(list) => list.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skewed_load_prefers_the_first_fifth_and_reaches_all_blocks() {
        let mut rng = Rng::new(3);
        let mut next = || Source::Skewed.next(100, &mut rng).expect("is endless");
        let blocks: Vec<u64> = (0..10_000).map(|_| next()).collect();
        let hot = blocks.iter().filter(|b| **b < 20).count();
        assert!((7_500..8_500).contains(&hot), "{hot}");
        assert!((0..100).all(|b| blocks.contains(&b)));
        assert_eq!(Source::Skewed.next(1, &mut rng), Some(0));
    }
}
