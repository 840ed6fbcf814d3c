//! TLS: which certificates, and who has to use it.
//!
//! The directory has the file names that QEMU, libnbd and nbdkit use: `ca-cert.pem`, `server-cert.pem`,
//! `server-key.pem`, and if there is one `ca-crl.pem`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::handshake::{HandshakeError, Handshakes, Seat};
use super::{Config, ListenerConfig};
use crate::modes;
use crate::plane::Socket;

/// Who has to use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Nobody can.
    #[default]
    Off,
    /// A client may ask for it.
    On,
    /// A client that does not is told nothing, and served nothing.
    Require,
}

/// What is asked of a client's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// One that is shown has to be signed by the certificate authority (if `ca-cert.pem` is there); none is
    /// fine.
    #[default]
    Optional,
    /// There has to be one that is signed by the certificate authority.
    Required,
}

/// The certificates.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// The directory with them.
    pub dir: Option<PathBuf>,
    /// What is asked of a client's certificate.
    pub clients: ClientCertificates,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No directory was named.
    #[error("TLS needs a directory with ca-cert.pem, server-cert.pem and server-key.pem; name one")]
    NoDirectory,
    /// A file is missing, unreadable or not what it should be.
    #[error("{}: {error}; TLS needs PEM files named ca-cert.pem, server-cert.pem and server-key.pem", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// Others than the owner can use the key.
    #[error("{} can be read or changed by other users (mode {mode:03o}): chmod 600 {}", path.display(), path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The files do not go together.
    #[error("the certificates in {} cannot be used: {error}", dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        error: rustls::Error,
    },
    /// There is no thread for handshakes.
    #[error("cannot start a thread for TLS: {0}")]
    Thread(io::Error),
    /// Clients cannot be verified against this authority.
    #[error("client certificates cannot be checked with {}/ca-cert.pem: {error}", dir.display())]
    Authority {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        error: rustls::server::VerifierBuilderError,
    },
}

/// The server's certificates, and the thread that uses them; nothing where no listener has TLS. Clones share them.
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
    /// Whether a listener tells clients apart by their certificates.
    verifying: bool,
    handshakes: Handshakes,
    /// Replaced when the certificates are read again; connections keep what they were made with.
    acceptors: RwLock<Acceptors>,
}

#[derive(Clone)]
struct Acceptors {
    /// As the configuration asks for it.
    default: TlsAcceptor,
    /// For listeners that tell clients apart by their certificates.
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
    /// Reads the certificates that the listeners need.
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

    /// Reads them again, for clients that connect from now on; false where there are none.
    ///
    /// # Errors
    /// Those of the files: what was in use stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let acceptors = Acceptors::load(&shared.dir, shared.clients, shared.verifying)?;
        *shared.acceptors.write() = acceptors;
        Ok(true)
    }

    /// TLS for the clients of one listener.
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

/// TLS as a connection needs it.
#[derive(Clone)]
pub(super) struct Tls {
    /// Nothing but TLS and the way out is answered in clear.
    pub required: bool,
    /// Each client needs a certificate, whatever the configuration says.
    verify: bool,
    shared: Option<Arc<Shared>>,
}

impl Tls {
    /// Whether a client can use it.
    pub fn is_offered(&self) -> bool {
        self.shared.is_some()
    }

    /// Agrees with a client on a session. Dropping the future ends the handshake.
    pub async fn accept(&self, socket: Socket) -> Result<Box<TlsStream<Seat>>, HandshakeError> {
        let none = || io::Error::other("TLS is not set up");
        let shared = self.shared.as_ref().ok_or_else(none)?;
        let acceptors = shared.acceptors.read().clone();
        let acceptor = if self.verify { acceptors.verifying } else { Some(acceptors.default) };
        shared.handshakes.accept(acceptor.ok_or_else(none)?, socket).await
    }
}

/// Sessions cannot be resumed: a connection lasts as long as its disk is in use, and a resumed one would skip what has
/// changed since (a revoked or expired certificate).
fn without_resumption(mut config: rustls::ServerConfig) -> rustls::ServerConfig {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

fn server_config(dir: &Path, clients: ClientCertificates) -> Result<rustls::ServerConfig, TlsError> {
    let unusable = |error| TlsError::Unusable { dir: dir.to_owned(), error };
    let chain = certificates(&dir.join("server-cert.pem"))?;
    let key_path = dir.join("server-key.pem");
    if let Some(mode) = modes::open_to_others(&key_path) {
        return Err(TlsError::OpenKey { path: key_path, mode });
    }
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(file(&key_path))?;
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
    for certificate in certificates(&ca_path)? {
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).map_err(file(path))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(file(path))?;
    if found.is_empty() {
        return Err(file(path)(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn file(path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    move |error| TlsError::File { path: path.to_owned(), error }
}
