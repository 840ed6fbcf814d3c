//! URLs of image files.
//!
//! A URL can contain secrets: a password before the host, or a signature in the query. Both are used for
//! requests only. [`Url`] displays neither, so that they get into no error, log or list of jobs.

use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Characters that users type in a path, and that have to be encoded in a request. `%` is not encoded again.
const UNSAFE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The protocol of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn parse(text: &str) -> Option<Scheme> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Some(Scheme::Http),
            "https" => Some(Scheme::Https),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// A URL of the schemes `http` or `https`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub scheme: Scheme,
    /// User and password, still encoded.
    credentials: Option<String>,
    /// Host of the URL, in lower case, and in brackets if it is an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Path of the URL; begins with a slash, and is still encoded.
    path: String,
    /// Query of the URL without the question mark, still encoded.
    query: Option<String>,
}

impl Url {
    /// Parses a URL. A missing path is `/`, and a fragment is dropped.
    pub fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.trim().split_once("://")?;
        let scheme = Scheme::parse(scheme)?;
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (credentials, host_port) = match authority.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials.to_owned()), rest),
            None => (None, authority),
        };
        let end = host_port.rfind(']').map_or(0, |bracket| bracket + 1);
        let (host, port) = match host_port[end..].split_once(':') {
            Some((name, port)) => (&host_port[..end + name.len()], port),
            None => (host_port, ""),
        };
        let port = if port.is_empty() { scheme.port() } else { port.parse().ok()? };
        let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host_ok = match literal {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
            }
        };
        if !host_ok {
            return None;
        }
        let (path, query) = split_target(target);
        let path = if path.is_empty() { "/".to_owned() } else { path };
        Some(Url { scheme, credentials, host: host.to_ascii_lowercase(), port, path, query })
    }

    /// Resolves the target of a redirect (RFC 3986, section 5.2). Credentials remain on the same server.
    pub fn join(&self, location: &str) -> Option<Url> {
        let location = location.trim();
        if let Some(rest) = location.strip_prefix("//") {
            return Url::parse(&format!("{}://{rest}", self.scheme.name()));
        }
        if has_scheme(location) {
            let mut url = Url::parse(location)?;
            if url.credentials.is_none() && url.same_server(self) {
                url.credentials.clone_from(&self.credentials);
            }
            return Some(url);
        }
        let (path, query) = split_target(location);
        let directory = &self.path[..=self.path.rfind('/').unwrap_or_default()];
        let path = match path.as_str() {
            "" => self.path.clone(),
            absolute if absolute.starts_with('/') => without_dots(absolute),
            relative => without_dots(&format!("{directory}{relative}")),
        };
        Some(Url { path, query, ..self.clone() })
    }

    /// Whether another URL has the same scheme, host and port.
    pub fn same_server(&self, other: &Url) -> bool {
        (self.scheme, &self.host, self.port) == (other.scheme, &other.host, other.port)
    }

    /// The host, and the port unless it is the default: the value of the header `Host`.
    pub fn host_port(&self) -> String {
        if self.port == self.scheme.port() {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The host of the URL without brackets.
    pub fn bare_host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    /// The request target of a server: path and query.
    pub fn origin_form(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The request target of a proxy (RFC 9112, section 3.2.2).
    pub fn absolute_form(&self) -> String {
        format!("{}://{}{}", self.scheme.name(), self.host_port(), self.origin_form())
    }

    /// User and password, decoded: bytes, since their encoding is not known. `None` without both.
    pub fn credentials(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let text = self.credentials.as_deref().filter(|text| !text.is_empty())?;
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        Some((percent_decode_str(user).collect(), percent_decode_str(password).collect()))
    }

    /// The last segment of the path, decoded.
    pub fn file_name(&self) -> String {
        let segment = self.path.rsplit('/').next().unwrap_or_default();
        percent_decode_str(segment).decode_utf8_lossy().into_owned()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = if self.credentials.is_some() { "***@" } else { "" };
        let query = if self.query.is_some() { "?***" } else { "" };
        write!(f, "{}://{secret}{}{}{query}", self.scheme.name(), self.host_port(), self.path)
    }
}

/// Displayed without secrets, also for debugging.
impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Whether a text begins with a scheme and a colon (RFC 3986, section 3.1).
pub(super) fn has_scheme(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once(':') else { return false };
    let known = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(known)
}

/// Hides what may be a secret in a text that is not a valid URL.
pub(super) fn masked(text: &str) -> String {
    if let Some(url) = Url::parse(text) {
        return url.to_string();
    }
    let start = text.find("://").map_or(0, |at| at + 3);
    let (head, rest) = text.split_at(start);
    let (secret, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    match rest.split_once('?') {
        Some((path, _)) => format!("{head}{secret}{path}?***"),
        None => format!("{head}{secret}{rest}"),
    }
}

/// Splits a request target into path and query, and encodes both.
fn split_target(target: &str) -> (String, Option<String>) {
    let target = target.split('#').next().unwrap_or_default();
    let encode = |text: &str| utf8_percent_encode(text, UNSAFE).to_string();
    match target.split_once('?') {
        Some((path, query)) => (encode(path), Some(encode(query))),
        None => (encode(target), None),
    }
}

/// Removes the segments `.` and `..` of an absolute path (RFC 3986, section 5.2.4).
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let count = path.split('/').count();
    for (i, segment) in path.split('/').enumerate().skip(1) {
        let is_last = i + 1 == count;
        match segment {
            "." | ".." => {
                if segment == ".." {
                    segments.pop();
                }
                if is_last {
                    segments.push("");
                }
            }
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn urls_are_parsed_leniently_and_others_refused() {
        let parsed = url("HTTPS://User:p%40ss@Images.Example:8443/a b/disk%20x.img?sig=secret#part");
        assert_eq!(parsed.absolute_form(), "https://images.example:8443/a%20b/disk%20x.img?sig=secret");
        assert_eq!(parsed.credentials(), Some((b"User".to_vec(), b"p@ss".to_vec())));
        assert_eq!(
            (parsed.file_name().as_str(), parsed.host_port().as_str()),
            ("disk x.img", "images.example:8443")
        );
        assert_eq!(url("http://h").absolute_form(), "http://h/");
        assert_eq!(url("http://h?q").origin_form(), "/?q");
        assert_eq!((url("http://[::1]:81/x").bare_host(), url("http://[::1]:81/x").port), ("::1", 81));
        assert_eq!(url("http://h:/x").port, 80);
        for text in
            ["", "h/x", "ftp://h/x", "http://", "http:///x", "http://h:x/", "http://h:99999/", "http://[x]/"]
        {
            assert!(Url::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn secrets_are_not_displayed() {
        for text in [
            "https://user:secret@h/disk.img?X-Signature=secret",
            "https://secret@h/disk.img",
            "ftp://user:secret@h/disk.img?secret",
            "http://user:se/secret@h/disk.img",
            "http://user:secret@h:port/disk.img",
        ] {
            assert!(
                !masked(text).contains("secret") && masked(text).contains("disk.img"),
                "{text}: {}",
                masked(text)
            );
        }
        assert_eq!(format!("{:?}", url("http://a:b@h/x")), "http://***@h/x");
    }

    #[test]
    fn redirects_are_resolved() {
        let base = url("http://me:pw@h:8080/a/b/c.img?old");
        for (location, resolved) in [
            ("/x/y", "http://h:8080/x/y"),
            ("d.img", "http://h:8080/a/b/d.img"),
            ("../d.img?q", "http://h:8080/a/d.img?q"),
            ("./../../../d/", "http://h:8080/d/"),
            ("?new", "http://h:8080/a/b/c.img?new"),
            ("//other/x", "http://other/x"),
            ("HTTPS://other:1/x", "https://other:1/x"),
            ("/x:y", "http://h:8080/x:y"),
        ] {
            assert_eq!(base.join(location).unwrap().absolute_form(), resolved, "{location}");
        }
        assert!(base.join("file:///etc/passwd").is_none() && base.join("mailto:x").is_none());
        assert!(base.join("/x").unwrap().credentials().is_some());
        assert!(base.join("http://h:8080/x").unwrap().credentials().is_some());
        assert!(base.join("http://h/x").unwrap().credentials().is_none());
        assert!(base.join("//other/x").unwrap().credentials().is_none());
    }
}
