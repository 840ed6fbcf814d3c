//! `[http]` and `[audit]`: the API over TCP.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;

/// A TCP listen address of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddr {
    /// Address of the socket.
    pub addr: SocketAddr,
    /// The configured host: a name by which clients may address the API, or an IP address.
    pub host: String,
}

/// Parses a TCP listen address of the API: `HOST:PORT`, where the host may be a name.
pub fn parse_http_addr(text: &str) -> Result<HttpAddr, String> {
    let invalid = |why: String| format!("invalid address '{text}' ({why}); use HOST:PORT");
    let mut found = text.to_socket_addrs().map_err(|e| invalid(e.to_string()))?;
    let addr = found.next().ok_or_else(|| invalid("the name does not resolve to an address".into()))?;
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host).to_owned();
    Ok(HttpAddr { addr, host })
}

fn http_addr<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<HttpAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_http_addr(&text).map(Some).map_err(serde::de::Error::custom)
}

/// The section `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// Address on which the API listens.
    #[serde(default, deserialize_with = "http_addr")]
    pub listen: Option<HttpAddr>,
    /// Host names that clients may use, in addition to `localhost` and the host of `listen`.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// PEM file with the certificate chain.
    pub certificate: Option<PathBuf>,
    /// PEM file with the key of the certificate.
    pub key: Option<PathBuf>,
    /// When clients on loopback addresses need a token.
    pub tokens: Option<TokenMode>,
}

/// `[http] tokens`, `--http-tokens`: when clients on loopback addresses need a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TokenMode {
    /// As soon as a token was created
    #[default]
    Auto,
    /// Always
    Always,
}

/// The section `[audit]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSection {
    /// File to which audit events are appended.
    pub file: Option<PathBuf>,
}

/// The files of the API's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsFiles {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the key of the certificate.
    pub key: PathBuf,
}

/// Command-line options for the API over TCP.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `HttpSection`
pub struct HttpFlags {
    pub listen: Option<HttpAddr>,
    pub hosts: Vec<String>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub tokens: Option<TokenMode>,
}

/// Configuration of the API over TCP.
#[derive(Debug, Clone, Default)]
pub struct HttpConfig {
    /// Address of the API; `None` if the API is not served over TCP.
    pub listen: Option<SocketAddr>,
    /// Host names by which clients may address the API.
    pub hosts: Vec<String>,
    /// Certificate of the API; required unless the address is a loopback address.
    pub https: Option<HttpsFiles>,
    /// When clients on loopback addresses need a token.
    pub tokens: TokenMode,
}

impl HttpSection {
    /// Merges the section with the command-line options, which take precedence.
    pub(super) fn config(self, flags: HttpFlags) -> Result<HttpConfig, ConfigError> {
        let listen = flags.listen.or(self.listen);
        let hosts = [listen.iter().map(|http| http.host.clone()).collect(), self.hosts, flags.hosts].concat();
        let listen = listen.map(|http| http.addr);
        let https = match (flags.certificate.or(self.certificate), flags.key.or(self.key)) {
            (Some(certificate), Some(key)) => Some(HttpsFiles { certificate, key }),
            (None, None) => None,
            (Some(path), None) | (None, Some(path)) => {
                let why = "TLS needs both a certificate and a key; add the other one";
                let value = path.display().to_string();
                return Err(ConfigError::Value { option: "http.certificate, http.key", value, why });
            }
        };
        if let Some(addr) = listen
            && !addr.ip().is_loopback()
            && https.is_none()
        {
            let why = "other machines can reach this address, so it needs TLS: give --http-certificate and \
                       --http-key, or use a loopback address";
            return Err(ConfigError::Value { option: "http.listen (--http)", value: addr.to_string(), why });
        }
        let tokens = flags.tokens.or(self.tokens).unwrap_or_default();
        Ok(HttpConfig { listen, hosts, https, tokens })
    }
}
