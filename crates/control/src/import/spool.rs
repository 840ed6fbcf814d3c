//! The file into which a download, an upload or a decompressed file is written: it has no name, so the file
//! system frees it when it is closed, even by a crash.
//!
//! It is in the data directory, whose file system usually holds the pool. So writing stops before the
//! store would be low on room: guests' writes precede it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::write::{MultiGzDecoder, ZlibDecoder};
use forebay_engine::is_zero;
use forebay_text::Size;

use super::{ImportError, Result};

/// Number of bytes that are decompressed at once. Their decompressed form has at most about 1,000 times as
/// many bytes.
const DECODED: usize = 4096;

/// A part of the capacity that is kept free, as a function of the file system's total bytes.
pub(super) type KeepFree = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// The file in which a download is stored.
pub(super) struct Spool {
    file: File,
    directory: PathBuf,
    keep_free: KeepFree,
    decoder: Decoder,
    len: u64,
}

/// The content coding of the response (RFC 9110, section 8.4.1).
enum Decoder {
    Identity,
    Gzip(MultiGzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

/// Why downloaded data cannot be stored.
pub(super) enum SpoolError {
    /// The data is not in the content coding that the server stated.
    Coding(io::Error),
    /// The file system returned an error.
    Storage(io::Error),
    /// The file system has too little room: its free bytes, and the bytes that are kept free.
    NoRoom { free: Size, keep: Size },
}

impl Spool {
    /// Creates an empty file in `directory`.
    pub fn create(directory: &Path, keep_free: KeepFree) -> Result<Spool> {
        let file = unnamed_file(directory)
            .map_err(|error| ImportError::Spool { path: directory.display().to_string(), error })?;
        Ok(Spool { file, directory: directory.to_owned(), keep_free, decoder: Decoder::Identity, len: 0 })
    }

    /// The directory of the spool file.
    pub fn directory(&self) -> String {
        self.directory.display().to_string()
    }

    /// Number of bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the received data is decompressed.
    pub fn is_coded(&self) -> bool {
        !matches!(self.decoder, Decoder::Identity)
    }

    /// Empties the file. What is written from now on has this content coding; returns `false` if the coding
    /// is not supported.
    pub fn restart(&mut self, coding: &str) -> io::Result<bool> {
        self.decoder = match coding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Decoder::Identity,
            "gzip" | "x-gzip" => Decoder::Gzip(MultiGzDecoder::new(Vec::new())),
            "deflate" => Decoder::Deflate(ZlibDecoder::new(Vec::new())),
            _ => return Ok(false),
        };
        self.file.set_len(0)?;
        self.len = 0;
        Ok(true)
    }

    /// Checks that the file can grow by `more` bytes, and that the file system then still has the free space
    /// that `keep_free` demands.
    pub fn check_room(&self, more: u64) -> std::result::Result<(), SpoolError> {
        let (free, total) = capacity(&self.file).map_err(SpoolError::Storage)?;
        let keep = (self.keep_free)(total);
        match free < keep.saturating_add(more) {
            true => Err(SpoolError::NoRoom { free: Size(free), keep: Size(keep) }),
            false => Ok(()),
        }
    }

    /// Appends data that was received from the server of the URL.
    pub fn write(&mut self, data: &[u8]) -> std::result::Result<(), SpoolError> {
        match self.decoder {
            Decoder::Identity => self.append(data),
            _ => data.chunks(DECODED).try_for_each(|part| {
                let decoded = self.decode(part).map_err(SpoolError::Coding)?;
                self.append(&decoded)
            }),
        }
    }

    /// Ends the data: a compressed stream has to be complete.
    pub fn finish(&mut self) -> std::result::Result<(), SpoolError> {
        let rest = match std::mem::replace(&mut self.decoder, Decoder::Identity) {
            Decoder::Identity => return Ok(()),
            Decoder::Gzip(decoder) => decoder.finish(),
            Decoder::Deflate(decoder) => decoder.finish(),
        };
        self.append(&rest.map_err(SpoolError::Coding)?)
    }

    /// Appends data. Data of zeroes becomes a hole, for which no room is needed.
    pub fn append_sparse(&mut self, data: &[u8]) -> std::result::Result<(), SpoolError> {
        if !is_zero(data) {
            return self.append(data);
        }
        self.len += data.len() as u64;
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> std::result::Result<(), SpoolError> {
        self.check_room(data.len() as u64)?;
        if let Err(e) = self.file.write_all_at(data, self.len) {
            // A repetition is stored at the same place. If it is a hole, no part of this data may remain in
            // it.
            self.file.set_len(self.len).map_err(SpoolError::Storage)?;
            return Err(SpoolError::Storage(e));
        }
        self.len += data.len() as u64;
        Ok(())
    }

    fn decode(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        let decoded = match &mut self.decoder {
            Decoder::Identity => return Ok(data.to_vec()),
            Decoder::Gzip(decoder) => {
                decoder.write_all(data)?;
                decoder.get_mut()
            }
            Decoder::Deflate(decoder) => {
                decoder.write_all(data)?;
                decoder.get_mut()
            }
        };
        Ok(std::mem::take(decoded))
    }

    /// Returns the file, which is complete after [`Spool::finish`].
    pub fn into_file(self) -> io::Result<File> {
        // A hole at the end is not in the file yet.
        self.file.set_len(self.len)?;
        Ok(self.file)
    }

    /// Opens the file again, with a separate position.
    pub fn open_again(&self) -> io::Result<File> {
        self.file.set_len(self.len)?;
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Creates an unnamed file in `directory`.
fn unnamed_file(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(directory) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => (),
        other => return other,
    }
    // The file system does not support O_TMPFILE: create a named file and unlink it.
    let path = directory.join(format!(".download-{}-{:?}", std::process::id(), std::thread::current().id()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Returns the free and the total bytes of the file system of a file.
fn capacity(file: &File) -> io::Result<(u64, u64)> {
    // SAFETY: an all-zero statvfs is a valid value of a plain C structure.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and the structure is valid for writing.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if stat.f_blocks == 0 {
        // A tmpfs without a limit has no blocks.
        return Ok((u64::MAX, u64::MAX));
    }
    Ok((stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_blocks.saturating_mul(stat.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool(keep: u64) -> (tempfile::TempDir, Spool) {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::create(directory.path(), Box::new(move |_| keep)).unwrap();
        (directory, spool)
    }

    #[test]
    fn room_is_kept_free() {
        let (_directory, mut spool) = spool(u64::MAX);
        assert!(matches!(spool.write(b"x"), Err(SpoolError::NoRoom { .. })));
        assert_eq!(spool.len(), 0);
    }

    #[test]
    fn compressed_streams_are_decompressed_and_checked() {
        let data: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&data).unwrap();
        let coded = encoder.finish().unwrap();
        let (_directory, mut spool) = spool(0);
        for (coding, sent, ok) in [
            ("x-GZIP", &coded[..], true),
            ("gzip", &coded[..coded.len() - 9], false),
            ("gzip", &b"plain text"[..], false),
        ] {
            assert!(spool.restart(coding).unwrap());
            let written = spool.write(sent).and_then(|()| spool.finish());
            assert_eq!(written.is_ok(), ok, "{coding}");
            assert!(!ok || spool.len() == data.len() as u64);
        }
        assert!(spool.restart("").unwrap() && !spool.restart("br").unwrap());
    }
}
