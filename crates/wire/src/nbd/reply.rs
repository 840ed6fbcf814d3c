//! Replies ("Simple reply message", "Structured reply message"): fixed headers as arrays, to be written
//! before data that is in its final position already; complete small replies are appended to a buffer.

use super::consts::*;
use super::{ErrorCode, cut};

/// Bytes of a simple reply, without data.
pub const SIMPLE_REPLY: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_HEADER: usize = 20;
/// Bytes of a data chunk before the data.
pub const DATA_CHUNK_HEADER: usize = CHUNK_HEADER + 8;
/// Bytes of a hole chunk.
pub const HOLE_CHUNK: usize = CHUNK_HEADER + 12;
/// Maximum length of the text of an error, in bytes.
pub const ERROR_TEXT_MAX: usize = 1024;

/// A run of one status in a metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDescriptor {
    /// Length of the extent in bytes.
    pub len: u32,
    /// State of the extent: `STATE_…` bits of the context.
    pub state: u32,
}

/// A simple reply; the data of a read follows it.
#[inline]
pub fn simple_reply(cookie: u64, error: Option<ErrorCode>) -> [u8; SIMPLE_REPLY] {
    let mut r = [0; SIMPLE_REPLY];
    r[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    r[4..8].copy_from_slice(&error.map_or(0, |e| e as u32).to_be_bytes());
    r[8..16].copy_from_slice(&cookie.to_be_bytes());
    r
}

#[inline]
fn chunk_header(cookie: u64, kind: u16, done: bool, len: u32) -> [u8; CHUNK_HEADER] {
    let mut r = [0; CHUNK_HEADER];
    r[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    r[4..6].copy_from_slice(&(if done { CHUNK_FLAG_DONE } else { 0 }).to_be_bytes());
    r[6..8].copy_from_slice(&kind.to_be_bytes());
    r[8..16].copy_from_slice(&cookie.to_be_bytes());
    r[16..20].copy_from_slice(&len.to_be_bytes());
    r
}

/// The header of a chunk with `len` bytes of data, which follow it. `len` must not be 0: an empty read is
/// answered with [`none_chunk`].
#[inline]
pub fn data_chunk_header(cookie: u64, offset: u64, len: u32, done: bool) -> [u8; DATA_CHUNK_HEADER] {
    debug_assert!(len > 0 && len <= MAX_PAYLOAD);
    let mut r = [0; DATA_CHUNK_HEADER];
    r[..CHUNK_HEADER].copy_from_slice(&chunk_header(cookie, CHUNK_OFFSET_DATA, done, len + 8));
    r[CHUNK_HEADER..].copy_from_slice(&offset.to_be_bytes());
    r
}

/// `len` bytes of zeroes (`len` must not be 0).
#[inline]
pub fn hole_chunk(cookie: u64, offset: u64, len: u32, done: bool) -> [u8; HOLE_CHUNK] {
    debug_assert!(len > 0);
    let mut r = [0; HOLE_CHUNK];
    r[..CHUNK_HEADER].copy_from_slice(&chunk_header(cookie, CHUNK_OFFSET_HOLE, done, 12));
    r[CHUNK_HEADER..CHUNK_HEADER + 8].copy_from_slice(&offset.to_be_bytes());
    r[CHUNK_HEADER + 8..].copy_from_slice(&len.to_be_bytes());
    r
}

/// Success without payload.
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEADER] {
    chunk_header(cookie, CHUNK_NONE, true, 0)
}

/// An error, the last chunk of its reply; the text is truncated to [`ERROR_TEXT_MAX`].
pub fn error_chunk(out: &mut Vec<u8>, cookie: u64, error: ErrorCode, text: &str) {
    let text = cut(text, ERROR_TEXT_MAX);
    out.extend_from_slice(&chunk_header(cookie, CHUNK_ERROR, true, 6 + text.len() as u32));
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The status of a range in the metadata context with this id. A reply has one chunk for each context that
/// was selected. At least one descriptor is required.
pub fn block_status_chunk(
    out: &mut Vec<u8>,
    cookie: u64,
    context: u32,
    done: bool,
    descriptors: &[BlockDescriptor],
) {
    debug_assert!(!descriptors.is_empty());
    let len = 4 + 8 * descriptors.len() as u32;
    out.extend_from_slice(&chunk_header(cookie, CHUNK_BLOCK_STATUS, done, len));
    out.extend_from_slice(&context.to_be_bytes());
    for d in descriptors {
        out.extend_from_slice(&d.len.to_be_bytes());
        out.extend_from_slice(&d.state.to_be_bytes());
    }
}
