//! Gives back room that was set aside and never used.
//!
//! A segment file gets its whole room when it is created. A server that stops, or crashes, leaves the rest of
//! its open segments unwritten, and nobody will ever append to them again. Whoever opens the store next cuts
//! such files behind their last written byte. What was written stays, whatever it is: the file system itself
//! says where data ends, and room that was only set aside counts as a hole.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::files::Files;
use crate::IoBuf;

/// Cuts the files of all objects. Best effort: what fails costs room, nothing else.
pub(super) fn trim_tails(files: &Files) {
    let objects = match files.list() {
        Ok(objects) => objects,
        Err(e) => return tracing::warn!("cannot look for unused room: {e}"),
    };
    let mut freed = 0;
    for object in objects {
        match files.open_uncached(object.id).and_then(|file| trim(&file, object.len)) {
            Ok(bytes) => freed += bytes,
            Err(e) => tracing::warn!(segment = %object.id, "cannot give back unused room: {e}"),
        }
    }
    if freed > 0 {
        tracing::info!(bytes = freed, "gave back room that was set aside and not used");
    }
}

/// Cuts one file of `len` bytes; returns by how many.
fn trim(file: &File, len: u64) -> io::Result<u64> {
    let end = end_of_data(file)?.next_multiple_of(IoBuf::ALIGN as u64);
    if end >= len {
        return Ok(0);
    }
    file.set_len(end)?;
    Ok(len - end)
}

/// One past the last byte that was written. A file system that cannot tell says that all is data.
fn end_of_data(file: &File) -> io::Result<u64> {
    let mut end = 0;
    while let Some(data) = seek(file, end, libc::SEEK_DATA)? {
        end = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(data);
    }
    Ok(end as u64)
}

/// `None` where there is nothing of the kind behind `from`.
fn seek(file: &File, from: libc::off_t, whence: libc::c_int) -> io::Result<Option<libc::off_t>> {
    // SAFETY: a plain system call on an open descriptor.
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
    fn data_stays_and_room_behind_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        // SAFETY: a plain system call on an open descriptor.
        let set_aside = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1 << 20) } == 0;
        if !set_aside {
            file.set_len(1 << 20).unwrap();
        }
        file.write_all_at(&[1; 5000], 0).unwrap();
        // A torn tail: written behind something that was not.
        file.write_all_at(&[2; 100], 64 << 10).unwrap();
        file.sync_all().unwrap();
        trim(&file, 1 << 20).unwrap();
        let len = file.metadata().unwrap().len();
        assert!((65 << 10..=1 << 20).contains(&len), "{len} bytes are left");
        assert!(len < 1 << 20 || !set_aside, "the room is still there");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..5000], [1; 5000]);
        assert_eq!(bytes[64 << 10..][..100], [2; 100]);
    }
}
