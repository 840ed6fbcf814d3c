//! The control socket.
//!
//! Its path exists only while the server is ready: it is bound under a temporary name, restricted to mode
//! 0600, and renamed when the server accepts requests. So a client finds either no socket or a socket that
//! answers, and no client can connect between `bind` and `chmod`. A stale socket of a killed server is
//! replaced; a socket on which a server answers is not.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::serve::ServeError;

/// Maximum length of the path of a UNIX socket: `sun_path` of `sockaddr_un` without its terminating zero
/// (unix(7)).
const MAX_PATH: usize = 107;
/// Suffix of the name until the server is ready.
const PENDING: &str = ".new";

/// A control socket; dropping it removes its file.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The temporary name of the socket file until it is published.
    pending: Option<PathBuf>,
    /// Device and inode of the published socket file, so that a successor's socket is not removed.
    identity: Option<(u64, u64)>,
}

impl ControlSocket {
    /// Binds a socket under its temporary name. Fails if a server answers on `path`.
    pub fn bind(path: &Path) -> Result<ControlSocket, ServeError> {
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
        let pending_path = Some(pending.clone());
        let socket = ControlSocket { listener, path: path.to_owned(), pending: pending_path, identity: None };
        fs::set_permissions(&pending, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        socket.listener.set_nonblocking(true).map_err(fail)?;
        Ok(socket)
    }

    /// A socket that another process bound to its path. Its file is not removed.
    pub fn adopt(path: &Path, listener: UnixListener) -> ControlSocket {
        ControlSocket { listener, path: path.to_owned(), pending: None, identity: None }
    }

    /// Moves the socket to its path, where it replaces a stale socket.
    pub fn publish(&mut self) -> Result<(), ServeError> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let fail = |e: io::Error| ServeError::listen(&self.path.display().to_string(), &e);
        let meta = fs::symlink_metadata(pending).map_err(fail)?;
        fs::rename(pending, &self.path).map_err(fail)?;
        self.pending = None;
        self.identity = Some((meta.dev(), meta.ino()));
        Ok(())
    }

    /// The socket that listens.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of its file, if this server removes it.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Removes the file with this device and inode when the socket is dropped.
    pub fn own_file(&mut self, identity: (u64, u64)) {
        self.identity = Some(identity);
    }

    /// Closes the socket, and leaves its file to a successor.
    pub fn leave(mut self) {
        self.identity = None;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let (path, is_mine) = match (&self.pending, self.identity) {
            (Some(pending), _) => (pending, true),
            (None, Some(identity)) => {
                let found = fs::symlink_metadata(&self.path);
                (&self.path, found.is_ok_and(|meta| identity == (meta.dev(), meta.ino())))
            }
            (None, None) => return,
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

    #[test]
    fn a_socket_is_private_appears_when_ready_and_is_removed_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut socket = ControlSocket::bind(&path).unwrap();
        assert!(!path.exists());
        socket.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(ControlSocket::bind(&path), Err(ServeError::SocketInUse(_))));
        drop(socket);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_other_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut socket = ControlSocket::bind(&path).unwrap();
        socket.publish().unwrap();
        assert!(UnixStream::connect(&path).is_ok());

        let file = dir.path().join("f");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(ControlSocket::bind(&file), Err(ServeError::NotASocket(_))));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_a_hint() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        let e = ControlSocket::bind(&path).err().unwrap();
        assert!(e.to_string().contains("--socket"), "{e}");
    }

    #[test]
    fn a_successors_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut old = ControlSocket::bind(&path).unwrap();
        old.publish().unwrap();
        fs::remove_file(&path).unwrap();
        let mut new = ControlSocket::bind(&path).unwrap();
        new.publish().unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).is_ok());
    }
}
