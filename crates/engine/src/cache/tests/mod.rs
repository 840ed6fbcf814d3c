//! Tests of the read cache and of the table of misses. All of them are seeded.

mod advice;
mod misses;
mod model;
mod policy;
mod speed;

use forebay_format::{Address, BLOCK, SegmentId, Slot};

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Address of the n-th block of a log: whole blocks, in sequence, in 64 MiB segments.
fn address(n: u64) -> Address {
    const BLOCKS: u64 = 16_000;
    let slot = (1 + n % BLOCKS) * (BLOCK / Slot::UNIT) as u64;
    Address { segment: SegmentId(1 + (n / BLOCKS) as u32), slot: Slot(slot as u32) }
}

/// A block whose every eight bytes identify it.
fn block(seed: u64) -> [u8; BLOCK] {
    let mut b = [0; BLOCK];
    for (i, word) in b.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x100_0000_01b3) + i as u64).to_le_bytes());
    }
    b
}
