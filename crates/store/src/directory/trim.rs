//! Returns preallocated space that was never used.
//!
//! A segment file gets its whole space when it is created, and may be filled with zeroes ahead of its
//! appends. A server that stops, or crashes, leaves the rest of its open segments so, and no later append
//! continues them. The next opening of the pool identifies these segments, and has their files truncated. All
//! written bytes are kept, whatever they are: the log is the part that recovery accepted, and what follows it
//! is kept up to the last byte that is not zero. The file system reports the end of data, and preallocated
//! space counts as a hole.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use forebay_format::SegmentId;

use super::files::Files;
use crate::IoBuf;

/// Bytes that are read at once when searching for the last byte that is not zero.
const WINDOW: u64 = 1 << 20;

/// Truncates the file of an object, of which the first `written` bytes are kept. Returns its length.
pub(super) fn trim_tail(files: &Files, id: SegmentId, written: u64) -> io::Result<u64> {
    let file = files.open_uncached(id)?;
    let len = file.metadata()?.len();
    let freed = trim(&file, len, written)?;
    if freed > 0 {
        tracing::debug!(segment = %id, bytes = freed, "returned unused preallocated space");
    }
    Ok(len - freed)
}

/// Truncates a file of `len` bytes; returns the number of bytes removed.
fn trim(file: &File, len: u64, written: u64) -> io::Result<u64> {
    let data = end_of_data(file)?.next_multiple_of(IoBuf::ALIGN as u64).min(len);
    let end = end_of_content(file, written.next_multiple_of(IoBuf::ALIGN as u64), data)?;
    if end >= len {
        return Ok(0);
    }
    file.set_len(end)?;
    Ok(len - end)
}

/// The end of the last block before `end` that is not all zero, but at least `least`.
fn end_of_content(file: &File, least: u64, mut end: u64) -> io::Result<u64> {
    let mut buf = IoBuf::zeroed(WINDOW as usize);
    while end > least {
        let start = end.saturating_sub(WINDOW).max(least);
        let window = &mut buf[..(end - start) as usize];
        file.read_exact_at(window, start)?;
        let blocks = window.chunks(IoBuf::ALIGN).rev();
        let zeroes = blocks.take_while(|block| block.iter().all(|byte| *byte == 0)).count();
        end -= ((zeroes * IoBuf::ALIGN) as u64).min(end - start);
        if end > start {
            break;
        }
    }
    Ok(end.max(least))
}

/// The end of the last written byte of a file. A file system that does not support this query reports all
/// bytes as data.
fn end_of_data(file: &File) -> io::Result<u64> {
    let mut end = 0;
    while let Some(data) = seek(file, end, libc::SEEK_DATA)? {
        end = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(data);
    }
    Ok(end as u64)
}

/// The offset of the next data or hole after `from`; `None` if none follows.
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
        // A torn end of the log, written after an unwritten range.
        file.write_all_at(&[2; 100], 64 << 10).unwrap();
        file.sync_all().unwrap();
        trim(&file, 1 << 20, 4096).unwrap();
        let len = file.metadata().unwrap().len();
        assert!((65 << 10..=1 << 20).contains(&len), "{len} bytes are left");
        assert!(len < 1 << 20 || !set_aside, "the unused space was not removed");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..5000], [1; 5000]);
        assert_eq!(bytes[64 << 10..][..100], [2; 100]);
    }

    #[test]
    fn trimming_removes_zeroes_but_not_those_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let len = 3 * WINDOW;
        let fill = |content: &[(u64, usize)]| {
            file.write_all_at(&vec![0; len as usize], 0).unwrap();
            content.iter().for_each(|(at, len)| file.write_all_at(&vec![7; *len], *at).unwrap());
        };
        for (content, written, end) in [
            (&[][..], 0, 0),
            (&[], 8192, 8192),
            (&[(0, 5000)], 4096, 8192),
            (&[(0, 5000)], 16384, 16384),
            // A torn append after the log, in a later window.
            (&[(0, 5000), (2 * WINDOW + 4096, 1)], 8192, 2 * WINDOW + 8192),
            (&[(WINDOW - 1, 1)], 4096, WINDOW),
            (&[(WINDOW, 1)], 4096, WINDOW + 4096),
            (&[(len - 1, 1)], 4096, len),
        ] {
            fill(content);
            assert_eq!(trim(&file, len, written).unwrap(), len - end, "{content:?} {written}");
            assert_eq!(file.metadata().unwrap().len(), end);
        }
    }
}
