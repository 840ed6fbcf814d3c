//! The NBD server: the bytes of many clients on one side, [`forebay_engine::Disk`] on the other.
//!
//! A connection negotiates (`negotiate`), then transmits (`session`): reads whatever has come in one call, decodes
//! every request that is whole, does at once what the engine can do at once (cached reads, buffered writes), hands
//! the rest to tasks of the same thread (`job`), and sends all replies in one call. The threads, and what their
//! connections share, are the [`crate::plane`]'s.

mod connection;
mod job;
mod negotiate;
mod session;
mod tls;

use std::sync::Arc;

use forebay_engine::Pool;

use crate::plane::{ListenAddr, ListenError, Plane};
pub use tls::{ClientCertificates, TlsConfig, TlsError, TlsMode};

/// What the server is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<ListenAddr>,
    /// Whether and how TLS is used.
    pub tls: TlsConfig,
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
}

/// Has the data plane serve the disks of `pool` over NBD: takes the addresses, which are returned with the ports
/// that were taken, and reads the certificates.
pub fn listen(plane: &mut Plane, pool: Arc<Pool>, config: &Config) -> Result<Vec<ListenAddr>, BindError> {
    let tls = tls::Tls::load(&config.tls)?;
    Ok(plane.listen(&(Arc::new(connection::Context { pool, tls }) as _), &config.listen)?)
}
