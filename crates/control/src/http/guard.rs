//! Protection against cross-site requests: web pages that use a browser to reach the API.
//!
//! A browser lets any page send requests to any address. Requests without a body, or with a body declared as
//! text or as a form, need no preflight. Three checks run before every route:
//!
//! - `Host` must name this server, on every listener: a page that rebinds its own name to this address is
//!   refused. The control socket is no exception, since `ssh -L` forwards TCP connections of browsers to it.
//! - `Origin` and `Sec-Fetch-Site`, which a page cannot change (Fetch Standard, "forbidden request-header";
//!   W3C Fetch Metadata), must not show a request from another site.
//! - A method that changes state must carry [`HEADER`], or a body declared as JSON. A page can send neither
//!   to another origin without a preflight, and no preflight is answered.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_api::{HEADER, SOCKET_HOST};

use super::problem::{ApiError, Refusal};
use super::{Entry, Origin};
use crate::dashboard;

/// The configuration of the checks.
#[derive(Clone)]
pub(crate) struct Guard {
    origin: Origin,
    /// URL schemes of pages that this server may have delivered.
    schemes: &'static [&'static str],
    /// Configured names of this server, in addition to those that [`Guard::names_this_server`] always
    /// accepts.
    hosts: Arc<[String]>,
}

impl Guard {
    pub fn new(entry: &Entry) -> Guard {
        let schemes: &[&str] = match (entry.origin, entry.tls) {
            // Clients of the control socket are forwarded by other programs, such as ssh, which may add TLS.
            (Origin::Socket, _) => &["http://", "https://"],
            (_, true) => &["https://"],
            (_, false) => &["http://"],
        };
        Guard { origin: entry.origin, schemes, hosts: entry.hosts.clone() }
    }

    fn check(&self, request: &Request) -> Result<(), ApiError> {
        let (method, headers) = (request.method(), request.headers());
        let refused = |why, message: &str| Err(ApiError::refused(why, message));
        // HTTP/1.0 has no `Host`, and browsers do not speak HTTP/1.0.
        let is_absent = self.origin == Origin::Socket && !headers.contains_key(header::HOST);
        if !is_absent && !only(headers, header::HOST.as_str(), |h| self.names_this_server(h)) {
            let message = "the Host header names another server; use this server's address in the URL, or add the name \
                           with --http-host";
            return refused(Refusal::BadHost, message);
        }
        let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
        // A link may lead to the dashboard's shell, which is the same for everyone.
        if dashboard::is_shell(method, request.uri().path()) {
            return Ok(());
        }
        let own_site = |site: &str| matches!(site, "same-origin" | "none");
        if !all(headers, "sec-fetch-site", own_site)
            || !all(headers, header::ORIGIN.as_str(), |origin| self.is_origin_of(origin, host))
        {
            return refused(Refusal::ForeignOrigin, "web pages of other sites cannot use this API");
        }
        if !method.is_safe() && !headers.contains_key(HEADER) && !declares_json(headers) {
            let message = "a request that changes state requires the header 'X-Forebay: 1', or a JSON body with \
                           'content-type: application/json'";
            return refused(Refusal::HeaderMissing, message);
        }
        Ok(())
    }

    /// Whether a `Host` header names this server: an IP address (DNS rebinding requires a name), `localhost`,
    /// or a configured name. Except on a remote address, the IP address must be a loopback address.
    fn names_this_server(&self, host: &str) -> bool {
        if self.origin == Origin::Socket && host == SOCKET_HOST {
            return true;
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let literal = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
        match literal.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || self.origin == Origin::Remote,
            Err(_) => {
                let matches = |host: &String| name.eq_ignore_ascii_case(host);
                name.eq_ignore_ascii_case("localhost") || self.hosts.iter().any(matches)
            }
        }
    }

    /// Whether an `Origin` header names this server, which was addressed as `host`.
    fn is_origin_of(&self, origin: &str, host: &str) -> bool {
        let authority = self.schemes.iter().find_map(|scheme| origin.strip_prefix(scheme));
        authority.is_some_and(|authority| !host.is_empty() && authority.eq_ignore_ascii_case(host))
    }
}

