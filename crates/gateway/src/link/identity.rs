//! The identity of a cluster on its links: one key and certificate that all nodes have.
//!
//! Each node reads the identity from the objects of the cluster, so the key of the Ceph user decides which
//! hosts are members, and no certificate is issued or installed. Both ends of a link prove that they have the
//! key, and accept only the certificate of the cluster. The certificate does not expire; it is replaced when
//! a node is removed.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme, version::TLS13,
};

/// The name in the certificate. Nodes are reached by their addresses, so it is not compared.
pub(super) const NAME: &str = "forebay-cluster";

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the identity of the cluster cannot be used: {0}")]
pub struct IdentityError(String);

/// The identity of a cluster.
#[derive(Clone)]
pub struct Identity {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
}

/// A new identity as PEM text, with its private key.
///
/// # Errors
/// If the system has no randomness.
pub fn new_identity() -> Result<String, IdentityError> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
    let made = made.map_err(|e| IdentityError(e.to_string()))?;
    Ok(made.signing_key.serialize_pem() + &made.cert.pem())
}

impl Identity {
    /// Reads an identity.
    ///
    /// # Errors
    /// If the text has no private key and certificate that belong together.
    pub fn parse(pem: &str) -> Result<Identity, IdentityError> {
        let failed = |e: &dyn std::fmt::Display| IdentityError(e.to_string());
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| failed(&e))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| failed(&e))?;
        let provider = Arc::new(ring::default_provider());
        let expected = Arc::new(Expected { certificate: certificate.clone(), provider: provider.clone() });
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| failed(&e))?
            .with_client_cert_verifier(expected.clone())
            .with_single_cert(vec![certificate.clone()], key.clone_key())
            .map_err(|e| failed(&e))?;
        // A ticket would let a former member in after the identity was replaced.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| failed(&e))?
            .dangerous()
            .with_custom_certificate_verifier(expected)
            .with_client_auth_cert(vec![certificate], key)
            .map_err(|e| failed(&e))?;
        Ok(Identity { server: Arc::new(server), client: Arc::new(client) })
    }
}

/// Accepts one certificate.
#[derive(Debug)]
struct Expected {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Expected {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        match *presented == self.certificate {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The error for TLS 1.2, which the configurations do not offer.
fn too_old() -> Error {
    Error::General("TLS 1.3 is required".to_owned())
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
