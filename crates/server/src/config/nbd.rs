//! `[nbd]`: NBD listeners, access control and TLS.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_frontend::nbd::{
    Access, ClientCertificates, Config, ListenerConfig, SubjectPattern, TlsConfig, TlsMode,
};
use forebay_frontend::plane::ListenAddr;
use forebay_text::NamePattern;
use serde::Deserialize;

use super::ConfigError;

/// The section `[nbd]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdSection {
    /// Addresses on which all disks are exported.
    #[serde(default)]
    pub listen: Vec<ListenAddr>,
    /// Whether addresses that other machines can reach may be served without TLS.
    #[serde(default)]
    pub allow_remote: bool,
    /// Settings of TLS.
    #[serde(default)]
    pub tls: TlsSection,
    /// The sections `[[nbd.listener]]`.
    #[serde(default)]
    pub listener: Vec<NbdListenerSection>,
}

/// `[[nbd.listener]]`: addresses on which some disks are exported.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdListenerSection {
    /// Addresses of the listener.
    pub listen: Vec<ListenAddr>,
    /// Name patterns of the exported disks; all disks if absent.
    pub exports: Option<Vec<NamePattern>>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// TLS mode for these addresses; the default is `nbd.tls.mode`.
    pub tls: Option<TlsMode>,
    /// Like `nbd.allow_remote`, but for these addresses.
    #[serde(default)]
    pub allow_remote: bool,
    /// Exports that each client certificate sees. If this is empty, all clients see all exports of the
    /// listener.
    #[serde(default)]
    pub clients: BTreeMap<SubjectPattern, Vec<NamePattern>>,
}

/// The section `[nbd.tls]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// TLS mode; `require` if only `certificates` is set.
    pub mode: Option<TlsMode>,
    /// Directory with ca-cert.pem, server-cert.pem and server-key.pem.
    pub certificates: Option<PathBuf>,
    /// Whether clients must present a certificate signed by the CA.
    pub verify_peer: Option<bool>,
}

/// Command-line options for NBD.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `NbdSection`
pub struct NbdFlags {
    pub listen: Vec<ListenAddr>,
    pub allow_remote: bool,
    pub tls: TlsSection,
}

impl NbdSection {
    /// Merges the file with the command-line options, which take precedence. Addresses in the options replace
    /// `nbd.listen`, but not the `[[nbd.listener]]` sections.
    pub(super) fn config(self, flags: NbdFlags) -> Result<Config, ConfigError> {
        let (tls, mode) = self.tls.config(flags.tls);
        let allow_remote = self.allow_remote || flags.allow_remote;
        let listen = if flags.listen.is_empty() { self.listen } else { flags.listen };
        let mut listeners =
            vec![ListenerConfig { listen, tls: mode, allow_remote, ..ListenerConfig::default() }];
        for (index, section) in self.listener.into_iter().enumerate() {
            listeners.push(section.config(index, mode, allow_remote)?);
        }
        Ok(Config { listeners, tls })
    }
}

impl NbdListenerSection {
    fn config(self, index: usize, mode: TlsMode, allow_remote: bool) -> Result<ListenerConfig, ConfigError> {
        let access = Access {
            exports: self.exports.unwrap_or_else(|| vec![NamePattern::all()]),
            clients: self.clients.into_iter().collect(),
            read_only: self.read_only,
        };
        let mode = match (access.needs_certificates(), self.tls) {
            (false, own) => own.unwrap_or(mode),
            (true, None | Some(TlsMode::Require)) => TlsMode::Require,
            (true, Some(TlsMode::Off)) => return Err(ConfigError::Listener { index, tls: "off" }),
            (true, Some(TlsMode::On)) => return Err(ConfigError::Listener { index, tls: "on" }),
        };
        let allow_remote = self.allow_remote || allow_remote;
        Ok(ListenerConfig { listen: self.listen, tls: mode, allow_remote, access, is_relay: false })
    }
}

impl TlsSection {
    /// Merges the section with the command-line options. Returns the certificates and the TLS mode.
    fn config(self, flags: TlsSection) -> (TlsConfig, TlsMode) {
        let dir = flags.certificates.or(self.certificates);
        let default = if dir.is_some() { TlsMode::Require } else { TlsMode::Off };
        let verify = flags.verify_peer.or(self.verify_peer).unwrap_or(false);
        let clients = if verify { ClientCertificates::Required } else { ClientCertificates::Optional };
        (TlsConfig { dir, clients }, flags.mode.or(self.mode).unwrap_or(default))
    }
}
