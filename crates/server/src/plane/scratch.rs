//! The buffers of a data-plane thread, shared by its connections one poll at a time.
//!
//! Both are allocated and zeroed once, so that no request pays for initialising memory, and small enough to
//! stay in the core's second-level cache when requests are small: what is not reached is not touched.

/// Bytes that are received at once.
pub(crate) const INPUT: usize = 256 << 10;
/// Longest read that is served straight into the output.
pub(crate) const FAST_READ_MAX: usize = 256 << 10;
/// Room that is kept for the headers around one reply, and for a short error.
const HEADROOM: usize = 2 << 10;
/// Bytes of replies that are gathered before they are sent.
const OUTPUT: usize = FAST_READ_MAX + HEADROOM + (256 << 10);

/// The buffers.
pub(crate) struct Scratch {
    /// What was received.
    pub input: Box<[u8]>,
    /// What is to be sent.
    pub output: Output,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { input: vec![0; INPUT].into(), output: Output::new() }
    }
}

/// Replies, back to back.
///
/// A front end adds to it while it is not full, which leaves room for any reply that is served at once. A reply that
/// is longer makes it grow until it is cleared: no reply can be written past its end.
pub(crate) struct Output {
    /// At least [`OUTPUT`] bytes.
    bytes: Vec<u8>,
    len: usize,
    /// Bytes of replies at which it counts as full.
    limit: usize,
}

impl Output {
    fn new() -> Output {
        Output { bytes: vec![0; OUTPUT], len: 0, limit: usize::MAX }
    }
    /// The replies.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    /// Forgets them.
    pub fn clear(&mut self) {
        self.len = 0;
        if self.bytes.len() > OUTPUT {
            *self = Output::new();
        }
    }
    /// Has it take few bytes, `Some`, where memory for replies that are not taken at once is short.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit.unwrap_or(usize::MAX);
    }
    /// The longest read that is served straight into it.
    pub fn fast_read_max(&self) -> usize {
        FAST_READ_MAX.min(self.limit)
    }
    /// Whether the longest reply that is served at once may not fit any more.
    pub fn is_full(&self) -> bool {
        self.bytes.len() - self.len < FAST_READ_MAX + HEADROOM || self.len >= self.limit
    }
    /// Appends.
    pub fn push(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len(), 0).0.copy_from_slice(bytes);
        self.keep(bytes.len());
    }
    /// Room for `header` bytes and `data` bytes behind them, to be kept with [`Output::keep`]. The bytes are
    /// whatever was there.
    pub fn reserve(&mut self, header: usize, data: usize) -> (&mut [u8], &mut [u8]) {
        let end = self.len + header + data;
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.len..end].split_at_mut(header)
    }
    /// Keeps the first `bytes` of the reserved ones.
    pub fn keep(&mut self, bytes: usize) {
        debug_assert!(self.len + bytes <= self.bytes.len(), "only what was reserved is kept");
        self.len = (self.len + bytes).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_beyond_the_room_makes_the_output_grow_until_it_is_cleared() {
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
