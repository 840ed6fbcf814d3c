//! A small file that is replaced durably and atomically, also when the file system is full.
//!
//! A second file owns the room for the next contents. A change overwrites the second file in place and
//! exchanges the names of both files. So the former file has the room for the next change. Contents are
//! padded with spaces, so that a file keeps its blocks. On file systems that need free room for an overwrite
//! (btrfs, ZFS), a change needs free room.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Room that is kept for contents that grow.
const GROWTH: usize = 64 << 10;
/// Extensions of the files for the next contents. The second one exists until the first change.
const SPARES: [&str; 2] = ["new", "next"];

/// Keeps room for contents of `len` bytes, and some more.
pub(super) fn reserve(path: &Path, len: usize) -> io::Result<()> {
    // The first change makes the file of a spare one.
    let spares = if path.exists() { &SPARES[..1] } else { &SPARES };
    for extension in spares {
        let file = open_spare(&path.with_extension(extension))?;
        let has = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        // The file does not grow for each change that adds some bytes.
        if has < len + GROWTH / 2 {
            file.write_all_at(&vec![b' '; len + GROWTH - has], has as u64)?;
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Replaces the contents of a file, which has mode 0600.
pub(super) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let [spare, second] = SPARES.map(|extension| path.with_extension(extension));
    let file = open_spare(&spare)?;
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(0).max(contents.len());
    let mut padded = contents.to_vec();
    padded.resize(len, b' ');
    file.write_all_at(&padded, 0)?;
    file.sync_all()?;
    match exchange(&spare, path) {
        // There is no file yet, or the file system cannot exchange names.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENOSYS)) => {
            fs::rename(&spare, path)?;
            // Without a spare file, the next change makes one.
            let _ = fs::rename(&second, &spare);
        }
        exchanged => exchanged?,
    }
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()?;
    if let Err(error) = reserve(path, contents.len()) {
        tracing::warn!(path = %path.display(), %error, "there is no room for the next change of this file");
    }
    Ok(())
}

fn open_spare(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    // The file may have been created with another mode.
    file.set_permissions(PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let (a, b) = (CString::new(a.as_os_str().as_bytes())?, CString::new(b.as_os_str().as_bytes())?);
    let here = libc::AT_FDCWD;
    // SAFETY: both names end with a zero byte.
    match unsafe { libc::renameat2(here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_EXCHANGE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn contents_are_replaced_in_blocks_that_the_files_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("forebay.tokens");
        let read = || fs::read_to_string(&path).unwrap().trim_end().to_owned();
        let spares = || SPARES.map(|extension| path.with_extension(extension).exists());
        reserve(&path, 0).unwrap();
        assert!(!path.exists() && spares() == [true, true], "the file is made by the first change");
        replace(&path, b"0").unwrap();
        assert_eq!((read(), spares()), ("0".to_owned(), [true, false]));
        let (short, long) = ("{}".to_owned(), "x".repeat(3 * GROWTH));
        for contents in [&short, &long, &short, &short] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(read(), *contents);
        }
        let files = [path.clone(), path.with_extension("new")].map(|file| fs::metadata(file).unwrap());
        let inodes = || [&path, &path.with_extension("new")].map(|file| fs::metadata(file).unwrap().ino());
        let before = inodes();
        assert!(files.iter().all(|file| file.len() >= GROWTH as u64 && file.mode() & 0o7777 == 0o600));
        replace(&path, b"[]").unwrap();
        assert_eq!((read(), inodes()), ("[]".to_owned(), [before[1], before[0]]));
    }
}
