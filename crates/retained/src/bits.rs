//! A set of small numbers with fast access to the lowest.

/// A set of numbers below a fixed limit, a bit for each.
pub(crate) struct Bits {
    words: Box<[u64]>,
    /// Index of a word; all words before it are zero.
    first: usize,
    len: u32,
}

impl Bits {
    /// An empty set of numbers below `limit`.
    pub fn new(limit: u32) -> Bits {
        let words = limit.div_ceil(64) as usize;
        Bits { words: vec![0; words].into(), first: words, len: 0 }
    }

    /// How many numbers are in the set.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a number; false if it was in the set.
    pub fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        let added = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.first = self.first.min(word);
        self.len += u32::from(added);
        added
    }

    /// Removes a number; false if it was not in the set.
    pub fn remove(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        let removed = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.len -= u32::from(removed);
        removed
    }

    /// Returns the lowest number of the set.
    pub fn lowest(&mut self) -> Option<u32> {
        if self.len == 0 {
            self.first = self.words.len();
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        Some(self.first as u32 * 64 + self.words[self.first].trailing_zeros())
    }

    /// Removes the lowest number and returns it.
    pub fn take_lowest(&mut self) -> Option<u32> {
        let lowest = self.lowest()?;
        self.remove(lowest);
        Some(lowest)
    }

    /// Returns the highest number of the set.
    pub fn highest(&self) -> Option<u32> {
        let word = self.words.iter().rposition(|w| *w != 0)?;
        Some(word as u32 * 64 + 63 - self.words[word].leading_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_agrees_with_a_sorted_set() {
        let (mut bits, mut set) = (Bits::new(300), BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (state >> 33) as u32 % 300;
            match state >> 61 {
                0..=3 => assert_eq!(bits.insert(number), set.insert(number)),
                4..=5 => assert_eq!(bits.remove(number), set.remove(&number)),
                6 => assert_eq!(bits.take_lowest(), set.pop_first()),
                _ => assert_eq!(bits.lowest(), set.first().copied()),
            }
            assert_eq!((bits.len() as usize, bits.is_empty()), (set.len(), set.is_empty()));
            assert_eq!(bits.highest(), set.last().copied());
        }
    }
}
