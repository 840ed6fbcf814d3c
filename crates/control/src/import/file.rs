//! Bounds-checked access to an image file, because offsets are often read from the untrusted file itself.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::Remedy;
use super::{ImportError, Result, Run, visible};

/// Bytes of contents that may be read in addition to the length of a valid file: detection reads a few twice.
const CONTENTS_SLACK: u64 = 64 << 10;
/// Maximum number of bytes that compressed data becomes, as a multiple of the file's length. DEFLATE cannot
/// exceed this multiple. Zstandard can exceed it by a factor of 25.
const EXPANSION: u64 = 1032;
/// Bytes that compressed data becomes in a file of any length: a small image of a disk that has almost only
/// zeroes exceeds [`EXPANSION`].
const EXPANSION_SLACK: u64 = 1 << 30;

/// Maximum length of the name of a part of an archive in messages.
const MAX_SHOWN: usize = 1024;

/// An image file that is open.
pub(super) struct ImageFile {
    file: File,
    /// Path of the file; empty for a download, which has no name on this machine.
    path: PathBuf,
    display_name: String,
    /// The name that the server of a URL gives to the file, and its media type.
    download: Option<Download>,
    /// Offset at which the file begins in `file`: other than 0 for a part of an archive.
    base: u64,
    len: u64,
    /// Bytes that were read as contents of the disk.
    contents: Cell<u64>,
    /// Number of bytes that decompression has produced.
    decompressed: Cell<u64>,
    /// The length that limits `decompressed`: of the file that was given, from which this file may have been
    /// decompressed.
    expands: u64,
    /// The file system does not support SEEK_DATA and SEEK_HOLE.
    no_holes: bool,
}

/// The file system of a file, and the number of the file there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

/// What a web server states about a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Download {
    /// The last segment of the URL's path.
    pub file_name: String,
    /// Media type of the file, in lower case and without parameters.
    pub content_type: Option<String>,
}

impl ImageFile {
    /// Opens a file or a block device. Anything else (a pipe, a directory) is refused without blocking.
    pub fn open(path: &Path) -> Result<ImageFile> {
        if !path.is_absolute() {
            return Err(ImportError::RelativePath(path.display().to_string()));
        }
        Self::open_with(path, 0)
    }

    /// Opens a file that an image file references. It must be in the same directory, and not a symbolic link.
    /// The name is a sequence of bytes in an encoding that the file system does not know.
    pub fn open_sibling(&self, name: &[u8]) -> Result<ImageFile> {
        let bad = self.damaged_or("an extent is not a plain *.vmdk file in the same directory");
        let plain = !name.iter().any(|b| matches!(b, b'/' | 0)) && name.len() > 5 && !name.starts_with(b".");
        let suffix = &name[name.len().saturating_sub(5)..];
        if !plain || !suffix.eq_ignore_ascii_case(b".vmdk") {
            return Err(bad);
        }
        let directory = self.path.parent().ok_or(bad)?;
        let opened = Self::open_with(&directory.join(OsStr::from_bytes(name)), libc::O_NOFOLLOW);
        // The client can upload a file that the server cannot open, but not the extents with it.
        opened.map_err(|e| ImportError::Extent(Box::new(e)))
    }

