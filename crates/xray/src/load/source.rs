//! Which block comes next.

use crate::rng::Rng;

/// A source of block numbers below a bound.
pub(crate) enum Source {
    /// Uniformly at random, for ever.
    Random,
    /// Ascending, round and round; the next one.
    Sequential(u64),
    /// These, once.
    List(std::vec::IntoIter<u64>),
}

impl Source {
    /// The next block below `blocks`; `None` at the end.
    pub fn next(&mut self, blocks: u64, rng: &mut Rng) -> Option<u64> {
        match self {
            Source::Random => Some(rng.below(blocks)),
            Source::Sequential(next) => {
                let block = *next;
                *next = (block + 1) % blocks;
                Some(block)
            }
            Source::List(list) => list.next(),
        }
    }
}
