//! Values in XDR: big-endian, in units of four bytes (RFC 4506, section 3).

/// Arguments that are not what their procedure requires (`GARBAGE_ARGS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the arguments of the call are not valid XDR: {0}")]
pub struct Garbage(pub &'static str);

/// Decodes values from the front of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// A decoder of these bytes.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder(bytes)
    }

    /// The bytes that were not decoded yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `N` bytes; `N` is a multiple of four.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Garbage("it ends early"))?;
        self.0 = rest;
        Ok(*first)
    }

    /// An unsigned integer.
    pub fn u32(&mut self) -> Result<u32, Garbage> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Result<u64, Garbage> {
        self.fixed().map(u64::from_be_bytes)
    }

    /// A boolean: 0 or 1 (section 4.4).
    pub fn bool(&mut self) -> Result<bool, Garbage> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage("a boolean is neither 0 nor 1")),
        }
    }

    /// Variable-length opaque data or a string of at most `max` bytes, without its padding.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], Garbage> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Garbage("a variable-length field is longer than its limit"));
        }
        let padded = len.next_multiple_of(4);
        let (field, rest) = self.0.split_at_checked(padded).ok_or(Garbage("it ends within a field"))?;
        self.0 = rest;
        // The padding is zero (section 3), but some clients leave other bytes there.
        field.get(..len).ok_or(Garbage("it ends within a field"))
    }
}

/// Encodes values at the end of a message.
#[derive(Debug, Default)]
pub struct Encoder {
    pub(super) out: Vec<u8>,
}

impl Encoder {
    /// An empty message with memory for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Encoder {
        Encoder { out: Vec::with_capacity(capacity) }
    }

    /// Bytes that were encoded.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Removes everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Bytes whose number is a multiple of four.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        debug_assert!(bytes.len().is_multiple_of(4));
        self.out.extend_from_slice(bytes);
        self
    }

    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// Variable-length opaque data, or a string.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.out.extend_from_slice(bytes);
        self.pad()
    }

    /// The length of opaque data, and zeroes in place of the data. Returns the position of the data.
    pub fn zeroes(&mut self, len: usize) -> usize {
        self.u32(len as u32);
        let at = self.out.len();
        self.out.resize(at + len, 0);
        self.pad();
        at
    }

    /// The bytes from `at` on, to fill in what was left out.
    pub fn bytes_mut(&mut self, at: usize) -> &mut [u8] {
        self.out.get_mut(at..).unwrap_or_default()
    }

    fn pad(&mut self) -> &mut Self {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_values_are_those_that_were_encoded() {
        let mut encoder = Encoder::default();
        encoder.u32(7).u64(1 << 40).bool(true).opaque(b"abcde").opaque(b"").fixed(&[9; 8]);
        let bytes = encoder.into_bytes();
        assert_eq!(bytes.len(), 4 + 8 + 4 + 4 + 8 + 4 + 8);
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.u32(), Ok(7));
        assert_eq!(decoder.u64(), Ok(1 << 40));
        assert_eq!(decoder.bool(), Ok(true));
        assert_eq!(decoder.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!(decoder.opaque(0), Ok(&b""[..]));
        assert_eq!(decoder.fixed::<8>(), Ok([9; 8]));
        assert!(decoder.rest().is_empty());
    }

    #[test]
    fn short_and_long_fields_are_garbage() {
        let mut encoder = Encoder::default();
        encoder.opaque(b"abcde");
        let bytes = encoder.into_bytes();
        assert!(Decoder::new(&bytes).opaque(4).is_err());
        for len in 0..bytes.len() {
            assert!(Decoder::new(&bytes[..len]).opaque(5).is_err(), "{len}");
        }
        assert!(Decoder::new(&[0, 0, 0, 2]).bool().is_err());
        assert!(Decoder::new(&u32::MAX.to_be_bytes()).opaque(usize::MAX).is_err());
    }
}
