//! Request extractors: the extractors of axum, with errors in the API's format.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use forebay_api::{PORTALS, PortalsView};
use hyper::body::{Body as _, Bytes};
use serde::de::DeserializeOwned;

use super::problem::{ApiError, Refusal};
use super::{Api, Origin};

/// Maximum bytes of a body. The longest useful body names some thousand volumes.
pub(crate) const MAX_BODY: usize = 1 << 20;
/// Time within which a body must be complete.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// A JSON body.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // Refused before any of it is read, if the client announces it.
        if request.body().size_hint().lower() > MAX_BODY as u64 {
            return Err(ApiError::refused(Refusal::BodyTooLong, "the body is longer than 1 MiB"));
        }
        match tokio::time::timeout(BODY_TIMEOUT, Json::from_request(request, state)).await {
            Ok(Ok(Json(value))) => Ok(Body(value)),
            Ok(Err(e)) => Err(ApiError::refused(json_refusal(&e), e.body_text())),
            Err(_) => Err(body_too_slow()),
        }
    }
}

/// Reads the body of a request before it is handled, within the limits of [`Body`].
pub(crate) async fn buffer(request: Request) -> Result<(Parts, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok((parts, bytes)),
        // Too long, or the connection broke: then there is no client for the response.
        Ok(Err(_)) => Err(ApiError::refused(Refusal::BodyTooLong, "the body is longer than 1 MiB")),
        Err(_) => Err(body_too_slow()),
    }
}

fn body_too_slow() -> ApiError {
    let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
    ApiError::refused(Refusal::BodyTooSlow, detail)
}

fn json_refusal(e: &JsonRejection) -> Refusal {
    match e {
        JsonRejection::JsonDataError(_) => Refusal::WrongBody,
        JsonRejection::MissingJsonContentType(_) => Refusal::NotJson,
        JsonRejection::BytesRejection(e) if e.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Refusal::BodyTooLong
        }
        // Syntax errors and broken connections; axum may add variants.
        _ => Refusal::Malformed,
    }
}

/// The parameter `?force=true`.
pub(crate) struct Force(pub bool);

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        flag(parts, "force").map(Force)
    }
}

/// The parameter `?snapshots=true`.
pub(crate) struct WithSnapshots(pub bool);

impl<S: Send + Sync> FromRequestParts<S> for WithSnapshots {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        flag(parts, "snapshots").map(WithSnapshots)
    }
}

/// The value of a query that consists of one flag.
fn flag(parts: &Parts, name: &str) -> Result<bool, ApiError> {
    let query = parts.uri.query().filter(|query| !query.is_empty());
    match query.map(|query| query.strip_prefix(name)) {
        None | Some(Some("=false")) => Ok(false),
        Some(Some("=true")) => Ok(true),
        Some(_) => {
            let message = format!("unknown query; use '{name}=true' or '{name}=false'");
            Err(ApiError::refused(Refusal::Malformed, message))
        }
    }
}

/// Where clients of the cluster connect, as the node of a cluster states to the server of a shard. It is
/// accepted on the control socket only.
pub(crate) struct OfCluster(pub Option<Vec<PortalsView>>);

impl FromRequestParts<Api> for OfCluster {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let header = parts.headers.get(PORTALS).filter(|_| api.entry.origin == Origin::Socket);
        let parsed = header.map(|header| serde_json::from_slice(header.as_bytes())).transpose();
        parsed.map(OfCluster).map_err(|e| ApiError::refused(Refusal::Malformed, e.to_string()))
    }
}

/// The parameters in the path of a request, percent-decoded.
pub(crate) struct Param<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Param<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Param(value)),
            Err(e) => Err(ApiError::refused(Refusal::Malformed, e.body_text())),
        }
    }
}
