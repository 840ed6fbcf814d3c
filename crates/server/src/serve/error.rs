//! Reasons for which a server cannot run.

use std::path::PathBuf;

use forebay_frontend::plane::{ListenAddr, ListenError};
use forebay_frontend::{nbd, nfs, nvme};

use super::listen::https::HttpsError;

/// Reasons for which a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A value of the configuration file is the cause.
    #[error("{path}, line {line}: {key}: {error}")]
    At {
        /// Path of the configuration file.
        path: String,
        /// The line, counted from 1.
        line: usize,
        /// Name of the key.
        key: &'static str,
        /// The error that the value of the key caused.
        error: Box<ServeError>,
    },
    /// A basic system call failed.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The pool was handed over, and systemd has the sockets of the standby.
    #[error(
        "the pool is handed over; this process ends, so that systemd starts it again as a standby with its sockets"
    )]
    StandsByWhenRestarted,
    /// The store cannot be opened.
    #[error("cannot open the pool in {pool}: {source}")]
    Store {
        /// Where the pool is.
        pool: String,
        /// The error that the store reported.
        source: forebay_store::StoreError,
    },
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {error}")]
    Data {
        /// Path of the directory.
        path: PathBuf,
        /// The error that the system reported.
        error: std::io::Error,
    },
    /// The configured pool is in Ceph, but the data directory contains another pool.
    #[error(
        "the data directory {path} contains a pool, and this server is to serve {pool}: use another directory with --data, \
         or serve the pool in it without --pool"
    )]
    TwoPools {
        /// Path of the data directory.
        path: PathBuf,
        /// The address of the pool in Ceph.
        pool: String,
    },
    /// The pool cannot be opened or closed.
    #[error("{0}")]
    Pool(#[from] forebay_engine::Error),
    /// Another server is using the control socket.
    #[error("another server is using the control socket {0}; stop it first, or use another --socket")]
    SocketInUse(PathBuf),
    /// The path of the control socket exists and is not a socket.
    #[error("{0} exists and is not a socket; remove it, or use another --socket")]
    NotASocket(PathBuf),
    /// The path of the control socket is too long for the system.
    #[error("the socket path {path} is too long: use --socket with at most {max} bytes")]
    SocketPath {
        /// Path of the socket.
        path: PathBuf,
        /// Maximum length of a path, in bytes.
        max: usize,
    },
    /// The certificate of the API cannot be used.
    #[error("{0}")]
    Https(#[from] HttpsError),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log {path}: {error}")]
    Audit {
        /// Path of the file.
        path: PathBuf,
        /// The error that the system reported.
        error: std::io::Error,
    },
    /// The NBD server cannot start.
    #[error("{0}")]
    Nbd(#[from] nbd::BindError),
    /// NFS cannot be served.
    #[error(transparent)]
    Nfs(#[from] nfs::ListenFailed),
    /// An address of NVMe cannot be used.
    #[error(transparent)]
    Nvme(#[from] nvme::ListenFailed),
    /// An address of the data plane cannot be listened on.
    #[error("{0}")]
    Address(#[from] ListenError),
    /// A socket that the service manager passed cannot be used.
    #[error("the socket '{name}' that the service manager passed cannot be used: {error}")]
    Passed {
        /// Name of the inherited socket.
        name: String,
        /// The error that the system reported.
        error: std::io::Error,
    },
    /// A socket that the service manager passed has an address that is not configured.
    #[error(
        "the service manager passed the socket '{name}' on {address}, which is not configured: add the address to \
         the configuration, or remove it from the socket unit"
    )]
    NotConfigured {
        /// Name of the inherited socket.
        name: String,
        /// Address of the inherited socket.
        address: ListenAddr,
    },
    /// The addresses of the predecessor differ from those of the configuration.
    #[error("{0} is listened on by only one of both processes; restart the server to change its addresses")]
    OtherAddresses(ListenAddr),
    /// The exchange with the predecessor failed.
    #[error("cannot take over from another process: {0}")]
    Predecessor(String),
    /// Another server, or program, is using the address of the API.
    #[error("another server is listening on {0}; stop it or choose another address")]
    AddressInUse(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// Address of the API.
        address: String,
        /// The error that the system reported.
        reason: String,
    },
}

impl ServeError {
    pub(crate) fn listen(address: &str, e: &std::io::Error) -> ServeError {
        if e.kind() == std::io::ErrorKind::AddrInUse {
            return ServeError::AddressInUse(address.to_owned());
        }
        ServeError::Listen { address: address.to_owned(), reason: e.to_string() }
    }
}
