//! A hash function for numbers that the engine itself assigns or bounds. It is fast, and identical in every
//! run, so that a simulation can be replayed.

use std::hash::{BuildHasherDefault, Hasher};

/// Hasher of a single integer, by one multiplication whose halves are combined.
#[derive(Default, Clone, Copy)]
pub(crate) struct U64Hasher(u64);

impl Hasher for U64Hasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut b = [0; 8];
            b[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(self.0 ^ u64::from_le_bytes(b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        let wide = (n ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }
}

pub(crate) type BuildU64Hasher = BuildHasherDefault<U64Hasher>;
