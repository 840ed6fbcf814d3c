//! Error responses: the one table of HTTP statuses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::control::{ControlError, ErrorBody, ErrorDetail, ErrorKind};

/// Result of a handler.
pub(super) type Result<T> = std::result::Result<T, ApiError>;

/// An error of the API: status, and the body `{"error": {"code": …, "message": …}}`.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    detail: ErrorDetail,
}

/// Why the API refuses a request before it reaches the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The path, the query or the syntax of the body is invalid.
    Malformed,
    /// The body is too long.
    BodyTooLong,
    /// The body is not declared as JSON.
    NotJson,
    /// The body is JSON, but not the object that the route requires.
    WrongBody,
    /// The `Host` header names another server.
    BadHost,
    /// A web page of another site sent the request.
    ForeignOrigin,
    /// The header that requests with an effect require is missing.
    HeaderMissing,
    /// The request is allowed only over the control socket.
    NotHere,
    /// The path has no route.
    NoSuchResource,
    /// The route does not have the method.
    MethodNotAllowed,
}

impl ApiError {
    /// Creates the error of a refused request.
    pub fn refused(why: Refusal, message: impl Into<String>) -> ApiError {
        let (status, code) = match why {
            Refusal::Malformed => (StatusCode::BAD_REQUEST, "bad_request"),
            Refusal::BodyTooLong => (StatusCode::PAYLOAD_TOO_LARGE, "bad_request"),
            Refusal::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request"),
            Refusal::WrongBody => (StatusCode::UNPROCESSABLE_ENTITY, "bad_request"),
            Refusal::BadHost => (StatusCode::FORBIDDEN, "bad_host"),
            Refusal::ForeignOrigin => (StatusCode::FORBIDDEN, "foreign_origin"),
            Refusal::HeaderMissing => (StatusCode::FORBIDDEN, "header_missing"),
            Refusal::NotHere => (StatusCode::FORBIDDEN, "not_here"),
            Refusal::NoSuchResource => (StatusCode::NOT_FOUND, "no_such_resource"),
            Refusal::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
        };
        ApiError { status, detail: ErrorDetail { code: code.to_owned(), message: message.into() } }
    }
}

/// The HTTP status of each kind of error of the control plane.
fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::BadRequest
        | ErrorKind::BadName
        | ErrorKind::BadSize
        | ErrorKind::BadLun
        | ErrorKind::BadChap
        | ErrorKind::BadSource
        | ErrorKind::OutOfRange
        | ErrorKind::Overlap => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Exists
        | ErrorKind::InUse
        | ErrorKind::Resetting
        | ErrorKind::MemoryLost
        | ErrorKind::HasClones
        | ErrorKind::HasSnapshots
        | ErrorKind::WrongKind
        | ErrorKind::ReadOnly
        | ErrorKind::Mapped
        | ErrorKind::Volatile
        | ErrorKind::Full
        | ErrorKind::NoStandby
        | ErrorKind::MapDamaged => StatusCode::CONFLICT,
        ErrorKind::Damaged | ErrorKind::Store | ErrorKind::Unreadable | ErrorKind::Internal => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ErrorKind::FetchFailed | ErrorKind::UpgradeFailed | ErrorKind::HandoverFailed => {
            StatusCode::BAD_GATEWAY
        }
        ErrorKind::Closed
        | ErrorKind::Upgrading
        | ErrorKind::Latched
        | ErrorKind::Fenced
        | ErrorKind::NotOwner
        | ErrorKind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
    }
}

impl From<ControlError> for ApiError {
    fn from(e: ControlError) -> ApiError {
        ApiError { status: status(e.kind), detail: e.into() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.detail })).into_response()
    }
}
