//! The two checksums: CRC-32C for a block, CRC-64/NVME for structures and batches.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4), used for a block's plain contents.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC-64/NVME of `bytes`.
pub fn check64(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// The CRC-64/NVME of a piece of bytes, which can be joined with that of the next piece: several threads can
/// compute the checksum of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum64 {
    sum: u64,
    len: u64,
}

impl Sum64 {
    /// Returns the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Sum64 {
        Sum64 { sum: check64(bytes), len: bytes.len() as u64 }
    }

    /// The checksum of the bytes of this piece followed by the bytes of `next`.
    #[must_use]
    pub fn join(self, next: Sum64) -> Sum64 {
        if self.is_empty() {
            return next;
        }
        let shifted = powers(next.len).fold(self.sum, |sum, power| times(power, sum));
        Sum64 { sum: shifted ^ next.sum, len: self.len + next.len }
    }

    /// Number of bytes that were added.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is the sum of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the checksum of all added bytes.
    pub fn finish(&self) -> u64 {
        self.sum
    }
}

/// The polynomial of CRC-64/NVME without its highest term; the highest bit is the coefficient of 1.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// Returns the product of two polynomials, modulo [`POLYNOMIAL`].
const fn times(a: u64, mut b: u64) -> u64 {
    let (mut product, mut bit) = (0, 64);
    while bit > 0 {
        bit -= 1;
        product ^= b & 0_u64.wrapping_sub(a >> bit & 1);
        b = (b >> 1) ^ (POLYNOMIAL & 0_u64.wrapping_sub(b & 1));
    }
    product
}

/// The factors by which 1, 2, 4, ... further bytes change a sum: x to the power of 8 times their number.
static POWERS: [u64; 64] = {
    let (mut powers, mut n) = ([1 << (63 - 8); 64], 1);
    while n < 64 {
        powers[n] = times(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The factors whose product is the factor for `len` further bytes.
fn powers(len: u64) -> impl Iterator<Item = u64> {
    (0..).zip(POWERS).filter_map(move |(bit, power)| (len >> bit & 1 == 1).then_some(power))
}

/// A CRC-64/NVME over several pieces, one after another.
#[derive(Debug)]
pub struct Check64(Digest);

impl Default for Check64 {
    fn default() -> Self {
        Check64(Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Check64 {
    /// Adds the next piece of the input.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// Returns the checksum of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn joined_sums_are_those_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..9000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut sum, mut at) = (Sum64::of(&[]), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                sum = sum.join(Sum64::of(&bytes[at..cut]));
                at = cut;
            }
            prop_assert_eq!(sum, Sum64::of(&bytes));
            prop_assert_eq!(sum.finish(), check64(&bytes));
        }
    }
}
