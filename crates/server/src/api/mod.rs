//! The HTTP/JSON API: `/api/v1/…`, over the control socket and, when asked for, over TCP.
//!
//! Each resource is one file with its table of routes; the router is built from the tables and
//! `docs/api.md` is tested against them. A handler decodes its request into an [`Action`] and hands it on.
//!
//! **Trust.** The control socket belongs to root alone, and whoever can use it can do all that the server can,
//! such as read any file by importing it. Over TCP there is no authentication yet: the address is a loopback
//! one unless the operator insists, and the server's own files cannot be imported. Requests that a web page may have
//! sent are refused (`guard`).

mod clones;
mod extract;
mod guard;
mod images;
mod lines;
mod pool;
mod snapshots;
mod stats;
mod targets;
mod volumes;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::routing::MethodRouter;
use axum::{Json, Router};

use crate::control::{Action, Control, ControlError, Reply};
pub use guard::HEADER;
use guard::{Guard, guard};

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

/// The router for requests that come in by `origin`. `hosts` are names of this server, beside those that are known
/// (`localhost`, addresses), by which TCP clients may address it.
pub fn router(control: Control, origin: Origin, hosts: &[String]) -> Router {
    let mut router = Router::new();
    for route in routes() {
        router = router.route(&format!("{PREFIX}{}", route.path), route.handler);
    }
    router
        .fallback(|| async {
            ControlError::new(StatusCode::NOT_FOUND, "no_such_resource", "no such resource; see docs/api.md")
        })
        .method_not_allowed_fallback(|| async {
            ControlError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this resource does not have that method; see docs/api.md",
            )
        })
        // Around everything above: no route can be served without it.
        .layer(middleware::from_fn_with_state(Guard::new(origin, hosts), guard))
        .with_state(Api { control, origin })
}

/// Runs an action and answers 200.
async fn run(State(api): State<Api>, action: Action) -> Result<Json<Reply>, ControlError> {
    api.control.run(action).await.map(Json)
}

/// Runs an action that makes something, and answers 201.
async fn create(State(api): State<Api>, action: Action) -> Result<(StatusCode, Json<Reply>), ControlError> {
    api.control.run(action).await.map(|reply| (StatusCode::CREATED, Json(reply)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_routes_are_the_same() {
        let mut seen = std::collections::HashSet::new();
        for r in routes() {
            assert!(seen.insert((r.method.clone(), r.path)), "{} {}", r.method, r.path);
        }
    }
}
