//! The directories of the files of retained memory.
//!
//! The configured directory is used as it is if only this user can make files in it. In a directory that
//! other users can write, such as `/dev/shm`, any of them could take the name of a file, and keep the server
//! from starting. So the server makes a directory there with mode 0700, `forebay-UID`, and keeps its files in
//! it. If another user has taken this name, a random number is appended; the next start recognises the
//! directory by its owner.
//!
//! Earlier releases made their files in the configured directory itself. Files of this user are still used
//! there, without moving them: an upgrade that fails returns the pool to a process of that release.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_retained::effective_user;

/// Beginning of the names of the directories.
const PREFIX: &str = "forebay-";
/// Permissions that let other users make files in a directory.
const OTHERS_WRITE: u32 = 0o022;
/// All permissions of other users.
const OTHERS: u32 = 0o077;
/// Number of random numbers that are tried for a name.
const ATTEMPTS: usize = 10;

/// The directories with files of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directories {
    /// Directory in which new files are made: no other user can make files in it.
    pub own: PathBuf,
    /// The configured directory, if other users can make files in it.
    shared: Option<PathBuf>,
}

impl Directories {
    /// Returns the directories that belong to a configured directory. Makes the directory for this user if it
    /// is missing.
    ///
    /// # Errors
    /// The configured directory cannot be listed, or the other directory cannot be made.
    pub fn open(configured: &Path) -> io::Result<Directories> {
        let user = effective_user();
        if is_private(&std::fs::metadata(configured)?, user, OTHERS_WRITE) {
            return Ok(Directories { own: configured.to_owned(), shared: None });
        }
        let own = match existing(configured, user)? {
            Some(own) => own,
            None => make(configured, user)?,
        };
        Ok(Directories { own, shared: Some(configured.to_owned()) })
    }

    /// All directories; the first is the directory for new files.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&*self.own).chain(self.shared.as_deref())
    }
}

/// The configured directory, and the directories that servers of any user made in it.
///
/// # Errors
/// The configured directory cannot be listed.
pub fn of_all_users(configured: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![configured.to_owned()];
    for entry in std::fs::read_dir(configured)? {
        let entry = entry?;
        let is_named = entry.file_name().to_str().is_some_and(|name| user_of_name(name).is_some());
        if is_named && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    found[1..].sort();
    Ok(found)
}

/// The user in the name of a directory.
fn user_of_name(name: &str) -> Option<u32> {
    let (user, number) = match name.strip_prefix(PREFIX)?.split_once('-') {
        Some((user, number)) => (user, Some(number)),
        None => (name.strip_prefix(PREFIX)?, None),
    };
    let is_number = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    number.is_none_or(is_number).then(|| user.parse().ok()).flatten()
}

/// Whether a status is of a directory of this user, which grants other users none of `permissions`. A
/// symbolic link is not, if its status was read instead of its target's.
fn is_private(status: &Metadata, user: u32, permissions: u32) -> bool {
    status.is_dir() && status.uid() == user && status.mode() & permissions == 0
}

/// The first directory of this user by name.
fn existing(configured: &Path, user: u32) -> io::Result<Option<PathBuf>> {
    let of_user = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(user_of_name) == Some(user)
            && std::fs::symlink_metadata(path).is_ok_and(|status| is_private(&status, user, OTHERS))
    };
    Ok(of_all_users(configured)?.into_iter().skip(1).find(of_user))
}

fn make(configured: &Path, user: u32) -> io::Result<PathBuf> {
    let name = format!("{PREFIX}{user}");
    let mut path = configured.join(&name);
    for _ in 0..ATTEMPTS {
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.map_err(|e| io::Error::new(e.kind(), format!("cannot make {}: {e}", path.display())))?;
                return Ok(path);
            }
        }
        // Another server of this user may have made the directory at the same time.
        if let Some(made) = existing(configured, user)? {
            return Ok(made);
        }
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let other = configured.join(format!("{name}-{:016x}", u64::from_ne_bytes(number)));
        let (taken, other_name) = (path.display(), other.display());
        tracing::warn!("{taken} is not a directory that only user {user} can access: using {other_name}");
        path = other;
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} and all other names exist", path.display())))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory that all users can write.
    fn shared() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        dir
    }

    #[test]
    fn a_directory_of_this_user_is_used_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Directories::open(dir.path()).unwrap();
        assert_eq!(opened, Directories { own: dir.path().to_owned(), shared: None });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Directories::open(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn in_a_shared_directory_the_user_gets_a_separate_one() {
        let dir = shared();
        let opened = Directories::open(dir.path()).unwrap();
        let own = dir.path().join(format!("forebay-{}", effective_user()));
        assert_eq!(opened, Directories { own: own.clone(), shared: Some(dir.path().to_owned()) });
        assert_eq!(fs::symlink_metadata(&own).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(Directories::open(dir.path()).unwrap(), opened, "it is found again");
        assert_eq!(opened.all().collect::<Vec<_>>(), [&*own, dir.path()]);
    }

    #[test]
    fn a_name_that_is_taken_is_neither_used_nor_followed() {
        let target = tempfile::tempdir().unwrap();
        let take: [&dyn Fn(&Path); 3] =
            [&|name| fs::write(name, "").unwrap(), &|name| symlink(target.path(), name).unwrap(), &|name| {
                fs::create_dir(name).unwrap();
                fs::set_permissions(name, Permissions::from_mode(0o777)).unwrap();
            }];
        for take in take {
            let dir = shared();
            let name = dir.path().join(format!("forebay-{}", effective_user()));
            take(&name);
            let opened = Directories::open(dir.path()).unwrap();
            assert!(opened.own != name && opened.own.starts_with(dir.path()), "{opened:?}");
            assert_eq!(Directories::open(dir.path()).unwrap(), opened, "it is found again");
        }
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_all_users_are_recognised_by_their_names() {
        assert_eq!(user_of_name("forebay-996"), Some(996));
        assert_eq!(user_of_name("forebay-996-0123456789abcdef"), Some(996));
        for other in [
            "forebay-",
            "forebay-test-x",
            "forebay-996-1",
            "forebay",
            &format!("forebay-{}", "ab".repeat(16)),
        ] {
            assert_eq!(user_of_name(other), None, "{other}");
        }
        let dir = shared();
        for name in ["forebay-1", "forebay-test-1", "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("forebay-2"), "").unwrap();
        assert_eq!(of_all_users(dir.path()).unwrap(), [dir.path().to_owned(), dir.path().join("forebay-1")]);
    }
}
