//! A file that is read at offsets which the file itself may have named.

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
    shown: String,
    len: u64,
    /// The file system does not tell holes apart.
    no_holes: bool,
}

impl ImageFile {
    /// Opens a file or a block device. Anything else (a pipe, a directory) is refused and not waited for.
    pub fn open(path: &Path) -> Result<ImageFile> {
        if !path.is_absolute() {
            return Err(ImportError::RelativePath(path.display().to_string()));
        }
        Self::open_with(path, 0)
    }

    /// Opens a file that an image file names: in the same directory, and not through a link.
    pub fn open_sibling(&self, name: &str) -> Result<ImageFile> {
        let bad = self.damaged_or("names an extent file that is not a plain *.vmdk beside it");
        let plain = !name.contains(['/', '\0']) && name.len() > 5 && !name.starts_with('.');
        let suffix = name.get(name.len().saturating_sub(5)..);
        if !plain || !suffix.is_some_and(|s| s.eq_ignore_ascii_case(".vmdk")) {
            return Err(bad);
        }
        let directory = self.path.parent().ok_or(bad)?;
        Self::open_with(&directory.join(name), libc::O_NOFOLLOW)
    }

    fn open_with(path: &Path, flags: i32) -> Result<ImageFile> {
        let shown = path.display().to_string();
        let failed = |error| ImportError::Open { path: shown.clone(), error };
        // O_NONBLOCK, so that a pipe without a writer does not hold us up before we see that it is one.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | flags);
        let file = options.open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        let what = match kind {
            k if k.is_file() || k.is_block_device() => None,
            k if k.is_dir() => Some("a directory"),
            k if k.is_fifo() => Some("a pipe"),
            _ => Some("a device that is no disk"),
        };
        if let Some(what) = what {
            return Err(ImportError::NotAFile { path: shown, what });
        }
        Self::from_file(file, path.to_owned(), shown)
    }

    /// A file that is open already and shown to people as `shown`; it has no siblings.
    pub fn from_download(file: File, shown: &str) -> Result<ImageFile> {
        Self::from_file(file, PathBuf::new(), shown.to_owned())
    }

    fn from_file(mut file: File, path: PathBuf, shown: String) -> Result<ImageFile> {
        // Block devices have a length only in this way.
        let len =
            file.seek(SeekFrom::End(0)).map_err(|error| ImportError::Open { path: shown.clone(), error })?;
        // SAFETY: advice about a descriptor that is open; it changes nothing but readahead.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
        Ok(ImageFile { file, path, shown, len, no_holes: false })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How people know it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Fills `out` from `offset`; a file that ends before is cut short.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            let offset = offset.saturating_add(out.len() as u64);
            return Err(ImportError::Truncated { path: self.shown.clone(), len: self.len, offset });
        }
        self.file.read_exact_at(out, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                ImportError::Truncated { path: self.shown.clone(), len: self.len, offset }
            }
            _ => ImportError::Read { path: self.shown.clone(), offset, error },
        })
    }

    /// `N` bytes at `offset`.
    pub fn read_array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// `len` bytes at `offset`; allocates only what the file has.
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let (true, Ok(size)) = (fits, usize::try_from(len)) else {
            let offset = offset.saturating_add(len);
            return Err(ImportError::Truncated { path: self.shown.clone(), len: self.len, offset });
        };
        let mut bytes = vec![0; size];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// What the file system knows of holes at `offset`, which is within the file.
    pub fn run(&mut self, offset: u64) -> Result<Run> {
        let rest = Run { len: self.len - offset, data: true };
        if self.no_holes {
            return Ok(rest);
        }
        match self.seek(offset, libc::SEEK_DATA) {
            Ok(data) if data > offset => Ok(Run { len: data.min(self.len) - offset, data: false }),
            Ok(_) => match self.seek(offset, libc::SEEK_HOLE) {
                Ok(hole) if hole > offset => Ok(Run { len: hole.min(self.len) - offset, data: true }),
                // The file changed under us, or the file system does not mean it.
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
        // SAFETY: moves the position of a descriptor that is ours; all reads name their own offset.
        let found = unsafe { libc::lseek64(self.file.as_raw_fd(), offset, whence) };
        u64::try_from(found).map_err(|_| std::io::Error::last_os_error())
    }

    /// The error of a file that contradicts its format.
    pub fn damaged<T>(&self, what: &'static str) -> Result<T> {
        Err(self.damaged_or(what))
    }

    /// The same, for `ok_or`.
    pub fn damaged_or(&self, what: &'static str) -> ImportError {
        ImportError::Damaged { path: self.shown.clone(), what }
    }

    /// The error of a file that uses what is not read here.
    pub fn unsupported<T>(&self, what: &'static str) -> Result<T> {
        Err(ImportError::Unsupported { path: self.shown.clone(), what })
    }
}

/// Little- or big-endian numbers out of bytes that are long enough.
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
    /// The `N` bytes at `at`, which the caller has made sure of.
    pub fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&b[at..at + N]);
        out
    }
}
