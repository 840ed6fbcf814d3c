//! The entrance of a node of a cluster: the same checks, credentials and audit log as at a server, in front
//! of a router that forwards requests to the servers of the shards.
//!
//! The node authenticates a client once, by the tokens of the cluster and by separate sessions. To the
//! server of a shard it names the client in a header ([`FORWARDED`]), and that server decides what the
//! client may do, as for its own clients. Tokens and sessions are served here, and so are the pages of the
//! dashboard.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use forebay_api::{CreateToken, CreatedToken, ErrorKind, PREFIX, SOCKET_HOST, TokenView};
use forebay_store::BoxFuture;
use hyper::body::{Bytes, Frame, SizeHint};
use tower::ServiceExt;

use crate::access::{Access, Forwarded, Principal, Right, TokenError, may};
use crate::dashboard;
use crate::http::auth::{self, FORWARDED, Peer, forbidden, not_authenticated};
use crate::http::extract::{self, Param};
use crate::http::guard::{Guard, guard};
use crate::http::headers::secure;
use crate::http::panics::answer_panics;
use crate::http::problem::{ApiError, Code, Result};
use crate::http::request_id::identify;
use crate::http::{Entry, Origin};
use crate::operations::ControlError;
use crate::resources::session::{ClientView, Login, log_in, log_out};

/// The document of the tokens of a cluster.
pub trait TokenDocument: Send + Sync + 'static {
    /// Replaces the document with what `change` makes of it. `change` is called again if another node was
    /// faster, after the tokens of this node were replaced.
    fn replace<'a>(
        &'a self,
        change: &'a (dyn Fn() -> Result<Vec<u8>, TokenError> + Send + Sync),
    ) -> BoxFuture<'a, Result<(), DocumentError>>;
}

/// Why the tokens of a cluster cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The change is refused.
    #[error(transparent)]
    Refused(#[from] TokenError),
    /// The document cannot be written.
    #[error("the tokens of the cluster cannot be changed: {0}")]
    Store(String),
}

impl From<DocumentError> for ApiError {
    fn from(e: DocumentError) -> ApiError {
        match e {
            DocumentError::Refused(e) => e.into(),
            DocumentError::Store(_) => ControlError::new(ErrorKind::Store, e.to_string()).into(),
        }
    }
}

/// The metrics of a node.
pub trait NodeMetrics: Send + Sync + 'static {
    /// All metrics of the node and of its shards, in the text format of Prometheus.
    fn render(&self) -> BoxFuture<'_, String>;
}

#[derive(Clone)]
struct Front {
    access: Arc<Access>,
    entry: Entry,
    tokens: Arc<dyn TokenDocument>,
    metrics: Arc<dyn NodeMetrics>,
    inner: Router,
}

/// The router of a listener of a node. `inner` forwards requests.
pub fn front(
    inner: Router,
    access: Arc<Access>,
    entry: Entry,
    tokens: Arc<dyn TokenDocument>,
    metrics: Arc<dyn NodeMetrics>,
) -> Router {
    let front = Front { access, entry, tokens, metrics, inner };
    let (guards, tls) = (Guard::new(&front.entry), front.entry.tls);
    Router::new()
        .route(&format!("{PREFIX}/session"), get(show_session).post(begin_session).delete(end_session))
        .route(&format!("{PREFIX}/tokens"), get(list_tokens).post(create_token))
        .route(&format!("{PREFIX}/tokens/{{name}}"), delete(revoke_token))
        .route("/metrics", get(show_metrics))
        .merge(dashboard::router())
        .fallback(forward)
        .layer(from_fn_with_state(front.clone(), authenticate))
        .layer(from_fn_with_state(guards, guard))
        .layer(from_fn(answer_panics))
        .layer(from_fn_with_state(tls, secure))
        .layer(from_fn(identify))
        .with_state(front)
}

async fn authenticate(State(front): State<Front>, request: Request, next: Next) -> Response {
    auth::admit(&front.access, &front.entry, None, request, next).await
}

/// The client of a request, which has this right on the cluster as a whole.
fn client(request: &axum::http::Extensions, right: Right) -> Result<Principal> {
    let principal = request.get::<Principal>().cloned().ok_or_else(not_authenticated)?;
    if may(&principal, right, None) { Ok(principal) } else { Err(forbidden(&principal, right)) }
}

