//! The buffers of a data-plane thread, shared by its connections one poll at a time.
//!
//! Both buffers are allocated and zeroed once, so that no request pays for initialising memory. With small
//! requests, only their start is touched, which stays in the core's second-level cache.

/// Maximum bytes that are received at once.
pub(crate) const INPUT: usize = 256 << 10;
/// Maximum bytes of a read that is served directly into the output.
pub(crate) const FAST_READ_MAX: usize = 256 << 10;
/// Space for the headers of one reply, and for a short error.
const HEADROOM: usize = 2 << 10;
/// Maximum bytes of replies that are gathered before they are sent.
const OUTPUT: usize = FAST_READ_MAX + HEADROOM + (256 << 10);

/// The buffers of a thread.
pub(crate) struct Scratch {
    /// Room for received bytes.
    pub input: Box<[u8]>,
    /// Room for bytes to send.
    pub output: Output,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { input: vec![0; INPUT].into(), output: Output::new() }
    }
}

/// Replies, one after the other.
///
/// A front end appends replies while it is not full, which leaves space for any reply that is served
/// directly. A longer reply makes it grow until it is cleared, so no reply can be written past its end.
pub(crate) struct Output {
    /// Memory of the replies, at least [`OUTPUT`] bytes.
    bytes: Vec<u8>,
    len: usize,
    /// Bytes of replies from which on the output counts as full.
    limit: usize,
}

impl Output {
    fn new() -> Output {
        Output { bytes: vec![0; OUTPUT], len: 0, limit: usize::MAX }
    }
    /// Returns the replies that were gathered.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    /// Removes all replies, and returns the memory of a long reply.
    pub fn clear(&mut self) {
        self.len = 0;
        if self.bytes.len() > OUTPUT {
            *self = Output::new();
        }
    }
    /// Limits the replies to few bytes while memory for unsent replies is short; `None` removes the limit.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit.unwrap_or(usize::MAX);
    }
    /// Maximum bytes of a read that is served directly into this output.
    pub fn fast_read_max(&self) -> usize {
        FAST_READ_MAX.min(self.limit)
    }
    /// Whether the longest reply that is served directly may no longer fit.
    pub fn is_full(&self) -> bool {
        self.bytes.len() - self.len < FAST_READ_MAX + HEADROOM || self.len >= self.limit
    }
    /// Appends a reply to the output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len(), 0).0.copy_from_slice(bytes);
        self.keep(bytes.len());
    }
    /// Returns space for a header of `header` bytes and `data` bytes after it. [`Output::keep`] appends the
    /// space. Its contents are unspecified.
    pub fn reserve(&mut self, header: usize, data: usize) -> (&mut [u8], &mut [u8]) {
        let end = self.len + header + data;
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.len..end].split_at_mut(header)
    }
    /// Appends the first `bytes` of the reserved space.
    pub fn keep(&mut self, bytes: usize) {
        debug_assert!(self.len + bytes <= self.bytes.len(), "only reserved bytes are kept");
        self.len = (self.len + bytes).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_longer_than_the_output_makes_it_grow_until_it_is_cleared() {
        let mut output = Output::new();
        let long = vec![7; OUTPUT];
        output.push(&[1; 100]);
        output.push(&long);
        assert!(output.is_full());
        output.reserve(48, OUTPUT).1.fill(9);
        output.keep(48 + OUTPUT);
        assert_eq!(output.filled().len(), 148 + 2 * OUTPUT);
        assert_eq!(output.filled()[100..100 + OUTPUT], long);
        output.clear();
        assert_eq!((output.filled().len(), output.bytes.len()), (0, OUTPUT));
        assert!(!output.is_full());
    }
}