    fn open_with(path: &Path, flags: i32) -> Result<ImageFile> {
        let display_name = path.display().to_string();
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => {
                ImportError::Missing { path: display_name.clone(), view: visible::of_server(path) }
            }
            _ => ImportError::Open { path: display_name.clone(), error },
        };
        // O_NONBLOCK, so that opening a pipe without a writer does not block before its type is checked.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | flags);
        let file = options.open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        let what = match kind {
            k if k.is_file() || k.is_block_device() => None,
            k if k.is_dir() => Some("a directory"),
            k if k.is_fifo() => Some("a pipe"),
            _ => Some("a character device or a socket"),
        };
        if let Some(what) = what {
            return Err(ImportError::NotAFile { path: display_name, what });
        }
        Self::from_file(file, path.to_owned(), display_name)
    }

    /// Wraps a downloaded file, which has no siblings. Messages show it as `display_name`.
    pub fn from_download(file: File, display_name: String, download: Download) -> Result<ImageFile> {
        let file = Self::from_file(file, PathBuf::new(), display_name)?;
        Ok(ImageFile { download: Some(download), ..file })
    }

    /// States that this file was decompressed from `packed`: its compressed contents become no more bytes
    /// than those of `packed` may.
    pub fn expanded_from(self, packed: &ImageFile) -> ImageFile {
        ImageFile { expands: packed.expands, ..self }
    }

    /// Wraps any file.
    pub fn from_file(mut file: File, path: PathBuf, display_name: String) -> Result<ImageFile> {
        // The metadata of a block device has no length, so seek to its end.
        let len = file
            .seek(SeekFrom::End(0))
            .map_err(|error| ImportError::Open { path: display_name.clone(), error })?;
        // SAFETY: advice about an open descriptor; it affects readahead only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
        let (contents, decompressed) = (Cell::new(0), Cell::new(0));
        Ok(ImageFile {
            file,
            path,
            display_name,
            download: None,
            base: 0,
            len,
            contents,
            decompressed,
            expands: len,
            no_holes: false,
        })
    }

    /// Returns the `len` bytes from `offset` on as a separate file, with this name and without siblings. The
    /// caller has checked the range.
    pub fn part(&self, offset: u64, len: u64, name: String) -> Result<ImageFile> {
        let file = self.file.try_clone();
        let file = file.map_err(|error| ImportError::Open { path: self.display_name.clone(), error })?;
        let shown = forebay_text::shortened(format_args!("{} in {}", name, self.display_name), MAX_SHOWN);
        Ok(ImageFile {
            file,
            path: PathBuf::new(),
            display_name: shown,
            download: Some(Download { file_name: name, content_type: None }),
            base: self.base + offset,
            len,
            contents: Cell::new(0),
            decompressed: Cell::new(0),
            expands: len,
            no_holes: self.no_holes,
        })
    }

    /// Identifies the file, also if it has several names.
    pub fn identity(&self) -> Result<FileIdentity> {
        let metadata = self.file.metadata();
        let metadata =
            metadata.map_err(|error| ImportError::Open { path: self.display_name.clone(), error })?;
        Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Path or URL of the file, for messages.
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// The name of the file without its directory.
    pub fn file_name(&self) -> String {
        match &self.download {
            Some(download) => download.file_name.clone(),
            None => self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// The media type that the server of a URL states.
    pub fn content_type(&self) -> Option<&str> {
        self.download.as_ref()?.content_type.as_deref()
    }

    /// Reads contents of the disk at `offset`, see [`ImageFile::charge`].
    pub fn read_contents(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.charge(out.len() as u64)?;
        self.read_at(offset, out)
    }

    /// Counts `len` bytes of the file as contents of the disk.
    ///
    /// In a valid file each byte is the contents of at most one place of the disk. Without this check, the
    /// tables of a small file could repeat one cluster over a disk of many TiB, and the import would not end.
    pub fn charge(&self, len: u64) -> Result<()> {
        let sum = self.contents.get().saturating_add(len);
        self.contents.set(sum);
        match sum > self.len.saturating_add(CONTENTS_SLACK) {
            true => self.damaged("its tables refer to the same data more than once"),
            false => Ok(()),
        }
    }

    /// Counts `len` bytes that compressed contents become. `remedy` is for a file that exceeds the limit.
    ///
    /// [`ImageFile::charge`] limits the compressed data. Without this second limit, a file of 1 GB could
    /// cause the decompression of 25 TB, because its author chooses the ratio.
    pub fn charge_decompressed(&self, len: u64, remedy: Remedy) -> Result<()> {
        let sum = self.decompressed.get().saturating_add(len);
        self.decompressed.set(sum);
        match sum > self.expands.saturating_mul(EXPANSION).saturating_add(EXPANSION_SLACK) {
            true => self.unsupported("decompresses to more than 1032 times its length", remedy),
            false => Ok(()),
        }
    }

    /// Fills `out` from `offset`; fails if the file ends before.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.len {
            return Err(self.truncated(end));
        }
        self.file.read_exact_at(out, self.base + offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.truncated(end),
            _ => ImportError::Read { path: self.display_name.clone(), offset, error },
        })
    }

    /// Returns the error of a file that ends before `end`.
    pub fn truncated(&self, end: u64) -> ImportError {
        ImportError::Truncated { path: self.display_name.clone(), len: self.len, needed: end }
    }

    /// Reads `N` bytes at `offset`.
    pub fn read_array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads `len` bytes at `offset`; checks the range before the allocation.
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let (true, Ok(size)) = (fits, usize::try_from(len)) else {
            return Err(self.truncated(offset.saturating_add(len)));
        };
        let mut bytes = vec![0; size];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the run at `offset`, which is within the file: a hole or data, according to the file system.
    pub fn run(&mut self, offset: u64) -> Result<Run> {
        let rest = Run { len: self.len - offset, data: true };
        if self.no_holes {
            return Ok(rest);
        }
        match self.seek_within(offset, libc::SEEK_DATA) {
            Ok(data) if data > offset => Ok(Run { len: data.min(self.len) - offset, data: false }),
            Ok(_) => match self.seek_within(offset, libc::SEEK_HOLE) {
                Ok(hole) if hole > offset => Ok(Run { len: hole.min(self.len) - offset, data: true }),
                // The file changed concurrently, or the file system is inconsistent, so everything from here
                // on is read as data.
                _ => Ok(rest),
            },
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(Run { len: rest.len, data: false }),
            Err(_) => {
                self.no_holes = true;
                Ok(rest)
            }
        }
    }

    /// Returns where the data or the hole after `offset` begins.
    fn seek_within(&self, offset: u64, whence: i32) -> std::io::Result<u64> {
        let offset =
            i64::try_from(self.base + offset).map_err(|_| std::io::Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: moves the position of a descriptor that only this type uses; all reads have explicit
        // offsets.
        let found = unsafe { libc::lseek64(self.file.as_raw_fd(), offset, whence) };
        let found = u64::try_from(found).map_err(|_| std::io::Error::last_os_error())?;
        Ok(found.saturating_sub(self.base))
    }

    /// Returns the error of a file that violates its format.
    pub fn damaged<T>(&self, what: &'static str) -> Result<T> {
        Err(self.damaged_or(what))
    }

    /// Returns the same error without `Err`, for `ok_or_else`.
    pub fn damaged_or(&self, what: &'static str) -> ImportError {
        ImportError::Damaged { path: self.display_name.clone(), what }
    }

    /// Returns the error of a file that uses an unsupported feature or format.
    pub fn unsupported<T>(&self, what: &'static str, remedy: Remedy) -> Result<T> {
        // A download is at no path; `FILE` stands for the path of the user's own download.
        let file = if self.path.as_os_str().is_empty() { Path::new("FILE") } else { &self.path };
        let file = quoted(&file.to_string_lossy());
        Err(ImportError::Unsupported { path: self.display_name.clone(), what, remedy, file })
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Little- and big-endian numbers in a byte slice. The functions panic if the slice is too short.
pub(super) mod bytes {
    /// Returns the number in the two bytes at `at`, little-endian.
    pub fn le16(b: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(array(b, at))
    }
    /// Returns the number in the four bytes at `at`, little-endian.
    pub fn le32(b: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(array(b, at))
    }
    /// Returns the number in the eight bytes at `at`, little-endian.
    pub fn le64(b: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(array(b, at))
    }
    /// Returns the number in the four bytes at `at`, big-endian.
    pub fn be32(b: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(array(b, at))
    }
    /// Returns the number in the eight bytes at `at`, big-endian.
    pub fn be64(b: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(array(b, at))
    }
    /// Returns the `N` bytes at `at`.
    pub fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&b[at..at + N]);
        out
    }
}
