//! Unpacking clusters and grains. The result has a length that is known before; input that gives less, or that
//! is not what it should be, is an error and never more than that much memory.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};

/// How a cluster of qcow2 is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// A bare DEFLATE stream (RFC 1951).
    Deflate,
    /// A Zstandard frame (RFC 8878).
    Zstd,
}

/// The input does not unpack to `out.len()` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadInput;

/// Fills `out`. What follows the packed data in `input` is ignored: its length is known in sectors only.
pub(super) fn unpack(packing: Packing, input: &[u8], out: &mut [u8]) -> Result<(), BadInput> {
    match packing {
        Packing::Deflate => match inflate(false, input, out)? {
            n if n == out.len() => Ok(()),
            _ => Err(BadInput),
        },
        Packing::Zstd => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(input).map_err(|_| BadInput)?;
            decoder.read_exact(out).map_err(|_| BadInput)
        }
    }
}

/// Unpacks DEFLATE with the zlib header (RFC 1950), as VMDK has it, and says how much of `out` it filled: the
/// last grain may be short.
pub(super) fn unpack_zlib(input: &[u8], out: &mut [u8]) -> Result<usize, BadInput> {
    inflate(true, input, out)
}

/// Unpacks until the stream ends or `out` is full. Input that ends before either is bad.
fn inflate(zlib_header: bool, input: &[u8], out: &mut [u8]) -> Result<usize, BadInput> {
    let mut state = Decompress::new(zlib_header);
    let status = state.decompress(input, out, FlushDecompress::Finish).map_err(|_| BadInput)?;
    let got = usize::try_from(state.total_out()).map_err(|_| BadInput)?;
    match status {
        Status::StreamEnd => Ok(got),
        Status::Ok | Status::BufError if got == out.len() => Ok(got),
        Status::Ok | Status::BufError => Err(BadInput),
    }
}