/// Whether there is exactly one header of this name, and it passes the test.
fn only(headers: &HeaderMap, name: &str, test: impl Fn(&str) -> bool) -> bool {
    headers.get_all(name).iter().count() == 1 && all(headers, name, test)
}

/// Whether each header of this name passes the test; true without such a header.
fn all(headers: &HeaderMap, name: &str, test: impl Fn(&str) -> bool) -> bool {
    headers.get_all(name).iter().all(|value| value.to_str().is_ok_and(&test))
}

fn declares_json(headers: &HeaderMap) -> bool {
    let media_type = |value: &str| {
        value.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("application/json"))
    };
    only(headers, header::CONTENT_TYPE.as_str(), media_type)
}

/// Runs the checks as a layer of the router.
pub(crate) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_listener_accepts_loopback_addresses_and_configured_names() {
        let guard = Guard::new(&Entry::new(Origin::Loopback, &["Storage.lan".into()]));
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.1.2.3:8080",
            "[::1]",
            "[::1]:8080",
            "storage.LAN:8080",
        ] {
            assert!(guard.names_this_server(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "10.0.0.1:80",
            "[fe80::1]:80",
            "127.0.0.1.x",
            "storage.lan.example.org",
        ] {
            assert!(!guard.names_this_server(host), "{host}");
        }
    }

    #[test]
    fn the_control_socket_accepts_its_own_name_without_a_port() {
        let guard = Guard::new(&Entry::new(Origin::Socket, &["storage.lan".into()]));
        for host in [SOCKET_HOST, "localhost:8080", "127.0.0.1:8080", "[::1]", "storage.lan:8080"] {
            assert!(guard.names_this_server(host), "{host}");
        }
        for host in ["", "forebay:8080", "forebay.example", "rebound.example:8080", "10.0.0.1:8080"] {
            assert!(!guard.names_this_server(host), "{host}");
        }
        let loopback = Guard::new(&Entry::new(Origin::Loopback, &[]));
        assert!(!loopback.names_this_server(SOCKET_HOST));
    }

    #[test]
    fn a_remote_listener_accepts_all_addresses_but_only_configured_names() {
        let guard = Guard::new(&Entry::new(Origin::Remote, &["storage.lan".into()]));
        for host in ["10.0.0.1:80", "[fe80::1]", "localhost", "storage.lan:8080"] {
            assert!(guard.names_this_server(host), "{host}");
        }
        for host in ["", "rebound.example", "10.0.0.1.example"] {
            assert!(!guard.names_this_server(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_compared_with_the_whole_authority() {
        let guard = Guard::new(&Entry::new(Origin::Socket, &[]));
        assert!(guard.is_origin_of("http://localhost:8080", "localhost:8080"));
        assert!(guard.is_origin_of("https://Storage.lan", "storage.lan"));
        for (origin, host) in [
            ("null", "localhost"),
            ("http://localhost:8081", "localhost:8080"),
            ("http://evil.example", "localhost"),
            ("http://localhost.evil.example", "localhost"),
            ("http://", ""),
            ("file://localhost", "localhost"),
        ] {
            assert!(!guard.is_origin_of(origin, host), "{origin} {host}");
        }
    }

    #[test]
    fn an_origin_over_tcp_has_the_scheme_of_the_listener() {
        for tls in [false, true] {
            let guard = Guard::new(&Entry { tls, ..Entry::new(Origin::Remote, &[]) });
            assert_eq!(guard.is_origin_of("http://10.0.0.1:8443", "10.0.0.1:8443"), !tls);
            assert_eq!(guard.is_origin_of("https://10.0.0.1:8443", "10.0.0.1:8443"), tls);
        }
    }

    #[test]
    fn only_the_json_media_type_declares_a_json_body() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            headers
        };
        for good in ["application/json", "Application/JSON; charset=utf-8"] {
            assert!(declares_json(&with(good)), "{good}");
        }
        for bad in ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded"] {
            assert!(!declares_json(&with(bad)), "{bad}");
        }
        assert!(!declares_json(&HeaderMap::new()));
    }
}
