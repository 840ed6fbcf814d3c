//! The HTTP/JSON API: `/api/v1/…`, over the control socket and optionally over TCP. The listeners serve the
//! files of the dashboard, too, to clients without a right.
//!
//! The router and the OpenAPI document are built from the tables of routes in `resources`; tests compare
//! `docs/api.md` and `docs/openapi.json` with the tables. HTTP statuses of errors are in `problem`.
//!
//! **Trust.** Only the server's user can open the control socket. A client of the socket has all rights of
//! the server, such as reading any file by importing it. Over TCP a client needs a token ([`crate::access`]),
//! except on a loopback address before the first token is created; and each route declares the right that it
//! requires. Requests that a web page may have sent are refused (`guard`).
//!
//! **A request** passes, in this order: the headers of the response (`headers`), panics (`panics`), `guard`,
//! authentication and the audit log (`auth`), repetitions (`idempotent`), conditions (`etag`), the right of
//! the route (`route`), the extractors, the handler.

pub(crate) mod auth;
mod etag;
pub(crate) mod extract;
pub(crate) mod guard;
pub(crate) mod headers;
mod idempotent;
pub(crate) mod lines;
pub(crate) mod list;
mod openapi;
pub(crate) mod panics;
pub(crate) mod problem;
pub(crate) mod request_id;
mod response_memory;
pub(crate) mod route;
pub(crate) mod streamed;
pub(crate) mod streams;

use std::net::IpAddr;
use std::sync::Arc;

use auth::Caller;
use axum::extract::DefaultBodyLimit;
use axum::http::header;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::{Extension, Router};
use forebay_api::PREFIX;
use tokio::sync::Semaphore;

use crate::access::{Access, Right};
use crate::import::Uploads;
use crate::operations::Control;
use crate::{dashboard, metrics};
pub use auth::{Peer, cookie_name};
use guard::{Guard, guard};
pub(crate) use openapi::document;
use problem::Refusal;
pub use problem::{ApiError, PROBLEM_JSON};
use response_memory::Reservation;
pub use route::Route;
pub(crate) use streams::Streams;

/// Maximum number of lists that are built as a whole at the same time.
const MAX_BUILT: usize = 4;

/// Where a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The control socket, which only the server's user can open.
    Socket,
    /// The request arrived over TCP on a loopback address.
    Loopback,
    /// The request arrived over TCP on an address other than a loopback address.
    Remote,
}

impl Origin {
    /// Where the requests arrive that a listener on this address receives.
    pub fn of_address(address: IpAddr) -> Origin {
        if address.is_loopback() { Origin::Loopback } else { Origin::Remote }
    }
}

/// A listener of the API.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where the listener receives requests.
    pub origin: Origin,
    /// Clients of the listener use TLS.
    pub tls: bool,
    /// Names by which clients may address this server, in addition to `localhost` and IP addresses.
    pub hosts: Arc<[String]>,
    /// Image files that clients send; all listeners of a server share them.
    pub uploads: Uploads,
}

impl Entry {
    /// Makes a listener without TLS.
    pub fn new(origin: Origin, hosts: &[String]) -> Entry {
        Entry { origin, tls: false, hosts: hosts.into(), uploads: Uploads::default() }
    }
}

/// The state that handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub control: Control,
    pub access: Arc<Access>,
    pub entry: Entry,
    keys: idempotent::Keys,
    /// Streams of clients that follow the events.
    pub streams: Streams,
    /// Memory of responses that clients have not read.
    memory: response_memory::ResponseMemory,
    /// Permits to build a list as a whole.
    pub built: Arc<Semaphore>,
}

/// Builds the router of a listener that serves these routes.
pub(crate) fn router(routes: Vec<Route>, control: Control, access: Arc<Access>, entry: Entry) -> Router {
    let api = Api {
        control,
        access,
        entry,
        keys: Default::default(),
        streams: Default::default(),
        memory: Default::default(),
        built: Arc::new(Semaphore::new(MAX_BUILT)),
    };
    let mut router = Router::new();
    for route in routes {
        router = router.route(&format!("{PREFIX}{}", route.path), route.handler);
    }
    let conditions = etag::Conditions { api: api.clone(), routes: router.clone().with_state(api.clone()) };
    router
        .route("/metrics", metrics_route().handler)
        .merge(dashboard::router())
        .fallback(|| async {
            ApiError::refused(Refusal::NoSuchResource, "no such resource; see docs/api.md for all routes")
        })
        .method_not_allowed_fallback(|| async {
            let message = "this resource does not support the method; see docs/api.md for all routes";
            ApiError::refused(Refusal::MethodNotAllowed, message)
        })
        .layer(DefaultBodyLimit::max(extract::MAX_BODY))
        .layer(from_fn_with_state(conditions, etag::conditions))
        .layer(from_fn_with_state(api.clone(), idempotent::once))
        // From here on, the last layer runs first; all apply to every route and to the fallbacks.
        .layer(from_fn_with_state(api.clone(), auth::authenticate))
        .layer(from_fn_with_state(Guard::new(&api.entry), guard))
        .layer(from_fn(panics::answer_panics))
        .layer(from_fn_with_state(api.entry.tls, headers::secure))
        // Refused requests have an id, too.
        .layer(from_fn(request_id::identify))
        .with_state(api)
}

/// `GET /metrics`, at the place where Prometheus looks for it.
fn metrics_route() -> Route {
    let show = async |caller: Caller, Extension(memory): Extension<Reservation>| {
        let body = memory.body(metrics::render(&caller.api.control).await)?;
        Ok::<_, ApiError>(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], body))
    };
    Route::get("/metrics", "The counters in the text format of Prometheus", Right::ReadServer, show)
}
