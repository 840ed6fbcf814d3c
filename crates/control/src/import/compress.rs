//! Decompression of clusters and grains. The length of the output is known in advance. Malformed, short or
//! long input is an error. Its decompression needs no more memory and time than valid input, except for one
//! block of Zstandard, which has at most 128 KiB.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Compression type of a qcow2 file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    /// The cluster is a raw DEFLATE stream (RFC 1951).
    Deflate,
    /// The cluster is a Zstandard frame (RFC 8878).
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
            unzstd(&mut rest, out)?;
            Ok(input.len() - rest.len())
        }
    }
}

/// Decompresses one Zstandard frame, which has exactly `out.len()` bytes. Advances `input` by the bytes that
/// were used.
///
/// The blocks are decompressed into a buffer, and no further than to the first byte that exceeds `out`. A
/// streaming decoder would return no byte before it has decompressed as many bytes as the frame states for
/// its window: a frame of 3 KiB can state a window of 100 MiB and cause that work for each cluster.
fn unzstd(input: &mut &[u8], out: &mut [u8]) -> Result<(), BadInput> {
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut *input).map_err(|_| BadInput)?;
    let limit = BlockDecodingStrategy::UptoBytes(out.len() + 1);
    let is_complete = decoder.decode_blocks(input, limit).map_err(|_| BadInput)?;
    if !is_complete || decoder.can_collect() != out.len() {
        return Err(BadInput);
    }
    decoder.read_exact(out).map_err(|_| BadInput)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A Zstandard frame with this window descriptor (RFC 8878, section 3.1.1.1.2) and runs of one byte.
    fn frame(window: u8, runs: &[u32]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
        for (n, len) in runs.iter().enumerate() {
            let is_last = u32::from(n + 1 == runs.len());
            frame.extend(&(len << 3 | 1 << 1 | is_last).to_le_bytes()[..3]);
            frame.push(7);
        }
        frame
    }

    /// The window descriptor of a window of 64 MiB.
    const LARGE_WINDOW: u8 = 16 << 3;

    #[test]
    fn a_zstd_frame_has_the_length_of_its_cluster() {
        let mut out = vec![0; 64 << 10];
        // Encoders of streams end a frame with an empty block, and do not know its length when they state
        // the window.
        for runs in [&[64 << 10][..], &[60 << 10, 4 << 10, 0]] {
            let mut input = frame(LARGE_WINDOW, runs);
            let len = input.len();
            input.extend([0xff; 512]);
            out.fill(0);
            assert_eq!(decompress(Compression::Zstd, &input, &mut out), Ok(len), "{runs:?}");
            assert!(out.iter().all(|b| *b == 7));
        }
        for runs in [&[60 << 10][..], &[60 << 10, 0], &[64 << 10, 1], &[128 << 10]] {
            let input = frame(LARGE_WINDOW, runs);
            assert_eq!(decompress(Compression::Zstd, &input, &mut out), Err(BadInput), "{runs:?}");
        }
    }

    /// The window of a frame does not permit that the frame is decompressed beyond the cluster: this frame of
    /// 2 KiB has 64 MiB, and a file can refer to it from each of its clusters.
    #[test]
    fn a_zstd_frame_is_not_decompressed_beyond_its_cluster() {
        let mut out = vec![0; 64 << 10];
        let input = frame(LARGE_WINDOW, &[128 << 10; 512]);
        assert_eq!(decompress(Compression::Zstd, &input, &mut out), Err(BadInput));
        let mut rest = &input[..];
        assert_eq!(unzstd(&mut rest, &mut out), Err(BadInput));
        let (header, block) = (6, 4);
        assert_eq!(rest.len(), input.len() - header - block, "one block exceeds the cluster");
    }
}
