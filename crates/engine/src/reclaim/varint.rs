//! Numbers in as many bytes as they need: seven bits of the number in each byte, the lowest bits first.

pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes that are being decoded.
pub(super) struct Reading<'a>(&'a [u8]);

impl<'a> Reading<'a> {
    pub fn new(bytes: &'a [u8]) -> Reading<'a> {
        Reading(bytes)
    }

    /// Number of bytes that are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// The next byte. All methods of this type return `None` at the end, or if no writer produces these
    /// bytes.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    pub fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}
