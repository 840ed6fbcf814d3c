//! Decompression of whole image files, as cloud images are published: gzip, xz, Zstandard and bzip2.
//!
//! Disk formats need random access, so the file is decompressed to an unnamed file in the data directory
//! ([`Spool`]), with the bounds of a download: the maximum size, the room that is kept free, and the ratio
//! that [`ImageFile::charge_decompressed`] permits. Blocks of zeroes become holes, which need no room.
//!
//! **Memory.** The decoder of xz or Zstandard needs the memory that the file states. Files that state more
//! than [`MAX_WINDOW`] are refused, and one file of the server is decompressed at a time ([`DECODERS`]).
//!
//! Only the outermost compression is removed: an archive in an archive is refused when its format is
//! detected.

use std::io::{self, BufRead, ErrorKind, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::GzDecoder;
use forebay_api::import::Format;
use forebay_text::Size;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use tokio::sync::mpsc;

use super::decoders::{DECODERS, Permit, Progress};
use super::error::Remedy;
use super::file::{Download, ImageFile};
use super::spool::{Spool, SpoolError};
use super::{ImportError, Result, vhd};

/// Maximum size of a window (Zstandard) or of a dictionary with the tables of its decoder (xz), in bytes. The
/// levels of `xz` need at most 65 MiB, those of `zstd` at most 128 MiB.
const MAX_WINDOW: u64 = 128 << 20;
/// Bytes that are read or stored at once.
const PIECE: usize = 64 << 10;
/// Magic number of the trailer that OpenWrt appends to its images after the compressed data, and its length.
const OPENWRT: (&[u8], u64) = (b"FWx0", 16);

/// The remedy for damaged data.
const COPY_AGAIN: &str =
    "copy the file again from its source (if it is a raw disk, import it with --format raw)";

/// How a whole file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Packing {
    const ALL: [Packing; 4] = [Packing::Gzip, Packing::Xz, Packing::Zstd, Packing::Bzip2];

    /// The first bytes of a compressed file.
    fn magic(self) -> &'static [u8] {
        match self {
            Packing::Gzip => b"\x1f\x8b",
            Packing::Xz => b"\xfd7zXZ\0",
            Packing::Zstd => b"\x28\xb5\x2f\xfd",
            Packing::Bzip2 => b"BZh",
        }
    }

    /// The extension of file names, in lower case.
    fn extension(self) -> &'static str {
        match self {
            Packing::Gzip => "gz",
            Packing::Xz => "xz",
            Packing::Zstd => "zst",
            Packing::Bzip2 => "bz2",
        }
    }

    /// Detects the compression of a file from its contents. The format `Raw` states that the bytes of the
    /// file are those of the disk.
    pub fn detect(file: &ImageFile, given: Format) -> Result<Option<Packing>> {
        if given == Format::Raw {
            return Ok(None);
        }
        // The disk in a fixed VHD begins with any bytes; the footer identifies the file.
        if vhd::is_vhd(file)? {
            return Ok(None);
        }
        let head = file.read_vec(0, file.len().min(6))?;
        Ok(Packing::ALL.into_iter().find(|packing| head.starts_with(packing.magic())))
    }

    /// The name of the decompressed file: without the extension.
    pub fn unpacked_name(self, name: &str) -> String {
        match name.rsplit_once('.') {
            Some((stem, extension)) if extension.eq_ignore_ascii_case(self.extension()) => stem.to_owned(),
            _ => name.to_owned(),
        }
    }
}

/// Decompresses a file to `spool`. `max_bytes` limits the length of the result. Dropping the future stops the
/// decompression.
pub(super) async fn unpack(
    file: ImageFile,
    packing: Packing,
    spool: Spool,
    max_bytes: u64,
    progress: impl FnMut(Progress),
) -> Result<ImageFile> {
    let shown = file.display_name().to_owned();
    let work = move |permit: &Permit, report| store(file, packing, spool, max_bytes, report, permit);
    DECODERS.run(shown, work, progress).await
}

fn store(
    file: ImageFile,
    packing: Packing,
    mut spool: Spool,
    max_bytes: u64,
    report: mpsc::Sender<u64>,
    permit: &Permit,
) -> Result<ImageFile> {
    decode(&file, packing, &report, &mut |piece| {
        permit.beat();
        if report.is_closed() {
            return Err(ImportError::Cancelled);
        }
        file.charge_decompressed(piece.len() as u64, Remedy::Say("decompress it first"))?;
        if spool.len() + piece.len() as u64 > max_bytes {
            let why = format!(
                "it becomes more than {}, the limit set by --max-size or --import-max-size",
                Size(max_bytes)
            );
            return Err(failed(&file, why));
        }
        spool.append_sparse(piece).map_err(|e| {
            let work = format!("decompression of {}", file.display_name());
            not_stored(e, work, &spool)
        })
    })?;
    let name = packing.unpacked_name(&file.file_name());
    let (display_name, path) = (file.display_name().to_owned(), spool.directory());
    let unpacked = spool.into_file().map_err(|error| ImportError::Spool { path, error })?;
    let stated = Download { file_name: name, content_type: None };
    Ok(ImageFile::from_download(unpacked, display_name, stated)?.expanded_from(&file))
}

