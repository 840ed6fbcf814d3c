//! Listen addresses: UNIX sockets and TCP ports, and the sockets of accepted clients.
//!
//! A UNIX socket file outlives a server that was killed. It is replaced only if no server answers on it, and
//! removed at the end only if it is still the file that was created here.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::delegate::delegate_stream;
use crate::socket_option::socket_option;

/// Access control of a UNIX socket: the server's user and group may connect.
const SOCKET_MODE: libc::mode_t = 0o660;
const BACKLOG: i32 = 1024;
/// Maximum length of a path that fits into a socket address.
const PATH_MAX: usize = 107;
/// Send buffer of a UNIX socket, in bytes: holds the replies to a deep queue of small reads for a slow
/// reader.
const SEND_BUFFER: usize = 512 << 10;

/// An address to listen on: `unix:PATH` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    /// The path of a UNIX socket.
    Unix(PathBuf),
    /// A host name or address, and a port; port 0 selects a free port.
    Tcp(String),
}

/// A text that is not a valid address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an address to listen on; write unix:PATH or HOST:PORT")]
pub struct BadAddr(String);

impl FromStr for ListenAddr {
    type Err = BadAddr;

    fn from_str(s: &str) -> Result<ListenAddr, BadAddr> {
        let bad = || BadAddr(s.to_owned());
        if let Some(path) = s.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(ListenAddr::Unix(PathBuf::from(path))) };
        }
        let (host, port) = s.rsplit_once(':').ok_or_else(bad)?;
        let bare_v6 = host.contains(':') && !host.starts_with('[');
        if host.is_empty() || bare_v6 || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(ListenAddr::Tcp(s.to_owned()))
    }
}

impl ListenAddr {
    /// The first address to which `self` resolves and that other machines can reach; `None` if no address is.
    pub fn beyond_loopback(&self) -> Result<Option<SocketAddr>, ListenError> {
        match self {
            ListenAddr::Unix(_) => Ok(None),
            ListenAddr::Tcp(host) => {
                let mut found = host.to_socket_addrs().map_err(|_| ListenError::NoHost(self.clone()))?;
                Ok(found.find(|addr| !addr.ip().to_canonical().is_loopback()))
            }
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddr::Tcp(addr) => f.write_str(addr),
        }
    }
}

impl<'de> serde::Deserialize<'de> for ListenAddr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ListenAddr, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Reasons for which the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another server answers on the socket.
    #[error("another server is listening on {0}; stop it or choose another address")]
    InUse(ListenAddr),
    /// The path exists and is not a socket.
    #[error("{0} exists and is not a socket; remove it or choose another path")]
    NotASocket(PathBuf),
    /// The path does not fit into a socket address.
    #[error("socket path {0} is longer than {PATH_MAX} bytes; choose a shorter one")]
    PathTooLong(PathBuf),
    /// The host name has no address.
    #[error("{0}: no such host")]
    NoHost(ListenAddr),
    /// Another error of the system.
    #[error("cannot listen on {addr}: {error}")]
    Io {
        /// The address that failed.
        addr: ListenAddr,
        /// The error that the system reported.
        error: io::Error,
    },
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// A listener on a UNIX socket.
    Unix {
        /// The socket that listens.
        listener: std::os::unix::net::UnixListener,
        /// Path of the socket file.
        path: PathBuf,
        /// Owner of the socket file; `None` if the file belongs to a service manager, or to the listener of
        /// which this listener is a clone.
        file: Option<SocketFile>,
    },
    /// A listener on TCP.
    Tcp(std::net::TcpListener),
}