async fn forward(State(front): State<Front>, mut request: Request) -> Result<Response> {
    let is_of_cluster = request.uri().path().strip_prefix(PREFIX) == Some("/cluster");
    let right = match request.method().is_safe() {
        true if is_of_cluster => Right::ReadServer,
        true => Right::Read,
        // The right that every change needs. A request without it costs nothing further.
        false => Right::Operate,
    };
    let principal = client(request.extensions(), right)?;
    let headers = request.headers_mut();
    // The checks against web pages were made here, and the credentials are nothing for other processes.
    for checked in [header::AUTHORIZATION, header::COOKIE, header::ORIGIN, header::REFERER, FORWARDED] {
        headers.remove(checked);
    }
    let of_browser: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("sec-")).cloned().collect();
    for name in of_browser {
        headers.remove(name);
    }
    headers.insert(header::HOST, HeaderValue::from_static(SOCKET_HOST));
    headers.insert(forebay_api::HEADER, HeaderValue::from_static("1"));
    if front.entry.origin != Origin::Socket {
        let client = serde_json::to_vec(&Forwarded::from(&principal));
        let client = client.ok().and_then(|client| HeaderValue::from_bytes(&client).ok());
        let client =
            client.ok_or_else(|| ControlError::internal("the client cannot be named in a header"))?;
        headers.insert(FORWARDED, client);
    }
    let Ok(mut response) = front.inner.oneshot(request).await;
    if response.status() == StatusCode::FORBIDDEN {
        // The audit log records refusals.
        response.extensions_mut().insert(Code("forbidden"));
    }
    let access = front.access.clone();
    Ok(response.map(|body| Body::new(WhileValid { body, access, principal })))
}

/// The body of a response, which ends with an error when the token or the session of its client is not
/// valid any more: the server of the shard does not know them.
struct WhileValid {
    body: Body,
    access: Arc<Access>,
    principal: Principal,
}

impl hyper::body::Body for WhileValid {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.access.is_valid(&self.principal) {
            let ended = std::io::Error::other("the token or session is not valid any more");
            return Poll::Ready(Some(Err(axum::Error::new(ended))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn show_metrics(State(front): State<Front>, request: Request) -> Result<Response> {
    client(request.extensions(), Right::ReadServer)?;
    let text = front.metrics.render().await;
    Ok(([(header::CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response())
}

async fn show_session(request: Request) -> Result<Json<ClientView>> {
    let mut view = ClientView::from(&client(request.extensions(), Right::Read)?);
    view.cluster = true;
    Ok(Json(view))
}

async fn begin_session(
    State(front): State<Front>,
    peer: Option<axum::Extension<Peer>>,
    headers: HeaderMap,
    body: extract::Body<Login>,
) -> Result<Response> {
    log_in(&front.access, front.entry.tls, peer.and_then(|peer| peer.0.0), &headers, &body.0)
}

async fn end_session(State(front): State<Front>, headers: HeaderMap) -> Result<Response> {
    log_out(&front.access, front.entry.tls, &headers)
}

/// The client of a request that changes tokens or lists them.
struct Administrator;

impl axum::extract::FromRequestParts<Front> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &Front) -> Result<Administrator> {
        client(&parts.extensions, Right::Administer).map(|_| Administrator)
    }
}

async fn list_tokens(_: Administrator, State(front): State<Front>) -> Result<Json<Vec<TokenView>>> {
    Ok(Json(front.access.tokens.list()?))
}

async fn create_token(
    _: Administrator,
    State(front): State<Front>,
    extract::Body(new): extract::Body<CreateToken>,
) -> Result<(StatusCode, Json<CreatedToken>)> {
    let created = parking_lot::Mutex::new(None);
    let change = || {
        let (token, document) = front.access.tokens.document_with(new.clone())?;
        *created.lock() = Some(token);
        Ok(document)
    };
    front.tokens.replace(&change).await?;
    let created = created.into_inner().ok_or_else(|| ControlError::internal("no token was created"))?;
    Ok((StatusCode::CREATED, Json(created)))
}

async fn revoke_token(
    _: Administrator,
    State(front): State<Front>,
    Param(name): Param<String>,
) -> Result<Json<serde_json::Value>> {
    front.tokens.replace(&|| front.access.tokens.document_without(&name)).await?;
    Ok(Json(serde_json::json!({})))
}
