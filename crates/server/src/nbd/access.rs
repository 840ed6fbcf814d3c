//! Access control: the exports that clients of a listener see.
//!
//! A listener offers the disks that its export patterns match. If it lists clients, each client needs a
//! certificate: it sees those of the offered disks that are matched by a pattern of any entry that matches
//! its certificate. For every option, an export that a client cannot see is answered like one that does not
//! exist.

use std::fmt;
use std::str::FromStr;

use super::certificate::CertificateNames;

/// A pattern in which `*` matches any characters, also none, and every other character matches itself.
///
/// Clients of the API send patterns, and one is compared with every disk. So consecutive stars are kept as
/// one, and a text that is shorter than the other characters of the pattern is not compared with it: the cost
/// of a comparison is linear in the length of the text, and does not depend on the pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Glob {
    text: String,
    /// Number of bytes that are no star.
    literal: usize,
}

impl Glob {
    fn new(pattern: &str) -> Glob {
        let mut text = String::with_capacity(pattern.len());
        for c in pattern.chars() {
            if c != '*' || !text.ends_with('*') {
                text.push(c);
            }
        }
        let literal = text.bytes().filter(|byte| *byte != b'*').count();
        Glob { text, literal }
    }

    fn matches(&self, text: &str) -> bool {
        if text.len() < self.literal {
            return false;
        }
        let Some((first, rest)) = self.text.split_once('*') else { return self.text == text };
        let Some(mut text) = text.strip_prefix(first) else { return false };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost match suffices: it leaves the longest rest for the following parts.
        for part in middle.split('*') {
            match text.find(part) {
                Some(at) => text = &text[at + part.len()..],
                None => return false,
            }
        }
        text.ends_with(last)
    }
}

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// A pattern for exports.
    #[error("'{0}' is not a pattern for exports; write NAME, VOLUME@SNAPSHOT, or either with '*'")]
    Export(String),
    /// A pattern for certificates.
    #[error(
        "'{0}' is not a pattern for certificates; write CN=NAME, DNS=NAME or URI=NAME, where '*' is allowed"
    )]
    Subject(String),
}

/// A pattern for the names of disks: `NAME` or `VOLUME@SNAPSHOT`, where `*` matches any characters.
///
/// Without `@` it matches a disk and all its snapshots; with `@` only snapshots.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExportPattern {
    disk: Glob,
    snapshot: Option<Glob>,
}

impl ExportPattern {
    /// A pattern that matches all disks.
    pub fn all() -> ExportPattern {
        ExportPattern { disk: Glob::new("*"), snapshot: None }
    }

    /// Whether the pattern matches a disk.
    pub(crate) fn matches(&self, export: &str) -> bool {
        match (export.split_once('@'), &self.snapshot) {
            (None, None) => self.disk.matches(export),
            (None, Some(_)) => false,
            (Some((volume, snapshot)), pattern) => {
                self.disk.matches(volume) && pattern.as_ref().is_none_or(|p| p.matches(snapshot))
            }
        }
    }
}

impl ExportPattern {
    /// Whether the pattern matches every disk whose name begins with `prefix`.
    pub(crate) fn matches_all_beginning_with(&self, prefix: &str) -> bool {
        // A final star matches whatever follows a text that the pattern matches.
        self.snapshot.is_none() && self.disk.text.ends_with('*') && self.disk.matches(prefix)
    }
}

impl fmt::Display for ExportPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.disk.text)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{}", snapshot.text))
    }
}

impl From<ExportPattern> for String {
    fn from(pattern: ExportPattern) -> String {
        pattern.to_string()
    }
}

impl FromStr for ExportPattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<ExportPattern, BadPattern> {
        let (disk, snapshot) = match text.split_once('@') {
            Some((disk, snapshot)) => (disk, Some(snapshot)),
            None => (text, None),
        };
        let bad =
            |part: &str| part.is_empty() || part.contains(['/', '@']) || part.chars().any(char::is_control);
        if bad(disk) || snapshot.is_some_and(bad) {
            return Err(BadPattern::Export(text.to_owned()));
        }
        Ok(ExportPattern { disk: Glob::new(disk), snapshot: snapshot.map(Glob::new) })
    }
}

impl TryFrom<String> for ExportPattern {
    type Error = BadPattern;

    fn try_from(text: String) -> Result<ExportPattern, BadPattern> {
        text.parse()
    }
}

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
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<SubjectPattern, BadPattern> {
        let bad = || BadPattern::Subject(text.to_owned());
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
    type Error = BadPattern;

    fn try_from(text: String) -> Result<SubjectPattern, BadPattern> {
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
        write!(f, "{kind}={}", self.name.text)
    }
}