/// Returns the error of data that `spool` does not store. `work` is what is stopped, without its article.
pub(super) fn not_stored(error: SpoolError, work: String, spool: &Spool) -> ImportError {
    let path = spool.directory();
    match error {
        SpoolError::NoRoom { free, keep } => ImportError::NoRoom { work, path, free, keep },
        // A spool that decodes nothing has no other errors.
        SpoolError::Storage(error) | SpoolError::Coding(error) => ImportError::Spool { path, error },
    }
}

fn failed(file: &ImageFile, reason: String) -> ImportError {
    ImportError::Unpack { path: file.display_name().to_owned(), reason }
}

/// Decompresses a file, and calls `sink` with each piece of the result.
pub(super) fn decode(
    file: &ImageFile,
    packing: Packing,
    report: &mpsc::Sender<u64>,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut source = Source { file, report, read: 0, buffer: Vec::new(), used: 0 };
    match packing {
        Packing::Gzip => loop {
            copy(file, &mut GzDecoder::new(&mut source), sink)?;
            if !source.has_gzip_member()? {
                return Ok(());
            }
        },
        Packing::Xz => {
            let limit_kib = (MAX_WINDOW >> 10) as u32;
            copy(file, &mut XzReader::new_mem_limit(source, true, limit_kib), sink)
        }
        Packing::Zstd => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(MAX_WINDOW);
            copy(file, &mut Frames { source, decoder, is_within: false }, sink)
        }
        Packing::Bzip2 => copy(file, &mut MultiBzDecoder::new(source), sink),
    }
}

/// Reads a decoder to its end, and calls `sink` with each piece.
fn copy(file: &ImageFile, decoder: &mut dyn Read, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let mut len = 0;
        while len < piece.len() {
            match decoder.read(&mut piece[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => (),
                Err(e) => return Err(decoding_error(file, e)),
            }
        }
        if len == 0 {
            return Ok(());
        }
        sink(&piece[..len])?;
    }
}

/// Returns the error of the file that a decoder reports as `error`.
fn decoding_error(file: &ImageFile, error: io::Error) -> ImportError {
    let kind = error.kind();
    match error.downcast::<ImportError>() {
        Ok(of_file) => of_file,
        Err(_) if kind == ErrorKind::UnexpectedEof => {
            failed(file, format!("the compressed data ends early; {COPY_AGAIN}"))
        }
        Err(e) if kind == ErrorKind::OutOfMemory => failed(file, too_much_memory(&e)),
        Err(e) => failed(file, format!("its data is damaged ({e}); {COPY_AGAIN}")),
    }
}

fn too_much_memory(error: &dyn std::fmt::Display) -> String {
    format!("that needs more than {} of memory ({error}); decompress it first", Size(MAX_WINDOW))
}

/// The compressed file as a stream.
struct Source<'a> {
    file: &'a ImageFile,
    report: &'a mpsc::Sender<u64>,
    /// Bytes of the file that were read into `buffer` and before.
    read: u64,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were consumed.
    used: usize,
}

impl Source<'_> {
    /// The offset in the file of the next byte.
    fn position(&self) -> u64 {
        self.read - (self.buffer.len() - self.used) as u64
    }

    /// Whether another gzip member follows the one that has ended. Zeroes and the trailer of OpenWrt are
    /// permitted after the last member.
    fn has_gzip_member(&mut self) -> Result<bool> {
        let (file, at) = (self.file, self.position());
        let rest = file.len() - at;
        let magic = Packing::Gzip.magic();
        if rest >= magic.len() as u64 && file.read_array::<2>(at)? == magic {
            return Ok(true);
        }
        let (trailer, trailer_len) = OPENWRT;
        if rest >= trailer_len && file.read_array::<4>(file.len() - trailer_len)? == trailer {
            return Ok(false);
        }
        loop {
            let piece = self.fill_buf().map_err(|e| decoding_error(file, e))?;
            if piece.is_empty() {
                return Ok(false);
            }
            if !forebay_engine::is_zero(piece) {
                return Err(failed(
                    file,
                    "other data follows its compressed data; decompress it first".into(),
                ));
            }
            let len = piece.len();
            self.consume(len);
        }
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used == self.buffer.len() {
            // Also data that decompresses to nothing ends when the import is cancelled.
            if self.report.is_closed() {
                return Err(io::Error::other(ImportError::Cancelled));
            }
            // A slow receiver misses some reports.
            let _ = self.report.try_send(self.read);
            let len = (self.file.len() - self.read).min(PIECE as u64);
            self.buffer = self.file.read_vec(self.read, len).map_err(io::Error::other)?;
            (self.read, self.used) = (self.read + len, 0);
        }
        Ok(&self.buffer[self.used..])
    }

    fn consume(&mut self, len: usize) {
        self.used += len;
    }
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let len = piece.len().min(out.len());
        out[..len].copy_from_slice(&piece[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// The frames of a Zstandard file (RFC 8878, section 3), some of which may be skippable.
struct Frames<'a> {
    source: Source<'a>,
    decoder: FrameDecoder,
    /// Whether a frame has begun and its checksum is not checked yet.
    is_within: bool,
}

impl Frames<'_> {
    /// Begins the next frame; `false` at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e @ FrameDecoderError::WindowSizeTooBig { .. }) => {
                    return Err(io::Error::new(ErrorKind::OutOfMemory, e));
                }
                Err(e) => return Err(self.bad(e)),
            }
        }
        Ok(false)
    }

    /// Returns the error of damaged data, or of data that ends early: the decoder does not distinguish them.
    fn bad(&self, error: FrameDecoderError) -> io::Error {
        match self.source.position() == self.source.file.len() {
            true => ErrorKind::UnexpectedEof.into(),
            false => io::Error::new(ErrorKind::InvalidData, error),
        }
    }
}

