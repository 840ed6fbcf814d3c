//! Starting the NBD server.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_engine::Pool;

use super::access::Access;
use super::clients::Clients;
use super::config::{ClientCertificates, Config, ListenerConfig, TlsMode};
use super::connection::Front;
use super::context::Context;
use super::tls::{Certificates, TlsError};
use crate::plane::{ListenAddr, ListenError, Plane};

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address of the NBD server cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates of the NBD server cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Other machines could use the address without TLS.
    #[error(
        "NBD cannot be served on {listen} ({addr}) in clear: it has no authentication; use a loopback address, \
         require TLS, or add --nbd-allow-remote"
    )]
    Clear {
        /// The address in the configuration.
        listen: ListenAddr,
        /// The socket address to which the configured address resolves.
        addr: SocketAddr,
    },
}

/// An address on which disks are exported, and what its clients need.
#[derive(Debug, Clone)]
pub struct ServedListener {
    /// The address, with the actual port.
    pub address: ListenAddr,
    /// Whether clients use TLS.
    pub tls: TlsMode,
    /// Whether a client that uses TLS needs a certificate.
    pub needs_certificate: bool,
    /// The exports that the clients see.
    pub access: Access,
}

impl ServedListener {
    /// An address without TLS, at which all exports are served.
    pub fn plain(address: ListenAddr) -> ServedListener {
        ServedListener { address, tls: TlsMode::Off, needs_certificate: false, access: Access::default() }
    }
}

/// The started server.
#[derive(Debug)]
pub struct Listening {
    /// The addresses, with the actual ports, except those for nodes.
    pub listeners: Vec<ServedListener>,
    /// The certificates, which can be reloaded.
    pub certificates: Certificates,
    /// The connections that have a disk open.
    pub clients: Clients,
}

/// Checks everything that does not depend on the pool: the certificates, and where clients may connect
/// without TLS.
///
/// # Errors
/// As [`listen`].
pub fn check(config: &Config) -> Result<(), BindError> {
    let certificates = Certificates::load(config)?;
    config.listeners.iter().try_for_each(|listener| check_listener(listener, &certificates))
}

fn check_listener(listener: &ListenerConfig, certificates: &Certificates) -> Result<(), BindError> {
    let is_clear = !certificates.listener(listener).required && !listener.allow_remote;
    if is_clear { refuse_clear(&listener.listen) } else { Ok(()) }
}

/// Loads the certificates, binds the addresses, and lets the data plane serve the disks of `pool` over NBD.
pub fn listen(plane: &mut Plane, pool: &Arc<Pool>, config: &Config) -> Result<Listening, BindError> {
    let certificates = Certificates::load(config)?;
    let mut listeners = Vec::new();
    let (attachments, clients) = (Arc::default(), Clients::default());
    for listener in &config.listeners {
        check_listener(listener, &certificates)?;
        let tls = certificates.listener(listener);
        let (pool, access, attachments) = (pool.clone(), listener.access.clone(), Arc::clone(&attachments));
        let (clients, is_relay) = (clients.clone(), listener.is_relay);
        let context = Context { pool, tls, access, attachments, clients, is_relay };
        let bound = plane.listen(&(Arc::new(Front(context)) as _), &listener.listen)?;
        if is_relay {
            continue;
        }
        listeners.extend(bound.into_iter().map(|address| ServedListener {
            address,
            tls: listener.tls,
            needs_certificate: config.tls.clients == ClientCertificates::Required
                || listener.access.needs_certificates(),
            access: listener.access.clone(),
        }));
    }
    Ok(Listening { listeners, certificates, clients })
}

fn refuse_clear(addresses: &[ListenAddr]) -> Result<(), BindError> {
    for listen in addresses {
        if let Some(addr) = listen.beyond_loopback()? {
            return Err(BindError::Clear { listen: listen.clone(), addr });
        }
    }
    Ok(())
}
