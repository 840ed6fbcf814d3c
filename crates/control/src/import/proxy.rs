//! The proxies that the environment names, as other programs read it: `http_proxy` for http URLs,
//! `https_proxy` for https URLs, `all_proxy` for both, each also in upper case, and `no_proxy` for the hosts
//! that are reached directly.

use std::net::IpAddr;

use super::url::{Scheme, Url, masked};

/// The proxies that the environment variables name.
#[derive(Debug, Clone, Default)]
pub(super) struct Proxies {
    http: Option<String>,
    https: Option<String>,
    /// Hosts, domains, addresses and networks that are reached without a proxy.
    direct: Vec<String>,
}

impl Proxies {
    /// The proxies of this process's environment.
    pub fn of_environment() -> Proxies {
        Proxies::from(|name| std::env::var(name).ok())
    }

    /// A proxy for http URLs.
    #[cfg(test)]
    pub fn with_http(proxy: &str) -> Proxies {
        Proxies { http: Some(proxy.to_owned()), ..Proxies::default() }
    }

    /// Returns these proxies, but none for the given host.
    #[cfg(test)]
    pub fn without(self, host: &str) -> Proxies {
        Proxies { direct: vec![host.to_owned()], ..self }
    }

    /// A proxy for https URLs.
    #[cfg(test)]
    pub fn with_https(proxy: &str) -> Proxies {
        Proxies { https: Some(proxy.to_owned()), ..Proxies::default() }
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Proxies {
        let named = |name: &str| {
            let found = variable(name).or_else(|| variable(&name.to_ascii_uppercase()));
            found.filter(|value| !value.trim().is_empty())
        };
        let all = named("all_proxy");
        let direct = named("no_proxy").unwrap_or_default();
        let direct =
            direct.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()).map(str::to_ascii_lowercase);
        Proxies {
            http: named("http_proxy").or_else(|| all.clone()),
            https: named("https_proxy").or(all),
            direct: direct.collect(),
        }
    }

    /// Returns the proxy for a URL; `None` for a direct connection.
    ///
    /// # Errors
    ///
    /// The value of the variable, without secrets, if it names no proxy that speaks HTTP.
    pub fn of(&self, url: &Url) -> Result<Option<Url>, String> {
        let proxy = match url.scheme {
            Scheme::Http => &self.http,
            Scheme::Https => &self.https,
        };
        let Some(proxy) = proxy else { return Ok(None) };
        if self.direct.iter().any(|entry| covers(entry, url)) {
            return Ok(None);
        }
        let text = if proxy.contains("://") { proxy.clone() } else { format!("http://{proxy}") };
        Url::parse(&text).map(Some).ok_or_else(|| masked(&text))
    }
}

/// Whether an entry of `no_proxy` covers the host of a URL: `*`; a network; an address; or a domain with or
/// without a dot or `*.` in front, which covers its subdomains. Each may end with a port.
fn covers(entry: &str, url: &Url) -> bool {
    if entry == "*" {
        return true;
    }
    let host = url.bare_host();
    if let (Some((network, bits)), Ok(address)) = (entry.split_once('/'), host.parse::<IpAddr>()) {
        return network
            .parse()
            .is_ok_and(|network| bits.parse().is_ok_and(|bits| contains(network, bits, address)));
    }
    let (entry, port) = match entry.rsplit_once(':') {
        // Several colons outside of brackets are an IPv6 address.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port.parse::<u16>().ok()),
        _ => (entry, None),
    };
    if port.is_some_and(|port| port != url.port) {
        return false;
    }
    let entry = entry.trim_start_matches('[').trim_end_matches(']');
    if let (Ok(listed), Ok(address)) = (entry.parse::<IpAddr>(), host.parse::<IpAddr>()) {
        return listed.to_canonical() == address.to_canonical();
    }
    let domain = entry.strip_prefix('*').unwrap_or(entry).trim_start_matches('.');
    let subdomain = host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !domain.is_empty() && subdomain
}

/// Whether an address is in a network with a prefix of `bits`.
fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    let (network, address, width) = match (network, address.to_canonical()) {
        (IpAddr::V4(n), IpAddr::V4(a)) => (u128::from(n.to_bits()), u128::from(a.to_bits()), 32),
        (IpAddr::V6(n), IpAddr::V6(a)) => (n.to_bits(), a.to_bits(), 128),
        _ => return false,
    };
    bits <= width && (bits == 0 || (network ^ address) >> (width - bits) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::from(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    fn chosen(proxies: &Proxies, url: &str) -> Option<String> {
        let proxy = proxies.of(&Url::parse(url).unwrap()).unwrap();
        proxy.map(|proxy| format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let both =
            proxies(&[("HTTP_PROXY", "http://one:1"), ("https_proxy", "two:2"), ("HTTPS_PROXY", "three:3")]);
        assert_eq!(chosen(&both, "http://h/").as_deref(), Some("one:1"));
        assert_eq!(chosen(&both, "https://h/").as_deref(), Some("two:2"));
        assert_eq!(chosen(&proxies(&[("https_proxy", "two:2")]), "http://h/"), None);
        let all = proxies(&[("all_proxy", "HTTP://user:pw@all"), ("http_proxy", " ")]);
        assert_eq!(chosen(&all, "http://h/").as_deref(), Some("all:80"));
        let socks = proxies(&[("all_proxy", "socks5://user:secret@h")]);
        assert_eq!(socks.of(&Url::parse("http://h/").unwrap()), Err("socks5://***@h".into()));
    }

    #[test]
    fn hosts_domains_addresses_and_networks_are_exempt() {
        let list =
            "localhost, .lan,example.org,*.corp.example,10.0.0.0/8,fd00::/8,192.0.2.7,[::1]:81,ported:8080";
        let proxies = proxies(&[("all_proxy", "p:1"), ("NO_PROXY", list)]);
        for url in [
            "http://localhost/",
            "https://a.lan/",
            "http://example.org:8080/",
            "http://www.EXAMPLE.org/",
            "http://x.corp.example/",
            "http://10.200.0.1/",
            "http://[fd12::1]/",
            "http://192.0.2.7/",
            "http://[::1]:81/",
            "http://ported:8080/",
        ] {
            assert_eq!(chosen(&proxies, url), None, "{url}");
        }
        for url in [
            "http://notexample.org/",
            "http://11.0.0.1/",
            "http://[fe80::1]/",
            "http://[::1]/",
            "http://ported/",
        ] {
            assert!(chosen(&proxies, url).is_some(), "{url}");
        }
        let everything = super::tests::proxies(&[("all_proxy", "p:1"), ("no_proxy", "*")]);
        assert_eq!(chosen(&everything, "http://h/"), None);
    }
}
