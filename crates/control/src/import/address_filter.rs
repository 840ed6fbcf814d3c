//! Protection against server-side request forgery: the addresses to which a download may connect.
//!
//! The URL that an administrator gives may name a server in the private network. A redirect must not lead
//! there: it would make this server send requests to itself, or to machines that trust it. Nor must the URL
//! itself name this server, if the administrator is on another machine: services of this machine that are
//! not reachable from there may trust its own addresses. The check applies to the resolved addresses to which
//! connections are opened, so that DNS rebinding cannot bypass it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::own_addresses::{IsOwn, is_own};
use super::url::Url;

/// The addresses that the import of a client may reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Whether no address is refused, not even a private one.
    pub allow_private: bool,
    /// The client uses the control socket: it is on this machine and can send requests to it anyway.
    pub on_host: bool,
    /// Recognizes the addresses of this machine.
    pub is_own: IsOwn,
}

/// The error of a host whose addresses are not allowed.
#[derive(Debug, thiserror::Error)]
#[error("{host} resolves to {addr}, {what}; {remedy}")]
pub(super) struct AddressRefused {
    host: String,
    addr: IpAddr,
    what: &'static str,
    remedy: &'static str,
}

/// Text that describes the addresses of [`is_local`].
const LOCAL: &str = "a loopback or link-local address";
/// Remedy for an address that no client may reach.
const ALLOW: &str = "to allow this, start the server with --import-allow-private";
/// Remedy for an address that a client of the control socket may reach.
const USE_SOCKET: &str = "import from there over the control socket, on this server with 'forebay image import', or start \
                          the server with --import-allow-private";

/// The filter of one request. The first name is from the URL, further names are from redirects.
#[derive(Debug)]
pub(super) struct AddressFilter {
    reach: Reach,
    /// Addresses of the URL's host; `None` before the first hop. Empty if a proxy made the connection, since
    /// the proxy resolves the name itself.
    url_host: Option<Vec<IpAddr>>,
}

impl AddressFilter {
    pub fn new(reach: Reach) -> AddressFilter {
        AddressFilter { reach, url_host: None }
    }

    /// Returns why a connection to `addr` is refused, and the remedy; `None` if it is allowed.
    fn refusal(&self, host: &str, addr: IpAddr) -> Option<(&'static str, &'static str)> {
        let Reach { allow_private, on_host, .. } = self.reach;
        let is_literal = names_this_machine(host) || host_is_address(host);
        match &self.url_host {
            _ if allow_private => None,
            // The host of the URL: a name may resolve to the private network, but not to a loopback address.
            None if is_local(addr) && !is_literal => Some((LOCAL, ALLOW)),
            None if on_host => None,
            None => self.this_machine(addr).map(|what| (what, USE_SOCKET)),
            Some(url_host) if url_host.contains(&addr) && on_host => None,
            Some(url_host) if !url_host.contains(&addr) && !is_public(addr) => {
                Some(("a private address, to which the download was redirected", ALLOW))
            }
            Some(_) => self.this_machine(addr).map(|what| (what, ALLOW)),
        }
    }

    /// Describes an address if it belongs to this machine or to its link.
    fn this_machine(&self, addr: IpAddr) -> Option<&'static str> {
        match is_local(addr) {
            true => Some(LOCAL),
            false => match (self.reach.is_own)(addr) {
                Ok(false) => None,
                Ok(true) => Some("an address of this server"),
                Err(_) => Some("which cannot be compared with the addresses of this server"),
            },
        }
    }

    /// Records a hop through a proxy, which connects, and decides. If it is the first one, the host of the
    /// URL has no known address, and the rules of redirects apply to each direct connection.
    pub fn passed_to_proxy(&mut self) {
        self.url_host.get_or_insert_default();
    }

    /// Returns the allowed addresses of a host, at least one.
    pub fn allowed(&mut self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, AddressRefused> {
        let mut refused = None;
        let allowed = found.into_iter().filter(|addr| match self.refusal(host, addr.ip()) {
            None => true,
            Some((what, remedy)) => {
                refused = Some(AddressRefused { host: host.to_owned(), addr: addr.ip(), what, remedy });
                false
            }
        });
        let allowed: Vec<SocketAddr> = allowed.collect();
        match refused {
            Some(refused) if allowed.is_empty() => Err(refused),
            _ => {
                self.url_host.get_or_insert_with(|| allowed.iter().map(SocketAddr::ip).collect());
                Ok(allowed)
            }
        }
    }
}

