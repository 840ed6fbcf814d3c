//! The HTTP/JSON API: `/api/v1/…`, over the control socket and optionally over TCP.
//!
//! Each resource is one file with its table of routes; the router is built from the tables, and a test
//! compares `docs/api.md` with them. A handler decodes its request into an [`Action`] and passes it to the
//! control plane. HTTP statuses of errors are in `error`.
//!
//! **Trust.** Only the server's user can open the control socket. A client of the socket has all rights of
//! the server, such as reading any file by importing it. Over TCP there is no authentication yet: the address
//! must be a loopback address unless the operator overrides this, and the server's own files cannot be
//! imported. Requests that a web page may have sent are refused (`guard`).

mod clones;
mod error;
mod extract;
mod guard;
mod images;
mod lines;
mod pool;
mod request_id;
mod snapshots;
mod stats;
mod targets;
mod tenants;
mod volumes;

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};

use crate::control::{Action, Control, Reply};
use crate::metrics;
use error::{ApiError, Refusal, Result};
pub use guard::HEADER;
use guard::{Guard, guard};

/// Prefix of all paths.
pub const PREFIX: &str = "/api/v1";

/// The listener on which a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The control socket, which only the server's user can open.
    Socket,
    /// TCP on a loopback address.
    Loopback,
    /// TCP on any other address.
    Remote,
}

/// The state that handlers share.
#[derive(Clone)]
struct Api {
    control: Control,
    origin: Origin,
}

/// One method of one path.
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path after [`PREFIX`], with `{parameters}`.
    pub path: &'static str,
    /// The description in `docs/api.md`.
    pub about: &'static str,
    handler: MethodRouter<Api>,
}

/// Returns all routes, grouped by resource.
pub fn routes() -> Vec<Route> {
    [
        images::routes(),
        volumes::routes(),
        clones::routes(),
        snapshots::routes(),
        tenants::routes(),
        targets::routes(),
        stats::routes(),
        pool::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Builds the router for the listener `origin`. `hosts` are the names by which TCP clients may address this
/// server, in addition to `localhost` and IP addresses.
pub fn router(control: Control, origin: Origin, hosts: &[String]) -> Router {
    let mut router = Router::new();
    for route in routes() {
        router = router.route(&format!("{PREFIX}{}", route.path), route.handler);
    }
    router
        .route("/metrics", get(show_metrics))
        .fallback(|| async {
            ApiError::refused(Refusal::NoSuchResource, "no such resource; see docs/api.md for all routes")
        })
        .method_not_allowed_fallback(|| async {
            let message = "this resource does not support the method; see docs/api.md for all routes";
            ApiError::refused(Refusal::MethodNotAllowed, message)
        })
        // The checks apply to every route and to the fallbacks.
        .layer(middleware::from_fn_with_state(Guard::new(origin, hosts), guard))
        // Refused requests have an id, too.
        .layer(middleware::from_fn(request_id::identify))
        .with_state(Api { control, origin })
}

/// `GET /metrics`, at the place where Prometheus looks for it.
async fn show_metrics(State(api): State<Api>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&api.control).await)
}

/// Runs an action and responds with status 200.
async fn run(State(api): State<Api>, action: Action) -> Result<Json<Reply>> {
    Ok(Json(api.control.run(action).await?))
}

/// Runs an action that creates a resource, and responds with status 201.
async fn create(State(api): State<Api>, action: Action) -> Result<(StatusCode, Json<Reply>)> {
    Ok((StatusCode::CREATED, Json(api.control.run(action).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_routes_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for r in routes() {
            assert!(seen.insert((r.method.clone(), r.path)), "{} {}", r.method, r.path);
        }
    }
}
