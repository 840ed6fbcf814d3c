//! Starting NFS, and the input of each connection.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forebay_files::Files;

use super::access::AccessRule;
use super::connection::{Front, Programs};
use super::mounts::Mounts;
use crate::plane::{FrontEnd, ListenAddr, ListenError, Plane};

/// Settings of NFS.
pub struct Settings<'a> {
    /// Addresses on which NFS and MOUNT are served.
    pub addresses: &'a [ListenAddr],
    /// Addresses on which only the port mapper answers.
    pub portmap: &'a [ListenAddr],
    /// Whether other machines may use the addresses, although clients do not authenticate themselves.
    pub allow_remote: bool,
    /// What clients may do.
    pub access: &'a [AccessRule],
}

/// Why NFS cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ListenFailed {
    /// An address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The namespace cannot be opened.
    #[error("cannot open the files of the pool: {0}")]
    Files(#[from] forebay_files::Error),
    /// Other machines could use the address without authentication.
    #[error(
        "NFS cannot be served on {listen} ({addr}): clients do not authenticate themselves, and can claim to be any \
         user; use a loopback address, or add --nfs-allow-remote"
    )]
    Remote {
        /// The address in the configuration.
        listen: ListenAddr,
        /// The socket address to which the configured address resolves.
        addr: SocketAddr,
    },
}

/// The input of each connection.
pub(super) struct Context {
    pub files: Arc<Files>,
    pub access: Vec<AccessRule>,
    pub mounts: Mounts,
    /// The port of NFS. Set before the first connection.
    pub port: OnceLock<u16>,
}

/// Checks that other machines cannot use the addresses, unless this is allowed.
///
/// # Errors
/// [`ListenFailed::Remote`], or an address without a host.
pub fn refuse_remote(settings: &Settings<'_>) -> Result<(), ListenFailed> {
    let all = settings.addresses.iter().chain(settings.portmap);
    for listen in all.filter(|_| !settings.allow_remote) {
        if let Some(addr) = listen.beyond_loopback()? {
            return Err(ListenFailed::Remote { listen: listen.clone(), addr });
        }
    }
    Ok(())
}

/// The port of an address `HOST:PORT`.
fn port(address: &ListenAddr) -> Option<u16> {
    address.to_string().rsplit_once(':')?.1.parse().ok()
}

/// Binds the addresses and lets the data plane serve the files. Returns the addresses of NFS with the actual
/// ports.
///
/// # Errors
/// As [`refuse_remote`], or an address cannot be bound.
pub fn listen(
    plane: &mut Plane,
    files: Arc<Files>,
    settings: &Settings<'_>,
) -> Result<Vec<ListenAddr>, ListenFailed> {
    refuse_remote(settings)?;
    let (access, mounts) = (settings.access.to_vec(), Mounts::default());
    let context = Arc::new(Context { files, access, mounts, port: OnceLock::new() });
    let front = |programs| -> Arc<dyn FrontEnd> { Arc::new(Front { context: context.clone(), programs }) };
    let bound = plane.listen(&front(Programs::Nfs), settings.addresses)?;
    plane.listen(&front(Programs::PortMapper), settings.portmap)?;
    if let Some(port) = bound.first().and_then(port) {
        // The port is set only here, before the plane serves the first connection.
        let _ = context.port.set(port);
    }
    Ok(bound)
}