/// Whether the host of a URL is written as an address of this machine or of its link, or as `localhost`.
/// Names that resolve to such addresses are refused when a connection is opened.
pub(crate) fn names_this_server(url: &str) -> bool {
    names_server(url, is_own)
}

fn names_server(url: &str, is_own: IsOwn) -> bool {
    let Some(url) = Url::parse(url) else { return false };
    let host = url.bare_host();
    let is_refused = |addr| is_local(addr) || is_own(addr).unwrap_or(true);
    names_this_machine(host) || host.parse().is_ok_and(is_refused)
}

fn names_this_machine(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

fn host_is_address(host: &str) -> bool {
    let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    literal.parse::<IpAddr>().is_ok()
}

/// Whether an address is loopback, unspecified or link-local: RFC 1122 section 3.2.1.3, RFC 3927, RFC 4291.
fn is_local(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    }
}

/// Whether an address is globally reachable, that is, not one of the special-purpose addresses of RFC 6890
/// and of the IANA registries that update it.
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
        // NAT64 (RFC 6052) and 6to4 (RFC 3056) embed an IPv4 address.
        (0x64, 0xff9b) => v6.segments()[2..6] == [0; 4] && is_public_v4(embedded(y, z)),
        (0x2002, high) => is_public_v4(embedded(high, v6.segments()[2])),
        // Teredo and other protocol assignments, and prefixes for documentation.
        (0x2001, 0..=0x1ff) | (0x2001, 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // The IANA assigns global unicast addresses from 2000::/3 only.
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A machine with one address of each family.
    fn own(addr: IpAddr) -> std::io::Result<bool> {
        Ok(["192.0.2.5", "1.1.1.5", "2001:db8::5"].iter().any(|text| self::addr(text) == addr.to_canonical()))
    }

    const ON_HOST: Reach = Reach { allow_private: false, on_host: true, is_own: own };
    const OVER_TCP: Reach = Reach { on_host: false, ..ON_HOST };

    #[test]
    fn special_purpose_addresses_are_not_public() {
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
    fn the_server_is_recognized_in_a_url() {
        for url in [
            "http://192.0.2.5:8443/a",
            "https://[::ffff:192.0.2.5]/a",
            "http://user@[2001:DB8::5]/",
            "http://127.0.0.1:8080/a",
            "https://[::1]/a",
            "http://[::ffff:169.254.169.254]/a",
            "http://169.254.169.254/latest",
            "http://user:pw@0.0.0.0/",
            "HTTP://LocalHost/a",
            "http://a.localhost",
        ] {
            assert!(names_server(url, own), "{url}");
        }
        for url in ["http://10.0.0.1/127.0.0.1", "https://example.org/?localhost", "http://[fd00::1]/", "x"] {
            assert!(!names_server(url, own), "{url}");
        }
    }

    #[test]
    fn private_addresses_are_allowed_in_the_url_but_not_by_redirects() {
        let mut filter = AddressFilter::new(ON_HOST);
        let first = |host, text| filter.refusal(host, addr(text)).is_none();
        assert!(first("127.0.0.1", "127.0.0.1") && first("[::1]", "::1") && first("localhost", "::1"));
        assert!(first("images.lan", "10.0.0.5") && first("example.org", "1.1.1.1"));
        assert!(!first("evil.example", "127.0.0.1") && !first("evil.example", "169.254.169.254"));
        assert!(!first("evil.example", "::ffff:127.0.0.1") && !first("evil.example", "0.0.0.0"));
        filter.allowed("images.lan", vec!["10.0.0.5:80".parse().unwrap()]).unwrap();
        let redirected = |text| filter.refusal("any", addr(text)).is_none();
        assert!(redirected("10.0.0.5") && redirected("1.1.1.1"));
        assert!(!redirected("10.0.0.6") && !redirected("127.0.0.1") && !redirected("fe80::1"));
        let reach = Reach { allow_private: true, ..ON_HOST };
        assert!(AddressFilter { reach, ..filter }.refusal("any", addr("127.0.0.1")).is_none());
    }

    /// The remedy is the control socket only if the address is allowed there.
    #[test]
    fn the_own_addresses_are_refused_over_tcp() {
        let refused = |filter: &AddressFilter, host, text| filter.refusal(host, addr(text)).map(|(_, r)| r);
        let tcp = AddressFilter::new(OVER_TCP);
        for (host, text) in [
            ("192.0.2.5", "192.0.2.5"),
            ("storage.lan", "192.0.2.5"),
            ("storage.lan", "::ffff:192.0.2.5"),
            ("storage.lan", "2001:db8::5"),
            ("storage.lan", "1.1.1.5"),
            ("127.0.0.1", "127.0.0.1"),
            ("localhost", "::1"),
        ] {
            assert_eq!(refused(&tcp, host, text), Some(USE_SOCKET), "{host} {text}");
            assert_eq!(refused(&AddressFilter::new(ON_HOST), host, text), None, "{host} {text}");
        }
        for reach in [OVER_TCP, ON_HOST] {
            let filter = AddressFilter::new(reach);
            assert_eq!(refused(&filter, "evil.example", "127.0.0.1"), Some(ALLOW));
            assert_eq!(refused(&filter, "images.lan", "192.0.2.6"), None);
        }
        let unknown = Reach { is_own: |_| Err(std::io::ErrorKind::Other.into()), ..OVER_TCP };
        assert_eq!(refused(&AddressFilter::new(unknown), "a.lan", "192.0.2.6"), Some(USE_SOCKET));
    }

    #[test]
    fn redirects_do_not_lead_to_the_own_addresses() {
        for reach in [OVER_TCP, ON_HOST] {
            let mut filter = AddressFilter::new(reach);
            filter.allowed("example.org", vec!["1.1.1.1:80".parse().unwrap()]).unwrap();
            // A public address of this machine.
            let refused = filter.allowed("x.example", vec!["1.1.1.5:80".parse().unwrap()]).unwrap_err();
            assert!(refused.to_string().contains("an address of this server"), "{refused}");
            filter.allowed("y.example", vec!["1.1.1.6:80".parse().unwrap()]).unwrap();
        }
        // The server of the URL is this machine.
        let mut filter = AddressFilter::new(ON_HOST);
        filter.allowed("1.1.1.5", vec!["1.1.1.5:80".parse().unwrap()]).unwrap();
        filter.allowed("any", vec!["1.1.1.5:80".parse().unwrap()]).unwrap();
    }

    #[test]
    fn after_a_proxy_a_direct_connection_is_a_redirect() {
        let mut filter = AddressFilter::new(ON_HOST);
        filter.passed_to_proxy();
        for (host, text) in [("127.0.0.1", "127.0.0.1:80"), ("images.lan", "10.0.0.5:80")] {
            filter.allowed(host, vec![text.parse().unwrap()]).unwrap_err();
        }
        filter.allowed("example.org", vec!["1.1.1.1:80".parse().unwrap()]).unwrap();
        // A later host does not become the host of the URL.
        filter.allowed("images.lan", vec!["10.0.0.5:80".parse().unwrap()]).unwrap_err();

        let mut filter = AddressFilter::new(ON_HOST);
        filter.allowed("images.lan", vec!["10.0.0.5:80".parse().unwrap()]).unwrap();
        filter.passed_to_proxy();
        filter.allowed("images.lan", vec!["10.0.0.5:80".parse().unwrap()]).unwrap();
    }
}