/// The access of clients of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Exports that are offered.
    pub exports: Vec<ExportPattern>,
    /// The offered exports that each matching certificate sees. If this is empty, every client sees all of
    /// them.
    pub clients: Vec<(SubjectPattern, Vec<ExportPattern>)>,
    /// Writes are refused.
    pub read_only: bool,
}

impl Default for Access {
    /// Full access for every client that can connect.
    fn default() -> Access {
        Access { exports: vec![ExportPattern::all()], clients: Vec::new(), read_only: false }
    }
}

impl Access {
    /// Whether clients are distinguished by their certificates.
    pub fn needs_certificates(&self) -> bool {
        !self.clients.is_empty()
    }

    /// The grant of a client whose certificate has these names; `None` for a client without certificate.
    pub(super) fn grant(&self, names: Option<&CertificateNames>) -> Grant {
        let exports = self.exports.clone();
        if !self.needs_certificates() {
            return Grant { exports, client: vec![ExportPattern::all()] };
        }
        let entries = self.clients.iter().filter(|(subject, _)| names.is_some_and(|n| subject.matches(n)));
        Grant { exports, client: entries.flat_map(|(_, patterns)| patterns.clone()).collect() }
    }
}

/// The exports that one client sees.
pub(super) struct Grant {
    exports: Vec<ExportPattern>,
    client: Vec<ExportPattern>,
}

impl Grant {
    /// Whether the client sees this export.
    pub fn sees(&self, export: &str) -> bool {
        let matched = |patterns: &[ExportPattern]| patterns.iter().any(|p| p.matches(export));
        matched(&self.exports) && matched(&self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, export: &str) -> bool {
        pattern.parse::<ExportPattern>().unwrap().matches(export)
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "anything at all"),
            ("tenant-a-*", "tenant-a-"),
            ("tenant-a-*", "tenant-a-disk"),
            ("*-disk", "x-disk"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("*b*", "abc"),
            ("a**c", "ac"),
            ("a?", "a?"),
        ] {
            assert!(Glob::new(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a", ""),
            ("tenant-a-*", "tenant-b-disk"),
            ("tenant-a-*", "x-tenant-a-disk"),
            ("*-disk", "x-disk2"),
            ("a*a", "a"),
            ("ab*ba", "aba"),
            ("a*b*c", "acb"),
            ("a?", "ab"),
            ("a.c", "abc"),
        ] {
            assert!(!Glob::new(pattern).matches(name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_cost_of_a_pattern_is_bounded_by_the_text() {
        let stars = Glob::new(&format!("a{}b", "*".repeat(30_000)));
        assert_eq!((stars.text.as_str(), stars.literal), ("a*b", 2));
        assert!(stars.matches("ab") && stars.matches("a-b") && !stars.matches("ba"));
        let alternating = Glob::new(&"a*".repeat(10_000));
        assert_eq!(alternating.literal, 10_000);
        assert!(!alternating.matches(&"a".repeat(255)) && alternating.matches(&"a".repeat(10_000)));
        // Equal patterns are shown in the same way.
        assert_eq!(stars, Glob::new("a*b"));
    }

    #[test]
    fn a_pattern_without_snapshot_matches_all_snapshots() {
        assert!(matches("vol", "vol") && matches("vol", "vol@monday"));
        assert!(matches("*", "vol@monday"));
        assert!(matches("img@*", "img@s") && !matches("img@*", "img") && !matches("img@*", "img2@s"));
        assert!(matches("img@v*", "img@v1") && !matches("img@v*", "img@w1"));
        assert!(!matches("vol*day", "vol@monday"), "a star does not match across '@'");
        for bad in ["", "@", "a@", "@s", "a@b@c", "a/b", "a\nb"] {
            assert!(bad.parse::<ExportPattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_with_a_final_star_matches_all_names_with_a_prefix() {
        let all =
            |pattern: &str| pattern.parse::<ExportPattern>().unwrap().matches_all_beginning_with("web-");
        assert!(all("*") && all("web-*") && all("w*-*") && all("web*"));
        for pattern in ["web-", "web-1*", "web-*1", "*-001", "web-*@s"] {
            assert!(!all(pattern), "{pattern}");
        }
    }

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
        let pattern = |text: &str| text.parse::<ExportPattern>().unwrap();
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
