//! TLS: the server's certificates, and the TLS settings of each listener.
//!
//! The directory has the file names that QEMU, libnbd and nbdkit use: `ca-cert.pem`, `server-cert.pem`,
//! `server-key.pem`, and optionally `ca-crl.pem`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::config::{ClientCertificates, Config, ListenerConfig, TlsMode};
use super::handshake::{HandshakeError, Handshakes, Seat};
use crate::pem::{self, PemError};
use crate::plane::Socket;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The configuration names no directory.
    #[error(
        "TLS needs a directory with ca-cert.pem, server-cert.pem and server-key.pem: set --tls-certificates, \
         or certificates in [nbd.tls]"
    )]
    NoDirectory,
    /// A file is missing, unreadable or invalid.
    #[error("{}: {error}; TLS needs PEM files named ca-cert.pem, server-cert.pem and server-key.pem", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        error: rustls::pki_types::pem::Error,
    },
    /// Other users than the owner can read or change the key.
    #[error("{} can be read or changed by other users (mode {mode:03o}): chmod 600 {}", path.display(), path.display())]
    OpenKey {
        /// Path of the file of the key.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// A certificate of the server has X.509 version 1.
    #[error("{}: {}", path.display(), pem::VERSION_1)]
    Version1 {
        /// Path of the file of the certificate.
        path: PathBuf,
    },
    /// The files do not match each other.
    #[error("the certificates in {} cannot be used: {error}", dir.display())]
    Unusable {
        /// Path of the directory.
        dir: PathBuf,
        /// Why the files cannot be used together.
        error: rustls::Error,
    },
    /// The thread for handshakes cannot be started.
    #[error("cannot start a thread for TLS: {0}")]
    Thread(io::Error),
    /// The certificate authority cannot be used to verify clients.
    #[error("client certificates cannot be checked with {}/ca-cert.pem: {error}", dir.display())]
    Authority {
        /// Path of the directory.
        dir: PathBuf,
        /// Why the certificate authority cannot be used.
        error: rustls::server::VerifierBuilderError,
    },
}

impl From<PemError> for TlsError {
    fn from(e: PemError) -> TlsError {
        match e {
            PemError::File { path, error } => TlsError::File { path, error },
            PemError::OpenKey { path, mode } => TlsError::OpenKey { path, mode },
            PemError::Version1 { path } => TlsError::Version1 { path },
        }
    }
}

/// The server's certificates and the handshake thread; empty if no listener uses TLS. Clones share both.
#[derive(Clone)]
pub struct Certificates {
    shared: Option<Arc<Shared>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("dir", &self.shared.as_ref().map(|s| &s.dir)).finish()
    }
}

struct Shared {
    dir: PathBuf,
    clients: ClientCertificates,
    /// Whether a listener distinguishes clients by their certificates.
    verifying: bool,
    handshakes: Handshakes,
    /// The acceptors for new connections. They are replaced when the certificates are reloaded; an existing
    /// connection keeps the certificates of its handshake.
    acceptors: RwLock<Acceptors>,
}

#[derive(Clone)]
struct Acceptors {
    /// Acceptor that verifies clients as the configuration states.
    default: TlsAcceptor,
    /// Acceptor for listeners that distinguish clients by their certificates.
    verifying: Option<TlsAcceptor>,
}

impl Acceptors {
    fn load(dir: &Path, clients: ClientCertificates, verifying: bool) -> Result<Acceptors, TlsError> {
        let acceptor = |clients| server_config(dir, clients).map(|c| TlsAcceptor::from(Arc::new(c)));
        let verifying = verifying.then(|| acceptor(ClientCertificates::Required)).transpose()?;
        Ok(Acceptors { default: acceptor(clients)?, verifying })
    }
}

