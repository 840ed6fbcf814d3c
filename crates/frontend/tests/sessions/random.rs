//! Pseudorandom numbers and choices from a seed (splitmix64).

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// A number at or next to a boundary (0, `end`, powers of two), or any number.
    pub fn edge(&mut self, end: u64) -> u64 {
        let base = match self.below(7) {
            0 => 0,
            1 => end,
            2 => 1 << self.below(64),
            3 => u64::MAX,
            4 => self.next(),
            _ => self.below(end.max(1)),
        };
        base.wrapping_add(self.below(5)).wrapping_sub(2)
    }

    /// Sometimes changes a few bytes.
    pub fn mutate(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() && self.once_in(4) {
            for _ in 0..=self.below(3) {
                let at = self.below(bytes.len() as u64) as usize;
                bytes[at] = match self.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at] ^ 1 << self.below(8),
                    _ => self.byte(),
                };
            }
        }
    }
}
