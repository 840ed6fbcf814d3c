//! A set of fingerprints that rejects most fingerprints outside of the set at the cost of one memory access.

use forebay_format::Fingerprint;

use super::bits::place_bits;

/// Bits for each fingerprint of the set. With this number, one in seventeen fingerprints outside of the set
/// is not rejected.
const BITS: usize = 16;

pub(super) struct Filter(Box<[u64]>);

impl Filter {
    pub fn new<'a>(prints: impl ExactSizeIterator<Item = &'a Fingerprint>) -> Filter {
        let words = (prints.len() * BITS / 64).next_power_of_two();
        let mut filter = Filter(vec![0; words].into_boxed_slice());
        for print in prints {
            let (word, bit) = filter.bit(print);
            filter.0[word] |= bit;
        }
        filter
    }

    fn bit(&self, print: &Fingerprint) -> (usize, u64) {
        let bits = place_bits(print);
        ((bits >> 6) as usize & (self.0.len() - 1), 1 << (bits & 63))
    }

    /// False if the fingerprint is not in the set; true if it is in the set, or sometimes by chance.
    pub fn may_contain(&self, print: &Fingerprint) -> bool {
        let (word, bit) = self.bit(print);
        self.0[word] & bit != 0
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}