impl Read for Frames<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.is_within && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(|e| self.bad(e))?;
                continue;
            }
            if self.is_within {
                let stated = self.decoder.get_checksum_from_data();
                if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
                    return Err(io::Error::new(ErrorKind::InvalidData, "a checksum is wrong"));
                }
            }
            self.is_within = self.begin()?;
            if !self.is_within {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file of `len` bytes, which are `byte`, compressed with bzip2.
    fn packed(byte: u8, len: u64) -> (tempfile::TempDir, ImageFile) {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(&vec![byte; len as usize]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.raw.bz2");
        std::fs::write(&path, encoder.finish().unwrap()).unwrap();
        (directory, ImageFile::open(&path).unwrap())
    }

    /// Decompresses a file to a spool that keeps `keep` bytes free.
    fn stored(file: ImageFile, directory: &tempfile::TempDir, keep: u64, max: u64) -> Result<ImageFile> {
        let spool = Spool::create(directory.path(), Box::new(move |_| keep)).unwrap();
        let (report, _reports) = mpsc::channel(1);
        let packing = Packing::detect(&file, Format::Auto).unwrap().unwrap();
        store(file, packing, spool, max, report, &Permit::none())
    }

    fn refused(file: ImageFile, directory: &tempfile::TempDir, keep: u64, max: u64) -> String {
        stored(file, directory, keep, max).err().expect("the file was decompressed").to_string()
    }

    #[test]
    fn zeroes_need_no_room() {
        let (directory, file) = packed(0, 3 * MIB + 5);
        let mut unpacked = stored(file, &directory, u64::MAX, u64::MAX).unwrap();
        assert_eq!(unpacked.len(), 3 * MIB + 5);
        assert!(!unpacked.run(0).unwrap().data, "the zeroes are stored");
        assert_eq!(unpacked.file_name(), "disk.raw");
    }

    #[test]
    fn size_room_and_ratio_are_bounded() {
        let (directory, file) = packed(7, 3 * MIB);
        let message = refused(file, &directory, 0, MIB);
        assert!(message.contains("more than 1 MiB, the limit set by --max-size"), "{message}");
        let (directory, file) = packed(7, 3 * MIB);
        let message = refused(file, &directory, u64::MAX, u64::MAX);
        assert!(message.contains("the decompression of") && message.contains("kept free"), "{message}");
        let (directory, file) = packed(7, 3 * MIB);
        file.charge_decompressed(1032 * file.len() + (1 << 30) - MIB, Remedy::UseRaw).unwrap();
        let message = refused(file, &directory, 0, u64::MAX);
        assert!(message.contains("1032 times its length; decompress it first"), "{message}");
    }

    /// The compressed contents of the result may become no more bytes than those of the file that was given.
    #[test]
    fn an_image_in_a_compressed_file_expands_from_the_length_of_that_file() {
        let (directory, file) = packed(7, 3 * MIB);
        let len = file.len();
        let unpacked = stored(file, &directory, 0, u64::MAX).unwrap();
        assert!(unpacked.charge_decompressed(1032 * len + (1 << 30), Remedy::UseRaw).is_ok());
        assert!(unpacked.charge_decompressed(1, Remedy::UseRaw).is_err());
    }

    #[test]
    fn a_cancelled_decompression_ends_soon() {
        let (_directory, file) = packed(0, MIB);
        let (report, reports) = mpsc::channel(1);
        drop(reports);
        let mut pieces = 0;
        let ended = decode(&file, Packing::Bzip2, &report, &mut |_| {
            pieces += 1;
            Ok(())
        });
        assert!(matches!(ended, Err(ImportError::Cancelled)) && pieces == 0);
    }
}
