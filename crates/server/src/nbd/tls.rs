//! TLS: which certificates, and who has to use it.
//!
//! The directory has the file names that QEMU, libnbd and nbdkit use: `ca-cert.pem`, `server-cert.pem`,
//! `server-key.pem`, and if there is one `ca-crl.pem`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

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

/// How TLS is used.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// Who has to use it.
    pub mode: TlsMode,
    /// The directory with the certificates; needed unless the mode is off.
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
    /// The files do not go together.
    #[error("the certificates in {} cannot be used: {error}", dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        error: rustls::Error,
    },
    /// Clients cannot be verified against this authority.
    #[error("client certificates cannot be checked with {}/ca-cert.pem: {error}", dir.display())]
    Authority {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        error: rustls::server::VerifierBuilderError,
    },
}

/// TLS as a connection needs it.
#[derive(Clone)]
pub(super) struct Tls {
    /// Nothing but TLS and the way out is answered in clear.
    pub required: bool,
    /// `None`: there is no TLS.
    pub acceptor: Option<TlsAcceptor>,
}

impl Tls {
    /// Reads the certificates.
    pub fn load(config: &TlsConfig) -> Result<Tls, TlsError> {
        if config.mode == TlsMode::Off {
            return Ok(Tls { required: false, acceptor: None });
        }
        let dir = config.dir.as_deref().ok_or(TlsError::NoDirectory)?;
        let acceptor = TlsAcceptor::from(Arc::new(server_config(dir, config.clients)?));
        Ok(Tls { required: config.mode == TlsMode::Require, acceptor: Some(acceptor) })
    }
}

fn server_config(dir: &Path, clients: ClientCertificates) -> Result<rustls::ServerConfig, TlsError> {
    let unusable = |error| TlsError::Unusable { dir: dir.to_owned(), error };
    let chain = certificates(&dir.join("server-cert.pem"))?;
    let key_path = dir.join("server-key.pem");
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(file(&key_path))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let ca_path = dir.join("ca-cert.pem");
    if clients == ClientCertificates::Optional && !ca_path.exists() {
        return builder.with_no_client_auth().with_single_cert(chain, key).map_err(unusable);
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
    builder.with_client_cert_verifier(verifier).with_single_cert(chain, key).map_err(unusable)
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
