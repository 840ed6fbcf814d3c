//! Decompression of clusters and grains. The length of the output is known in advance. Malformed or short
//! input is an error, and cannot use more memory than that.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};

/// Compression type of a qcow2 file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    /// A raw DEFLATE stream (RFC 1951).
    Deflate,
    /// A Zstandard frame (RFC 8878).
    Zstd,
}

/// The input does not decompress to `out.len()` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadInput;

/// Decompresses `input` to fill `out`. Ignores bytes after the compressed data, because qcow2 stores its
/// length in sectors.
pub(super) fn decompress(compression: Compression, input: &[u8], out: &mut [u8]) -> Result<(), BadInput> {
    match compression {
        Compression::Deflate => match inflate(false, input, out)? {
            n if n == out.len() => Ok(()),
            _ => Err(BadInput),
        },
        Compression::Zstd => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(input).map_err(|_| BadInput)?;
            decoder.read_exact(out).map_err(|_| BadInput)
        }
    }
}

/// Decompresses DEFLATE with a zlib header (RFC 1950), as in VMDK files. Returns the number of bytes written
/// to `out`: the last grain may be short.
pub(super) fn decompress_zlib(input: &[u8], out: &mut [u8]) -> Result<usize, BadInput> {
    inflate(true, input, out)
}

/// Decompresses until the stream ends or `out` is full. Input that ends before is an error.
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
