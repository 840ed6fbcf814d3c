//! The addresses from which a download is allowed.
//!
//! An administrator's URL may name a server of the own network. Another server must not lead the download there: by a
//! redirect, it could have this server send requests to machines that trust it, or to itself. The check is made on the
//! addresses to which a connection is opened, after the name was resolved, so that no trick of a name server gets
//! around it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use parking_lot::Mutex;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// How images may be fetched from URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPolicy {
    /// Most bytes of a file.
    pub max_bytes: u64,
    /// Whether redirects may lead to private addresses, and names to this machine.
    pub allow_private: bool,
}

impl Default for FetchPolicy {
    fn default() -> FetchPolicy {
        FetchPolicy { max_bytes: 1 << 40, allow_private: false }
    }
}

/// A connection that is not made.
#[derive(Debug, thiserror::Error)]
#[error("{host} is at {addr}, {what}; if that is intended, start the server with --import-allow-private")]
pub(super) struct Refused {
    host: String,
    addr: IpAddr,
    what: &'static str,
}

/// Resolves the names of one request: that of the URL first, then those of redirects.
#[derive(Debug)]
pub(super) struct Reach {
    inner: DefaultResolver,
    allow_private: bool,
    /// Addresses of the URL's own server, once they are known.
    own: Mutex<Option<Vec<IpAddr>>>,
}

impl Reach {
    pub fn new(allow_private: bool) -> Reach {
        Reach { inner: DefaultResolver::default(), allow_private, own: Mutex::default() }
    }

    /// Why an address is not connected to, if it is not.
    fn refusal(&self, host: &str, addr: IpAddr, own: Option<&[IpAddr]>) -> Option<&'static str> {
        match own {
            _ if self.allow_private => None,
            // The URL itself: a name may be one of the own network, but not turn out to be this very machine.
            None if names_this_machine(host) || host_is_address(host) => None,
            None => {
                is_local(addr).then_some("an address of this machine or its link, which the URL does not say")
            }
            Some(own) if own.contains(&addr) => None,
            Some(_) => {
                (!is_public(addr)).then_some("a private address, to which the download was redirected")
            }
        }
    }
}

impl Resolver for Reach {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let resolved = self.inner.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        let mut own = self.own.lock();
        let mut allowed = self.empty();
        let mut refused = None;
        for addr in resolved.iter() {
            match self.refusal(host, addr.ip(), own.as_deref()) {
                None => allowed.push(*addr),
                Some(what) => refused = Some(Refused { host: host.to_owned(), addr: addr.ip(), what }),
            }
        }
        if allowed.is_empty() {
            let refused =
                refused.map_or(ureq::Error::HostNotFound, |refused| ureq::Error::Other(Box::new(refused)));
            return Err(refused);
        }
        own.get_or_insert_with(|| allowed.iter().map(|addr| addr.ip()).collect());
        Ok(allowed)
    }
}

fn names_this_machine(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

fn host_is_address(host: &str) -> bool {
    let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    literal.parse::<IpAddr>().is_ok()
}

/// An address of this machine or of its link: RFC 1122 section 3.2.1.3, RFC 3927, RFC 4291.
fn is_local(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    }
}

/// An address that anyone can reach: none of the special ones of RFC 6890 and of the IANA's registries after it.
fn is_public(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    let special = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_documentation();
    let shared = a == 100 && (64..128).contains(&b);
    let protocols = (a, b, c) == (192, 0, 0) || (a, b, c) == (192, 88, 99);
    let benchmarks = a == 198 && (b == 18 || b == 19);
    !(special || shared || protocols || benchmarks || a == 0 || a >= 224)
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    let [a, b, .., y, z] = v6.segments();
    let embedded = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (a, b) {
        // NAT64 (RFC 6052) and 6to4 (RFC 3056) have an IPv4 address inside.
        (0x64, 0xff9b) => v6.segments()[2..6] == [0; 4] && is_public_v4(embedded(y, z)),
        (0x2002, high) => is_public_v4(embedded(high, v6.segments()[2])),
        // Teredo and other protocols, documentation.
        (0x2001, 0..=0x1ff) | (0x2001, 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Global unicast is all that the IANA hands out.
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_not_public() {
        for text in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"] {
            assert!(is_public(addr(text)), "{text}");
        }
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
            "2001::1",
            "::127.0.0.1",
        ] {
            assert!(!is_public(addr(text)), "{text}");
        }
    }

    #[test]
    fn the_url_may_say_what_a_name_and_a_redirect_may_not_mean() {
        let reach = Reach::new(false);
        let first = |host, text| reach.refusal(host, addr(text), None).is_none();
        assert!(first("127.0.0.1", "127.0.0.1") && first("[::1]", "::1") && first("localhost", "::1"));
        assert!(first("images.lan", "10.0.0.5") && first("example.org", "1.1.1.1"));
        assert!(!first("evil.example", "127.0.0.1") && !first("evil.example", "169.254.169.254"));
        assert!(!first("evil.example", "::ffff:127.0.0.1") && !first("evil.example", "0.0.0.0"));
        let own = [addr("10.0.0.5")];
        let redirected = |text| reach.refusal("any", addr(text), Some(&own)).is_none();
        assert!(redirected("10.0.0.5") && redirected("1.1.1.1"));
        assert!(!redirected("10.0.0.6") && !redirected("127.0.0.1") && !redirected("fe80::1"));
        assert!(Reach::new(true).refusal("any", addr("127.0.0.1"), Some(&own)).is_none());
    }
}
