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

/// Decompresses `input` to fill `out`, and returns how many bytes of the input that took. Ignores bytes after
/// the compressed data, because qcow2 stores its length in sectors.
pub(super) fn decompress(compression: Compression, input: &[u8], out: &mut [u8]) -> Result<usize, BadInput> {
    match compression {
        Compression::Deflate => match inflate(false, input, out)? {
            (used, n) if n == out.len() => Ok(used),
            _ => Err(BadInput),
        },
        Compression::Zstd => {
            let mut rest = input;
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(&mut rest).map_err(|_| BadInput)?;
            decoder.read_exact(out).map_err(|_| BadInput)?;
            drop(decoder);
            Ok(input.len() - rest.len())
        }
    }
}

/// Decompresses DEFLATE with a zlib header (RFC 1950), as in VMDK files. Returns the number of bytes written
/// to `out`: the last grain may be short.
pub(super) fn decompress_zlib(input: &[u8], out: &mut [u8]) -> Result<usize, BadInput> {
    inflate(true, input, out).map(|(_, got)| got)
}

/// Decompresses until the stream ends or `out` is full. Input that ends before is an error. Returns the bytes
/// used of the input and written to `out`.
fn inflate(zlib_header: bool, input: &[u8], out: &mut [u8]) -> Result<(usize, usize), BadInput> {
    let mut state = Decompress::new(zlib_header);
    let status = state.decompress(input, out, FlushDecompress::Finish).map_err(|_| BadInput)?;
    let used = usize::try_from(state.total_in()).map_err(|_| BadInput)?;
    let got = usize::try_from(state.total_out()).map_err(|_| BadInput)?;
    match status {
        Status::StreamEnd => Ok((used, got)),
        Status::Ok | Status::BufError if got == out.len() => Ok((used, got)),
        Status::Ok | Status::BufError => Err(BadInput),
    }
}