/// The file of a UNIX socket, removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl SocketFile {
    /// Takes over a file that another process created, with this device and inode.
    pub fn adopt(path: PathBuf, (dev, ino): (u64, u64)) -> SocketFile {
        SocketFile { path, dev, ino }
    }

    /// Device and inode, by which a successor recognises the file.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Leaves the file to a successor.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced the file; it is then kept.
        if let Ok(m) = std::fs::symlink_metadata(&self.path)
            && (m.dev(), m.ino()) == (self.dev, self.ino)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Binds to every address that `addr` resolves to.
    pub fn bind(addr: &ListenAddr) -> Result<Vec<Listener>, ListenError> {
        match addr {
            ListenAddr::Unix(path) => Ok(vec![bind_unix(addr, path)?]),
            ListenAddr::Tcp(host) => {
                let io = |error| ListenError::Io { addr: addr.clone(), error };
                let resolved: Vec<SocketAddr> =
                    host.to_socket_addrs().map_err(|_| ListenError::NoHost(addr.clone()))?.collect();
                if resolved.is_empty() {
                    return Err(ListenError::NoHost(addr.clone()));
                }
                resolved.into_iter().map(|a| bind_tcp(a).map_err(io_or_in_use(addr, io))).collect()
            }
        }
    }

    /// The bound address, with the actual port.
    pub fn address(&self) -> ListenAddr {
        match self {
            Listener::Unix { path, .. } => ListenAddr::Unix(path.clone()),
            Listener::Tcp(l) => {
                ListenAddr::Tcp(l.local_addr().map_or_else(|_| String::new(), |a| a.to_string()))
            }
        }
    }

    /// Registers the listener with the runtime of this thread.
    pub(super) fn into_tokio(self) -> io::Result<Acceptor> {
        Ok(match self {
            Listener::Unix { listener, file, .. } => Acceptor::Unix(UnixListener::from_std(listener)?, file),
            Listener::Tcp(l) => Acceptor::Tcp(TcpListener::from_std(l)?),
        })
    }

    /// Another descriptor of the same socket. Clients queue as long as one of the descriptors is open; the
    /// file of the socket stays with `self`.
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Unix { listener, path, .. } => {
                Listener::Unix { listener: listener.try_clone()?, path: path.clone(), file: None }
            }
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
        })
    }

    /// Takes over a socket that another process bound, without its file. Fails unless it is a listening
    /// stream socket.
    pub fn adopt(fd: OwnedFd) -> io::Result<Listener> {
        let socket = socket2::Socket::from(fd);
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if socket.r#type()? != Type::STREAM || !is_listening(&socket)? {
            return Err(invalid("it is not a listening stream socket"));
        }
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        if address.as_socket().is_some() {
            return Ok(Listener::Tcp(socket.into()));
        }
        let path = address.as_pathname().ok_or_else(|| invalid("it has neither a port nor a path"))?;
        let path = path.to_owned();
        Ok(Listener::Unix { listener: socket.into(), path, file: None })
    }

    /// Device and inode of the socket file, if this listener removes it.
    pub fn file_identity(&self) -> Option<(u64, u64)> {
        match self {
            Listener::Unix { file, .. } => file.as_ref().map(SocketFile::identity),
            Listener::Tcp(_) => None,
        }
    }

    /// Removes the file with this device and inode when the listener is dropped.
    pub fn own_file(&mut self, identity: (u64, u64)) {
        if let Listener::Unix { path, file, .. } = self {
            *file = Some(SocketFile::adopt(path.clone(), identity));
        }
    }

    /// Closes this descriptor, and leaves the socket and its file to a successor.
    pub fn leave(self) {
        if let Listener::Unix { file: Some(file), .. } = self {
            file.keep();
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix { listener, .. } => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

fn is_listening(socket: &socket2::Socket) -> io::Result<bool> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(socket);
    let is_listening = socket_option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)?;
    Ok(libc::c_int::from_ne_bytes(is_listening) != 0)
}

/// Listeners that were bound before the data plane exists, by the address in the configuration.
#[derive(Debug, Default)]
pub struct Bound(pub Vec<(ListenAddr, Vec<Listener>)>);

impl Bound {
    /// Returns clones of all listeners.
    pub fn try_clone(&self) -> io::Result<Bound> {
        let clone = |(address, listeners): &(ListenAddr, Vec<Listener>)| {
            let listeners = listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
            Ok((address.clone(), listeners))
        };
        self.0.iter().map(clone).collect::<io::Result<Vec<_>>>().map(Bound)
    }

    /// Removes and returns the listeners of an address; `None` if the address is not bound. An address with
    /// port 0 can be bound several times.
    pub fn take(&mut self, addr: &ListenAddr) -> Option<Vec<Listener>> {
        let at = self.0.iter().position(|(configured, _)| configured == addr)?;
        Some(self.0.remove(at).1)
    }
}

fn io_or_in_use(
    addr: &ListenAddr,
    io: impl Fn(io::Error) -> ListenError,
) -> impl Fn(io::Error) -> ListenError {
    move |e| if e.kind() == io::ErrorKind::AddrInUse { ListenError::InUse(addr.clone()) } else { io(e) }
}

fn bind_tcp(addr: SocketAddr) -> io::Result<Listener> {
    let socket = socket2::Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Listener::Tcp(socket.into()))
}

