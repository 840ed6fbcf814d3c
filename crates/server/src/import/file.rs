//! Bounds-checked access to an image file, because offsets are often read from the untrusted file itself.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{ImportError, Result, Run};

/// An open image file.
pub(super) struct ImageFile {
    file: File,
    path: PathBuf,
    display_name: String,
    len: u64,
    /// The file system does not support SEEK_DATA and SEEK_HOLE.
    no_holes: bool,
}

impl ImageFile {
    /// Opens a file or a block device. Other files (a pipe, a directory) are refused without blocking.
    pub fn open(path: &Path) -> Result<ImageFile> {
        if !path.is_absolute() {
            return Err(ImportError::RelativePath(path.display().to_string()));
        }
        Self::open_with(path, 0)
    }

    /// Opens a file that an image file references. It must be in the same directory, and not a symbolic link.
    pub fn open_sibling(&self, name: &str) -> Result<ImageFile> {
        let bad = self.damaged_or("an extent is not a plain *.vmdk file in the same directory");
        let plain = !name.contains(['/', '\0']) && name.len() > 5 && !name.starts_with('.');
        let suffix = name.get(name.len().saturating_sub(5)..);
        if !plain || !suffix.is_some_and(|s| s.eq_ignore_ascii_case(".vmdk")) {
            return Err(bad);
        }
        let directory = self.path.parent().ok_or(bad)?;
        Self::open_with(&directory.join(name), libc::O_NOFOLLOW)
    }

    fn open_with(path: &Path, flags: i32) -> Result<ImageFile> {
        let display_name = path.display().to_string();
        let failed = |error| ImportError::Open { path: display_name.clone(), error };
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
    pub fn from_download(file: File, display_name: &str) -> Result<ImageFile> {
        Self::from_file(file, PathBuf::new(), display_name.to_owned())
    }

    fn from_file(mut file: File, path: PathBuf, display_name: String) -> Result<ImageFile> {
        // The metadata of a block device has no length, so seek to its end.
        let len = file
            .seek(SeekFrom::End(0))
            .map_err(|error| ImportError::Open { path: display_name.clone(), error })?;
        // SAFETY: advice about an open descriptor; it affects readahead only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
        Ok(ImageFile { file, path, display_name, len, no_holes: false })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Path or URL for messages.
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Fills `out` from `offset`; fails if the file ends before.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.len {
            return Err(self.truncated(end));
        }
        self.file.read_exact_at(out, offset).map_err(|error| match error.kind() {
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
        match self.seek(offset, libc::SEEK_DATA) {
            Ok(data) if data > offset => Ok(Run { len: data.min(self.len) - offset, data: false }),
            Ok(_) => match self.seek(offset, libc::SEEK_HOLE) {
                Ok(hole) if hole > offset => Ok(Run { len: hole.min(self.len) - offset, data: true }),
                // The file changed concurrently, or the file system is inconsistent: read the rest as data.
                _ => Ok(rest),
            },
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(Run { len: rest.len, data: false }),
            Err(_) => {
                self.no_holes = true;
                Ok(rest)
            }
        }
    }

    fn seek(&self, offset: u64, whence: i32) -> std::io::Result<u64> {
        let offset = i64::try_from(offset).map_err(|_| std::io::Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: moves the position of a descriptor that only this type uses; all reads have explicit
        // offsets.
        let found = unsafe { libc::lseek64(self.file.as_raw_fd(), offset, whence) };
        u64::try_from(found).map_err(|_| std::io::Error::last_os_error())
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
    pub fn unsupported<T>(&self, what: &'static str) -> Result<T> {
        Err(ImportError::Unsupported { path: self.display_name.clone(), what })
    }
}

/// Little- and big-endian numbers in a byte slice. The functions panic if the slice is too short.
pub(super) mod bytes {
    /// The two bytes at `at`.
    pub fn le16(b: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(array(b, at))
    }
    /// The four bytes at `at`.
    pub fn le32(b: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(array(b, at))
    }
    /// The eight bytes at `at`.
    pub fn le64(b: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(array(b, at))
    }
    /// The four bytes at `at`.
    pub fn be32(b: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(array(b, at))
    }
    /// The eight bytes at `at`.
    pub fn be64(b: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(array(b, at))
    }
    /// The `N` bytes at `at`.
    pub fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&b[at..at + N]);
        out
    }
}
