//! Access control: the exports that clients of a listener see.
//!
//! A listener offers the disks that its export patterns match. If the listener lists clients, each client
//! needs a certificate. The client sees an offered disk if an entry of the list matches its certificate, and
//! a pattern of this entry matches the disk. For every option, an export that a client cannot see is answered
//! as if it did not exist.

use std::fmt;
use std::str::FromStr;

use forebay_text::{Glob, NamePattern};

use super::certificate::CertificateNames;

/// A text that is not a pattern for certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a pattern for certificates; write CN=NAME, DNS=NAME or URI=NAME, where '*' is allowed")]
pub struct BadSubject(String);

/// A kind of name in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NameKind {
    /// Common name of the subject (RFC 5280, 4.1.2.6).
    Cn,
    /// Subject alternative name of type dNSName (RFC 5280, 4.2.1.6); case-insensitive.
    Dns,
    /// Subject alternative name of type uniformResourceIdentifier.
    Uri,
}

/// A pattern for certificates: `CN=`, `DNS=` or `URI=` and a name, where `*` matches any characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct SubjectPattern {
    kind: NameKind,
    name: Glob,
}

impl SubjectPattern {
    /// Whether one of the certificate's names of this kind matches.
    fn matches(&self, names: &CertificateNames) -> bool {
        match self.kind {
            NameKind::Cn => names.common.iter().any(|name| self.name.matches(name)),
            NameKind::Dns => names.dns.iter().any(|name| self.name.matches(&name.to_ascii_lowercase())),
            NameKind::Uri => names.uri.iter().any(|name| self.name.matches(name)),
        }
    }
}

impl FromStr for SubjectPattern {
    type Err = BadSubject;

    fn from_str(text: &str) -> Result<SubjectPattern, BadSubject> {
        let bad = || BadSubject(text.to_owned());
        let (kind, name) = text.split_once('=').filter(|(_, name)| !name.is_empty()).ok_or_else(bad)?;
        let (kind, name) = match kind {
            "CN" => (NameKind::Cn, name.to_owned()),
            "DNS" => (NameKind::Dns, name.to_ascii_lowercase()),
            "URI" => (NameKind::Uri, name.to_owned()),
            _ => return Err(bad()),
        };
        Ok(SubjectPattern { kind, name: Glob::new(&name) })
    }
}

impl TryFrom<String> for SubjectPattern {
    type Error = BadSubject;

    fn try_from(text: String) -> Result<SubjectPattern, BadSubject> {
        text.parse()
    }
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            NameKind::Cn => "CN",
            NameKind::Dns => "DNS",
            NameKind::Uri => "URI",
        };
        write!(f, "{kind}={}", self.name)
    }
}

/// The access of clients that connect to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Patterns of the exports that are offered.
    pub exports: Vec<NamePattern>,
    /// The offered exports that each matching certificate sees. If this is empty, every client sees all
    /// offered exports.
    pub clients: Vec<(SubjectPattern, Vec<NamePattern>)>,
    /// Whether writes of the clients are refused.
    pub read_only: bool,
}

impl Default for Access {
    /// The default is full access for every client that can connect.
    fn default() -> Access {
        Access { exports: vec![NamePattern::all()], clients: Vec::new(), read_only: false }
    }
}

impl Access {
    /// Whether clients are distinguished by their certificates.
    pub fn needs_certificates(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Whether the listener offers this export, to some clients at least.
    pub fn offers(&self, export: &str) -> bool {
        self.exports.iter().any(|pattern| pattern.matches(export))
    }

    /// The certificates that see this export, in the words of the configuration.
    pub fn subjects_for(&self, export: &str) -> Vec<String> {
        let sees = |patterns: &[NamePattern]| patterns.iter().any(|pattern| pattern.matches(export));
        self.clients.iter().filter(|(_, patterns)| sees(patterns)).map(|(name, _)| name.to_string()).collect()
    }

    /// The grant of a client whose certificate has these names; `None` for a client without certificate.
    pub(super) fn grant(&self, names: Option<&CertificateNames>) -> Grant {
        let exports = self.exports.clone();
        if !self.needs_certificates() {
            return Grant { exports, client: vec![NamePattern::all()] };
        }
        let entries = self.clients.iter().filter(|(subject, _)| names.is_some_and(|n| subject.matches(n)));
        Grant { exports, client: entries.flat_map(|(_, patterns)| patterns.clone()).collect() }
    }
}

/// The exports that one client sees.
pub(super) struct Grant {
    exports: Vec<NamePattern>,
    client: Vec<NamePattern>,
}

impl Grant {
    /// Whether the client sees this export.
    pub fn sees(&self, export: &str) -> bool {
        let matched = |patterns: &[NamePattern]| patterns.iter().any(|p| p.matches(export));
        matched(&self.exports) && matched(&self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_matches_by_any_name_of_the_pattern_kind() {
        let names = CertificateNames {
            common: vec!["host-1".into(), "spare".into()],
            dns: vec!["Host-1.Example.ORG".into()],
            uri: vec!["spiffe://example/host-1".into()],
        };
        let matches = |text: &str| text.parse::<SubjectPattern>().unwrap().matches(&names);
        for good in [
            "CN=host-1",
            "CN=spare",
            "CN=host-*",
            "DNS=host-1.EXAMPLE.org",
            "DNS=*.example.org",
            "URI=spiffe://example/*",
        ] {
            assert!(matches(good), "{good}");
        }
        for bad in ["CN=host", "CN=HOST-1", "DNS=host-1", "DNS=spare", "CN=host-1.example.org", "URI=host-1"]
        {
            assert!(!matches(bad), "{bad}");
        }
        for bad in ["host-1", "CN=", "O=example", "cn=x", "=x"] {
            assert!(bad.parse::<SubjectPattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_sees_exports_that_the_listener_and_its_entries_match() {
        let pattern = |text: &str| text.parse::<NamePattern>().unwrap();
        let access = Access {
            exports: vec![pattern("a-*"), pattern("img")],
            clients: vec![
                ("CN=one".parse().unwrap(), vec![pattern("a-1")]),
                ("DNS=one".parse().unwrap(), vec![pattern("img"), pattern("b-1")]),
            ],
            read_only: false,
        };
        let names = |common: &[&str], dns: &[&str]| {
            let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
            CertificateNames { common: own(common), dns: own(dns), uri: Vec::new() }
        };
        let seen = |names: Option<&CertificateNames>| {
            let grant = access.grant(names);
            ["a-1", "a-2", "img", "img@s", "b-1"].into_iter().filter(|e| grant.sees(e)).collect::<Vec<_>>()
        };
        assert_eq!(seen(Some(&names(&["one"], &[]))), ["a-1"]);
        assert_eq!(seen(Some(&names(&["one"], &["one"]))), ["a-1", "img", "img@s"]);
        assert_eq!(seen(Some(&names(&["two"], &[]))), [""; 0]);
        assert_eq!(seen(None), [""; 0]);
        assert!(Access::default().grant(None).sees("b-1@s"));
    }
}
