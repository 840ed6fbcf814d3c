//! The HTTP/JSON API: `/api/v1/…`, over the control socket and, when asked for, over TCP.
//!
//! Each resource is one file with its table of routes; the router is built from the tables and
//! `docs/api.md` is tested against them. A handler decodes its request into an [`Action`] and hands it on.
//!
//! **Trust.** The control socket belongs to root alone, and whoever can use it can do all that the server can,
//! such as read any file by importing it. Over TCP there is no authentication yet: the address is a loopback
//! one unless the operator insists, the `Host` header must name the server (so that a web page cannot reach it
//! by rebinding its own name), bodies must be declared as JSON (so that a web form cannot), and the server's
//! own files cannot be imported.

mod clones;
mod extract;
mod images;
mod lines;
mod pool;
mod snapshots;
mod stats;
mod targets;
mod volumes;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Json, Router};

use crate::control::{Action, Control, ControlError, Reply};

/// What every path begins with.
pub const PREFIX: &str = "/api/v1";

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Over the control socket, which only root can open.
    Socket,
    /// Over TCP on a loopback address.
    Loopback,
    /// Over TCP on any other address.
    Remote,
}

/// What handlers share.
#[derive(Clone)]
struct Api {
    control: Control,
    origin: Origin,
}

/// One method of one path.
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path behind [`PREFIX`], with `{parameters}`.
    pub path: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    handler: MethodRouter<Api>,
}

/// All routes, by resource.
pub fn routes() -> Vec<Route> {
    [
        images::routes(),
        volumes::routes(),
        clones::routes(),
        snapshots::routes(),
        targets::routes(),
        stats::routes(),
        pool::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The router for requests that come in by `origin`.
pub fn router(control: Control, origin: Origin) -> Router {
    let mut router = Router::new();
    for route in routes() {
        router = router.route(&format!("{PREFIX}{}", route.path), route.handler);
    }
    let router = router
        .fallback(|| async {
            ControlError::new(StatusCode::NOT_FOUND, "no_such_resource", "no such resource; see docs/api.md")
        })
        .method_not_allowed_fallback(|| async {
            ControlError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this resource does not have that method; see docs/api.md",
            )
        });
    let router = match origin {
        Origin::Loopback => router.layer(middleware::from_fn(require_loopback_host)),
        Origin::Socket | Origin::Remote => router,
    };
    router.with_state(Api { control, origin })
}

/// Runs an action and answers 200.
async fn run(State(api): State<Api>, action: Action) -> Result<Json<Reply>, ControlError> {
    api.control.run(action).await.map(Json)
}

/// Runs an action that makes something, and answers 201.
async fn create(State(api): State<Api>, action: Action) -> Result<(StatusCode, Json<Reply>), ControlError> {
    api.control.run(action).await.map(|reply| (StatusCode::CREATED, Json(reply)))
}

/// Refuses requests whose `Host` is not this machine's own: the mark of DNS rebinding.
async fn require_loopback_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    if is_loopback_host(host) {
        return next.run(request).await;
    }
    ControlError::new(
        StatusCode::FORBIDDEN,
        "bad_host",
        "this address answers only requests to localhost; use its loopback address in the URL",
    )
    .into_response()
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let literal = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    literal.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machine_itself_is_loopback() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:8080", "[::1]", "[::1]:8080"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "example.org", "localhost.example.org", "10.0.0.1:80", "[fe80::1]:80", "127.0.0.1.x"]
        {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn no_two_routes_are_the_same() {
        let mut seen = std::collections::HashSet::new();
        for r in routes() {
            assert!(seen.insert((r.method.clone(), r.path)), "{} {}", r.method, r.path);
        }
    }
}
