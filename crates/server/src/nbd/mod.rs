//! The NBD server: the bytes of many clients on one side, [`forebay_engine::Disk`] on the other.
//!
//! A connection negotiates (`negotiate`), then transmits (`session`): reads whatever has come in one call, decodes
//! every request that is whole, does at once what the engine can do at once (cached reads, buffered writes), hands
//! the rest to tasks of the same thread (`job`), and sends all replies in one call. The threads, and what their
//! connections share, are the [`crate::plane`]'s.
//!
//! What a client may know of is `access`'s to say, by the listener and by the client's `certificate`; `tls` holds the
//! server's certificates, and a `handshake` runs off the data plane.

mod access;
mod certificate;
mod connection;
mod handshake;
mod job;
mod negotiate;
mod session;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_engine::Pool;

use crate::plane::{ListenAddr, ListenError, Plane};
pub use access::{Access, BadPattern, ExportPattern, SubjectPattern};
pub use tls::{Certificates, ClientCertificates, TlsConfig, TlsError, TlsMode};

/// What the server is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where to listen, and what is served there.
    pub listeners: Vec<ListenerConfig>,
    /// Certificates; needed where a listener has TLS.
    pub tls: TlsConfig,
}

/// Addresses, and what clients that connect there may do.
#[derive(Debug, Clone, Default)]
pub struct ListenerConfig {
    /// The addresses.
    pub listen: Vec<ListenAddr>,
    /// Who has to use TLS; everyone, where `access` tells clients apart by their certificates.
    pub tls: TlsMode,
    /// Whether addresses that other machines can reach may be served in clear.
    pub allow_remote: bool,
    /// Which exports the clients see.
    pub access: Access,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Other machines could use the address without TLS.
    #[error(
        "NBD cannot be served on {listen} ({addr}) in clear: it has no authentication; use a loopback address, \
         require TLS, or add --nbd-allow-remote"
    )]
    Clear {
        /// The address as it was written.
        listen: ListenAddr,
        /// What it stands for.
        addr: SocketAddr,
    },
}

/// What the server listens with.
#[derive(Debug)]
pub struct Listening {
    /// The addresses, with the ports that were taken.
    pub addresses: Vec<ListenAddr>,
    /// The certificates, which can be read again.
    pub certificates: Certificates,
}

/// Has the data plane serve the disks of `pool` over NBD: takes the addresses, and reads the certificates.
pub fn listen(plane: &mut Plane, pool: &Arc<Pool>, config: &Config) -> Result<Listening, BindError> {
    let certificates = Certificates::load(config)?;
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let tls = certificates.listener(listener);
        if !tls.required && !listener.allow_remote {
            refuse_clear(&listener.listen)?;
        }
        let context = connection::Context { pool: pool.clone(), tls, access: listener.access.clone() };
        addresses.extend(plane.listen(&(Arc::new(context) as _), &listener.listen)?);
    }
    Ok(Listening { addresses, certificates })
}

fn refuse_clear(addresses: &[ListenAddr]) -> Result<(), BindError> {
    for listen in addresses {
        if let Some(addr) = listen.beyond_loopback()? {
            return Err(BindError::Clear { listen: listen.clone(), addr });
        }
    }
    Ok(())
}