impl Certificates {
    /// Loads the certificates if a listener needs them.
    pub(super) fn load(config: &Config) -> Result<Certificates, TlsError> {
        let verifying = |l: &ListenerConfig| l.access.needs_certificates();
        if config.listeners.iter().all(|l| l.tls == TlsMode::Off && !verifying(l)) {
            return Ok(Certificates { shared: None });
        }
        let dir = config.tls.dir.clone().ok_or(TlsError::NoDirectory)?;
        let (clients, verifying) = (config.tls.clients, config.listeners.iter().any(verifying));
        let acceptors = RwLock::new(Acceptors::load(&dir, clients, verifying)?);
        let handshakes = Handshakes::start().map_err(TlsError::Thread)?;
        Ok(Certificates { shared: Some(Arc::new(Shared { dir, clients, verifying, handshakes, acceptors })) })
    }

    /// Reloads the certificates for clients that connect from now on; false if no listener uses TLS.
    ///
    /// # Errors
    /// Those of the files; the certificates in use stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let acceptors = Acceptors::load(&shared.dir, shared.clients, shared.verifying)?;
        *shared.acceptors.write() = acceptors;
        Ok(true)
    }

    /// The TLS settings for clients of one listener.
    pub(super) fn listener(&self, listener: &ListenerConfig) -> Tls {
        let verify = listener.access.needs_certificates();
        let offered = verify || listener.tls != TlsMode::Off;
        Tls {
            required: verify || listener.tls == TlsMode::Require,
            verify,
            shared: self.shared.clone().filter(|_| offered),
        }
    }
}

/// The TLS settings of a connection.
#[derive(Clone)]
pub(super) struct Tls {
    /// TLS is required: without it, only `STARTTLS` and `ABORT` are served.
    pub required: bool,
    /// Each client needs a certificate, even if the configuration makes certificates optional.
    verify: bool,
    shared: Option<Arc<Shared>>,
}

impl Tls {
    /// Whether clients can use TLS.
    pub fn is_offered(&self) -> bool {
        self.shared.is_some()
    }

    /// Performs the handshake with a client. Dropping the future ends the handshake.
    pub async fn accept(&self, socket: Socket) -> Result<Box<TlsStream<Seat>>, HandshakeError> {
        let none = || io::Error::other("TLS is not configured");
        let shared = self.shared.as_ref().ok_or_else(none)?;
        let acceptors = shared.acceptors.read().clone();
        let acceptor = if self.verify { acceptors.verifying } else { Some(acceptors.default) };
        shared.handshakes.accept(acceptor.ok_or_else(none)?, socket).await
    }
}

/// Disables session resumption: a connection lasts as long as its disk is in use, and a resumed session would
/// skip the check for certificates that were revoked or have expired since.
fn without_resumption(mut config: rustls::ServerConfig) -> rustls::ServerConfig {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

fn server_config(dir: &Path, clients: ClientCertificates) -> Result<rustls::ServerConfig, TlsError> {
    let unusable = |error| TlsError::Unusable { dir: dir.to_owned(), error };
    let chain = pem::chain(&dir.join("server-cert.pem"))?;
    let key = pem::private_key(&dir.join("server-key.pem"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let ca_path = dir.join("ca-cert.pem");
    if clients == ClientCertificates::Optional && !ca_path.exists() {
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        return config.map(without_resumption).map_err(unusable);
    }
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(&ca_path)? {
        roots.add(certificate).map_err(unusable)?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let crl_path = dir.join("ca-crl.pem");
    if crl_path.exists() {
        let lists = CertificateRevocationListDer::pem_file_iter(&crl_path).map_err(file(&crl_path))?;
        verifier = verifier.with_crls(lists.collect::<Result<Vec<_>, _>>().map_err(file(&crl_path))?);
    }
    if clients == ClientCertificates::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    let verifier = verifier.build().map_err(|error| TlsError::Authority { dir: dir.to_owned(), error })?;
    let config = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key);
    config.map(without_resumption).map_err(unusable)
}

fn file(path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    move |error| TlsError::File { path: path.to_owned(), error }
}