fn bind_unix(addr: &ListenAddr, path: &Path) -> Result<Listener, ListenError> {
    if path.as_os_str().len() > PATH_MAX {
        return Err(ListenError::PathTooLong(path.to_owned()));
    }
    let io = |error| ListenError::Io { addr: addr.clone(), error };
    match std::fs::symlink_metadata(path) {
        Ok(m) if !m.file_type().is_socket() => return Err(ListenError::NotASocket(path.to_owned())),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(io)?
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(io(e)),
            // A full queue also means that a server is listening.
            Ok(_) | Err(_) => return Err(ListenError::InUse(addr.clone())),
        },
        Err(_) => {}
    }
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).map_err(io)?;
    // The socket's mode becomes the initial mode of the file, so that it is never accessible to other users.
    // SAFETY: fchmod takes an open descriptor and a mode.
    unsafe { libc::fchmod(std::os::fd::AsRawFd::as_raw_fd(&socket), SOCKET_MODE) };
    let io = io_or_in_use(addr, io);
    socket.bind(&SockAddr::unix(path).map_err(&io)?).map_err(&io)?;
    let meta = std::fs::symlink_metadata(path).map_err(&io)?;
    let file = SocketFile { path: path.to_owned(), dev: meta.dev(), ino: meta.ino() };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(SOCKET_MODE);
    std::fs::set_permissions(path, mode).map_err(&io)?;
    socket.listen(BACKLOG).map_err(&io)?;
    socket.set_nonblocking(true).map_err(&io)?;
    Ok(Listener::Unix { listener: socket.into(), path: path.to_owned(), file: Some(file) })
}

/// A listener that is registered with a runtime.
pub(crate) enum Acceptor {
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file when dropped")] Option<SocketFile>),
    Tcp(TcpListener),
}

impl Acceptor {
    /// The next client, as a socket that can be passed to another thread.
    pub async fn accept(&self) -> io::Result<RawSocket> {
        match self {
            Acceptor::Unix(l, _) => {
                let socket = l.accept().await?.0.into_std()?;
                // An error is ignored: a smaller buffer only means more, smaller writes.
                let _ = SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER);
                Ok(RawSocket::Unix(socket))
            }
            Acceptor::Tcp(l) => {
                let (socket, _) = l.accept().await?;
                // An error means that the client has disconnected, which is detected when it is served.
                let _ = socket.set_nodelay(true);
                // Without keepalive, a client whose host is down would keep its disk in use forever.
                let keepalive = TcpKeepalive::new()
                    .with_time(Duration::from_secs(60))
                    .with_interval(Duration::from_secs(10))
                    .with_retries(6);
                let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
                Ok(RawSocket::Tcp(socket.into_std()?))
            }
        }
    }
}

/// A connected socket that is not registered with a runtime.
#[derive(Debug)]
pub enum RawSocket {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
}

impl RawSocket {
    /// The client's address; `None` for a UNIX socket, or if the client has disconnected.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            RawSocket::Unix(_) => None,
            RawSocket::Tcp(s) => s.peer_addr().ok().map(|peer| peer.ip()),
        }
    }

    /// Takes over the connected socket of a client of another process.
    pub fn adopt(fd: OwnedFd) -> io::Result<RawSocket> {
        let socket = socket2::Socket::from(fd);
        socket.set_nonblocking(true)?;
        Ok(match socket.local_addr()?.as_socket() {
            None => RawSocket::Unix(socket.into()),
            Some(_) => RawSocket::Tcp(socket.into()),
        })
    }

    /// Registers the socket with the runtime of this thread.
    pub fn into_tokio(self) -> io::Result<Socket> {
        Ok(match self {
            RawSocket::Unix(s) => Socket::Unix(UnixStream::from_std(s)?),
            RawSocket::Tcp(s) => Socket::Tcp(TcpStream::from_std(s)?),
        })
    }
}

/// The socket of a connected client.
#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Removes the socket from the runtime of this thread.
    pub fn into_raw(self) -> io::Result<RawSocket> {
        Ok(match self {
            Socket::Unix(s) => RawSocket::Unix(s.into_std()?),
            Socket::Tcp(s) => RawSocket::Tcp(s.into_std()?),
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(s) => s.as_fd(),
            Socket::Tcp(s) => s.as_fd(),
        }
    }
}

delegate_stream!(Socket { Unix, Tcp });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse() {
        let unix: ListenAddr = "unix:/run/x.sock".parse().unwrap();
        assert_eq!(unix, ListenAddr::Unix("/run/x.sock".into()));
        for good in ["127.0.0.1:10809", "[::1]:10809", "localhost:0"] {
            let parsed: ListenAddr = good.parse().unwrap();
            assert_eq!(parsed.to_string(), good);
        }
        for bad in ["", "unix:", "localhost", ":10809", "::1:10809", "host:port", "host:70000"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let addr = ListenAddr::Unix(path.clone());
        // A server that was killed leaves its file behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = Listener::bind(&addr).unwrap();
        assert!(matches!(Listener::bind(&addr), Err(ListenError::InUse(_))));
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(first);
        assert!(!path.exists(), "dropping the listener removes the file");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&addr), Err(ListenError::NotASocket(_))));
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_was_replaced_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = Listener::bind(&ListenAddr::Unix(path.clone())).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let _second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn a_long_path_is_refused_with_a_reason() {
        let addr = ListenAddr::Unix(format!("/tmp/{}", "x".repeat(120)).into());
        assert!(matches!(Listener::bind(&addr), Err(ListenError::PathTooLong(_))));
    }
}
