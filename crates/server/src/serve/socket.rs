//! The control socket.
//!
//! Its path exists only while the server is ready: it is bound under a temporary name, restricted to mode
//! 0600, and renamed when the server accepts requests. So a client finds either no socket or one that
//! answers, and no client can connect between `bind` and `chmod`. A stale socket of a killed server is
//! replaced; a socket on which a server answers is not.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::ServeError;

/// Longest path of a UNIX socket: `sun_path` of `sockaddr_un` without its terminating zero (unix(7)).
const MAX_PATH: usize = 107;
/// Suffix of the name until the server is ready.
const PENDING: &str = ".new";

/// A control socket; dropping it removes its file.
pub struct ControlSocket {
    path: PathBuf,
    pending: PathBuf,
    /// Device and inode once published, so that a successor's socket is not removed.
    identity: Option<(u64, u64)>,
}

impl ControlSocket {
    /// Binds a socket under its temporary name. Fails if a server answers on `path`.
    pub fn bind(path: &Path) -> Result<(ControlSocket, UnixListener), ServeError> {
        let mut pending = path.as_os_str().to_owned();
        pending.push(PENDING);
        let pending = PathBuf::from(pending);
        if pending.as_os_str().as_bytes().len() > MAX_PATH {
            return Err(ServeError::SocketPath { path: path.to_owned(), max: MAX_PATH - PENDING.len() });
        }
        if UnixStream::connect(path).is_ok() {
            return Err(ServeError::SocketInUse(path.to_owned()));
        }
        let fail = |e: io::Error| ServeError::listen(&path.display().to_string(), &e);
        if let Ok(found) = fs::symlink_metadata(path)
            && !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
        {
            return Err(ServeError::NotASocket(path.to_owned()));
        }
        remove_if_there(&pending).map_err(fail)?;
        let listener = UnixListener::bind(&pending).map_err(fail)?;
        let socket = ControlSocket { path: path.to_owned(), pending, identity: None };
        fs::set_permissions(&socket.pending, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        Ok((socket, listener))
    }

    /// Moves the socket to its path, replacing a stale one.
    pub fn publish(&mut self) -> Result<(), ServeError> {
        let fail = |e: io::Error| ServeError::listen(&self.path.display().to_string(), &e);
        let meta = fs::symlink_metadata(&self.pending).map_err(fail)?;
        fs::rename(&self.pending, &self.path).map_err(fail)?;
        self.identity = Some((meta.dev(), meta.ino()));
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let path = if self.identity.is_none() { &self.pending } else { &self.path };
        let is_mine = match (self.identity, fs::symlink_metadata(path)) {
            (None, _) => true,
            (Some(identity), Ok(meta)) => identity == (meta.dev(), meta.ino()),
            (Some(_), Err(_)) => false,
        };
        if is_mine {
            let _ = fs::remove_file(path);
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_appears_when_ready_and_is_removed_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (mut socket, _listener) = ControlSocket::bind(&path).unwrap();
        assert!(!path.exists());
        socket.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(ControlSocket::bind(&path), Err(ServeError::SocketInUse(_))));
        drop(socket);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_other_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (mut socket, _listener) = ControlSocket::bind(&path).unwrap();
        socket.publish().unwrap();
        assert!(UnixStream::connect(&path).is_ok());

        let file = dir.path().join("f");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(ControlSocket::bind(&file), Err(ServeError::NotASocket(_))));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_refused_with_a_hint() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        let e = ControlSocket::bind(&path).err().unwrap();
        assert!(e.to_string().contains("--socket"), "{e}");
    }

    #[tokio::test]
    async fn a_successors_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (mut old, _l1) = ControlSocket::bind(&path).unwrap();
        old.publish().unwrap();
        fs::remove_file(&path).unwrap();
        let (mut new, _l2) = ControlSocket::bind(&path).unwrap();
        new.publish().unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).is_ok());
    }
}
