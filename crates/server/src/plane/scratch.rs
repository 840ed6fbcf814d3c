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
        Scratch { input: vec![0; INPUT].into(), output: Output { bytes: vec![0; OUTPUT].into(), len: 0 } }
    }
}

/// Replies, back to back.
pub(crate) struct Output {
    bytes: Box<[u8]>,
    len: usize,
}

impl Output {
    /// The replies.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    /// Forgets them.
    pub fn clear(&mut self) {
        self.len = 0;
    }
    /// Whether the longest reply that is served at once may not fit any more.
    pub fn is_full(&self) -> bool {
        self.bytes.len() - self.len < FAST_READ_MAX + HEADROOM
    }
    /// Appends; there is room unless it was full before.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
    /// Room for `header` bytes and `data` bytes behind them, to be kept with [`Output::keep`]. The bytes are
    /// whatever was there.
    pub fn reserve(&mut self, header: usize, data: usize) -> (&mut [u8], &mut [u8]) {
        self.bytes[self.len..self.len + header + data].split_at_mut(header)
    }
    /// Keeps so many of the reserved bytes.
    pub fn keep(&mut self, bytes: usize) {
        self.len += bytes;
    }
}
