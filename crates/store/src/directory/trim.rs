//! Returns preallocated space that was never used.
//!
//! A segment file gets its whole space when it is created. A server that stops, or crashes, leaves the rest
//! of its open segments unwritten, and no later append continues them. The next opening of the pool
//! identifies these segments, and has their files truncated after their last written byte. All written bytes
//! are kept, whatever they are: the file system reports the end of data, and preallocated space counts as a
//! hole.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use forebay_format::SegmentId;

use super::files::Files;
use crate::IoBuf;

/// Truncates the file of an object.
pub(super) fn trim_tail(files: &Files, id: SegmentId) -> io::Result<()> {
    let file = files.open_uncached(id)?;
    let freed = trim(&file, file.metadata()?.len())?;
    if freed > 0 {
        tracing::info!(segment = %id, bytes = freed, "returned unused preallocated space");
    }
    Ok(())
}

/// Truncates one file of `len` bytes; returns the number of bytes removed.
fn trim(file: &File, len: u64) -> io::Result<u64> {
    let end = end_of_data(file)?.next_multiple_of(IoBuf::ALIGN as u64);
    if end >= len {
        return Ok(0);
    }
    file.set_len(end)?;
    Ok(len - end)
}

/// One past the last written byte. A file system without support for this reports all bytes as data.
fn end_of_data(file: &File) -> io::Result<u64> {
    let mut end = 0;
    while let Some(data) = seek(file, end, libc::SEEK_DATA)? {
        end = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(data);
    }
    Ok(end as u64)
}

/// Seeks to the next data or hole from `from`; `None` if there is no more.
fn seek(file: &File, from: libc::off_t, whence: libc::c_int) -> io::Result<Option<libc::off_t>> {
    // SAFETY: the descriptor is open; the call accesses no memory.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    if at >= 0 {
        return Ok(Some(at));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn trimming_keeps_data_and_removes_the_space_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        // SAFETY: the descriptor is open; the call accesses no memory.
        let set_aside = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1 << 20) } == 0;
        if !set_aside {
            file.set_len(1 << 20).unwrap();
        }
        file.write_all_at(&[1; 5000], 0).unwrap();
        // A torn tail: written after an unwritten range.
        file.write_all_at(&[2; 100], 64 << 10).unwrap();
        file.sync_all().unwrap();
        trim(&file, 1 << 20).unwrap();
        let len = file.metadata().unwrap().len();
        assert!((65 << 10..=1 << 20).contains(&len), "{len} bytes are left");
        assert!(len < 1 << 20 || !set_aside, "the unused space was not removed");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..5000], [1; 5000]);
        assert_eq!(bytes[64 << 10..][..100], [2; 100]);
    }
}
