//! Configuration of the NBD server.

use std::path::PathBuf;

use super::access::Access;
use crate::plane::ListenAddr;

/// Configuration of the NBD server.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Addresses and their exports.
    pub listeners: Vec<ListenerConfig>,
    /// Certificates; needed if a listener uses TLS.
    pub tls: TlsConfig,
}

/// Addresses, and the access of clients that connect there.
#[derive(Debug, Clone, Default)]
pub struct ListenerConfig {
    /// The addresses on which the server listens.
    pub listen: Vec<ListenAddr>,
    /// Whether clients use TLS. Always required if `access` distinguishes clients by their certificates.
    pub tls: TlsMode,
    /// Addresses that other machines can reach are served even without TLS.
    pub allow_remote: bool,
    /// Exports that the clients see.
    pub access: Access,
    /// The clients are nodes of a cluster, each with a connection of a client that it forwards. Such a
    /// connection begins with a [`Preamble`](forebay_wire::nbd::Preamble), and a node connects to another
    /// server without the knowledge of its client. Only for addresses that no other process can reach.
    pub is_relay: bool,
}

/// Whether clients use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Clients cannot use TLS.
    #[default]
    Off,
    /// Clients can use TLS.
    On,
    /// Clients have to use TLS; without it they receive no information and no service.
    Require,
}

/// Verification of client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// If a client sends a certificate, the certificate authority (`ca-cert.pem`, if it exists) must have
    /// signed it. A client without a certificate is accepted.
    #[default]
    Optional,
    /// Each client needs a certificate that the certificate authority has signed.
    Required,
}

/// Configuration of certificates.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// The directory of the certificate files.
    pub dir: Option<PathBuf>,
    /// Verification of client certificates.
    pub clients: ClientCertificates,
}
