//! Error responses: `application/problem+json` (RFC 9457), and the one table of HTTP statuses, titles and
//! remedies.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{ErrorKind, Problem};

use crate::access::TokenError;
use crate::operations::{ControlError, Failure};

/// Media type of errors.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// Beginning of the `type` of each problem; the code follows.
const TYPE: &str = "urn:forebay:problem:";

/// Result of a handler.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// An error of the API.
#[derive(Debug)]
pub struct ApiError {
    kind: Kind,
    detail: String,
    /// Seconds after which the client can repeat the request.
    retry_after_s: Option<u64>,
}

/// Why the API refuses a request before it reaches the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The path, the query or the syntax of the body is invalid.
    Malformed,
    /// The body of the request is too long.
    BodyTooLong,
    /// The body did not arrive in time.
    BodyTooSlow,
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
    /// The route needs authentication.
    NotAuthenticated,
    /// The token is not valid.
    BadToken,
    /// The token has expired.
    TokenExpired,
    /// The address has made too many attempts with invalid tokens.
    TooManyAttempts,
    /// The principal does not have the right.
    Forbidden,
    /// Too many clients follow the events.
    TooManyStreams,
    /// No memory is left for a long response.
    TooManyResponses,
    /// The resource has changed: it is not the resource that `If-Match` names.
    Changed,
    /// A request with the same `Idempotency-Key` is running, or its response was not kept.
    KeyInUse,
    /// Another request had the same `Idempotency-Key`.
    KeyReused,
    /// Too many requests of the client are under way.
    TooManyRequests,
    /// The handler panicked.
    Panicked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Refused(Refusal),
    Failed(ErrorKind),
}

/// Status, title and remedy of a kind of problem.
type Description = (StatusCode, &'static str, &'static str);

impl Refusal {
    fn code(self) -> &'static str {
        match self {
            Refusal::Malformed | Refusal::BodyTooLong | Refusal::NotJson | Refusal::WrongBody => {
                "bad_request"
            }
            Refusal::BodyTooSlow => "body_too_slow",
            Refusal::BadHost => "bad_host",
            Refusal::ForeignOrigin => "foreign_origin",
            Refusal::HeaderMissing => "header_missing",
            Refusal::NotHere => "not_here",
            Refusal::NoSuchResource => "no_such_resource",
            Refusal::MethodNotAllowed => "method_not_allowed",
            Refusal::NotAuthenticated => "not_authenticated",
            Refusal::BadToken => "bad_token",
            Refusal::TokenExpired => "token_expired",
            Refusal::TooManyAttempts => "too_many_attempts",
            Refusal::Forbidden => "forbidden",
            Refusal::TooManyStreams => "too_many_streams",
            Refusal::TooManyResponses => "too_many_responses",
            Refusal::Changed => "changed",
            Refusal::KeyInUse => "key_in_use",
            Refusal::KeyReused => "key_reused",
            Refusal::TooManyRequests => "too_many_requests",
            Refusal::Panicked => "internal",
        }
    }

    fn describe(self) -> Description {
        const FORMAT: &str = "correct the request; /api/v1/openapi.json describes each route";
        let authenticate = "send 'Authorization: Bearer TOKEN'; 'forebay token create' makes tokens";
        match self {
            Refusal::Malformed => (StatusCode::BAD_REQUEST, "Invalid request", FORMAT),
            Refusal::BodyTooLong => (StatusCode::PAYLOAD_TOO_LARGE, "Body too long", FORMAT),
            Refusal::BodyTooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "Body too slow", "send the complete body at once")
            }
            Refusal::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Not JSON", FORMAT),
            Refusal::WrongBody => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid body", FORMAT),
            Refusal::BadHost => (
                StatusCode::FORBIDDEN,
                "Unknown host",
                "use the address of this server in the URL, or add the name with --http-host",
            ),
            Refusal::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "Foreign origin",
                "use the API from a program, or from this server's pages",
            ),
            Refusal::HeaderMissing => {
                (StatusCode::FORBIDDEN, "Header missing", "add the header 'X-Forebay: 1'")
            }
            Refusal::NotHere => (StatusCode::FORBIDDEN, "Not over this connection", "use the control socket"),
            Refusal::NoSuchResource => (StatusCode::NOT_FOUND, "No such resource", FORMAT),
            Refusal::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", FORMAT),
            Refusal::NotAuthenticated => (StatusCode::UNAUTHORIZED, "Not authenticated", authenticate),
            Refusal::BadToken => (StatusCode::UNAUTHORIZED, "Invalid token", authenticate),
            Refusal::TokenExpired => (StatusCode::UNAUTHORIZED, "Expired token", authenticate),
            Refusal::TooManyAttempts => {
                (StatusCode::TOO_MANY_REQUESTS, "Too many attempts", "wait, and use a valid token")
            }
            Refusal::Forbidden => {
                (StatusCode::FORBIDDEN, "Forbidden", "use a token with a role and a scope that permit it")
            }
            Refusal::TooManyStreams => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many streams",
                "close a page or program that follows the events",
            ),
            Refusal::TooManyResponses => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many responses",
                "read the responses to earlier requests to their end, and repeat the request",
            ),
            Refusal::Changed => {
                (StatusCode::PRECONDITION_FAILED, "Changed", "read the resource again, and repeat the change")
            }
            Refusal::KeyInUse => {
                (StatusCode::CONFLICT, "Request was made", "read the resource to see the result")
            }
            Refusal::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "Key was used",
                "use a new Idempotency-Key for each request",
            ),
            Refusal::TooManyRequests => {
                (StatusCode::TOO_MANY_REQUESTS, "Too many requests", "wait until earlier ones have ended")
            }
            Refusal::Panicked => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Defect of the server",
                "see the server's log, and report it",
            ),
        }
    }
}

/// Status, title and remedy of each kind of error of the control plane.
fn describe(kind: ErrorKind) -> Description {
    use ErrorKind as K;
    let (bad, conflict) = (StatusCode::BAD_REQUEST, StatusCode::CONFLICT);
    let (internal, unavailable) = (StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE);
    match kind {
        K::BadRequest => (bad, "Invalid request", "correct the request as the detail states"),
        K::BadName => (bad, "Invalid name", "choose another name"),
        K::BadSize => (bad, "Invalid size", "choose another size: a multiple of 512 bytes"),
        K::BadLun => (bad, "Invalid LUN", "use a LUN from 0 to 255"),
        K::BadChap => (bad, "Invalid CHAP credentials", "use secrets of 12 to 255 bytes"),
        K::BadSource => (bad, "Invalid image file", "check the file, or convert it with qemu-img"),
        K::SourceUnreadable => (bad, "File cannot be opened", "check the path, or upload the file"),
        K::OutOfRange => (bad, "Out of range", "stay within the disk"),
        K::Overlap => (bad, "Overlapping ranges", "copy in parts that do not overlap"),
        K::NotFound => (
            StatusCode::NOT_FOUND,
            "Not found",
            "check the name; the lists of volumes, images and targets have all names",
        ),
        K::Exists => (conflict, "Exists", "choose another name, or remove the existing one"),
        K::InUse => (
            conflict,
            "In use",
            "stop the guest or the program that uses it, or disconnect its clients, and repeat the request",
        ),
        K::Resetting => (conflict, "Being reset", "repeat the request in a moment"),
        K::MemoryLost => (conflict, "Writes lost", "stop its clients, then resume or reset the volume"),
        K::HasClones => (conflict, "Has clones", "remove its clones first"),
        K::HasSnapshots => (conflict, "Has snapshots", "remove its snapshots first"),
        K::WrongKind => (conflict, "Wrong kind of disk", "use the routes of its kind"),
        K::ReadOnly => (conflict, "Read-only", "use a clone of it"),
        K::Mapped => (conflict, "Mapped to a target", "unmap its LUN first"),
        K::Volatile => (conflict, "Not durable", "map it with write_back, or use another volume"),
        K::Full => (conflict, "Nothing free", "remove some first: the detail states of what"),
        K::MapDamaged => (conflict, "Damaged block map", "restore the disk; see docs/space.md"),
        K::Damaged => (internal, "Damaged data", "run 'forebay check'; see docs/space.md"),
        K::Store => (internal, "Store failed", "check the store and the server's log"),
        K::Unreadable => {
            (internal, "Unreadable table", "start the release that wrote it, or restore the pool")
        }
        K::Internal => (internal, "Defect of the server", "see the server's log, and report it"),
        K::FetchFailed => (StatusCode::BAD_GATEWAY, "Download failed", "check the URL from the server"),
        K::UpgradeFailed => (StatusCode::BAD_GATEWAY, "Upgrade failed", "the server continues; see its log"),
        K::HandoverFailed => {
            (StatusCode::BAD_GATEWAY, "Handover failed", "the detail states which server continues")
        }
        K::NoStandby => (conflict, "No standby", "start another server of the pool with --standby"),
        K::NotOwner => (unavailable, "Not certain to own the pool", "ask the server that owns the pool"),
        K::Closed => (unavailable, "Stopping", "repeat the request when the server has started again"),
        K::Upgrading => (unavailable, "Being upgraded", "repeat the request; nothing was changed"),
        K::Latched => {
            (unavailable, "Stopped after a failed write", "repair the store and restart the server")
        }
        K::Fenced => (unavailable, "Pool taken by another server", "use the other server"),
        K::Cancelled => (unavailable, "Cancelled", "begin it again, if it is still needed"),
        K::BadState => (conflict, "Not possible now", "look at the state of the resource"),
        K::NoSpace => (
            StatusCode::INSUFFICIENT_STORAGE,
            "No space",
            "free or add space, or raise the quota; see docs/space.md",
        ),
    }
}

/// The code of an error response, for the audit log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code(pub &'static str);

impl Code {
    /// The request had an invalid token.
    pub fn is_bad_credential(self) -> bool {
        matches!(self.0, "bad_token" | "token_expired")
    }

    /// The client does not have the right.
    pub fn is_denied(self) -> bool {
        matches!(self.0, "forbidden" | "not_here")
    }
}

impl ApiError {
    /// Creates the error of a refused request.
    pub(crate) fn refused(why: Refusal, detail: impl Into<String>) -> ApiError {
        ApiError { kind: Kind::Refused(why), detail: detail.into(), retry_after_s: None }
    }

    /// Adds the time after which the request can be repeated.
    pub(crate) fn retry_after(self, seconds: u64) -> ApiError {
        ApiError { retry_after_s: Some(seconds), ..self }
    }

    /// The body of the response.
    pub fn problem(&self) -> Problem {
        let (status, title, remedy) = self.describe();
        Problem {
            kind: format!("{TYPE}{}", self.code()),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: self.detail.clone(),
            code: self.code().to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    fn code(&self) -> &'static str {
        match self.kind {
            Kind::Refused(why) => why.code(),
            Kind::Failed(kind) => kind.code(),
        }
    }

    fn describe(&self) -> Description {
        match self.kind {
            Kind::Refused(why) => why.describe(),
            Kind::Failed(kind) => describe(kind),
        }
    }
}

impl From<ControlError> for ApiError {
    fn from(e: ControlError) -> ApiError {
        ApiError { kind: Kind::Failed(e.kind), detail: e.message, retry_after_s: None }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        match failure {
            Failure::Forbidden(why) => ApiError::refused(Refusal::Forbidden, why),
            Failure::Failed(e) => e.into(),
        }
    }
}

impl From<TokenError> for ApiError {
    fn from(e: TokenError) -> ApiError {
        let kind = match e {
            TokenError::Bad(_) => ErrorKind::BadRequest,
            TokenError::Exists(_) => ErrorKind::Exists,
            TokenError::NotFound(_) => ErrorKind::NotFound,
            TokenError::Full => ErrorKind::Full,
            TokenError::Unreadable { .. } => ErrorKind::Unreadable,
            TokenError::Write { .. } => ErrorKind::Store,
            TokenError::Random(_) => ErrorKind::Internal,
        };
        ControlError::new(kind, e.to_string()).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let body = serde_json::to_vec(&problem).expect("names and numbers can be represented in JSON");
        let (status, ..) = self.describe();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        response.extensions_mut().insert(Code(self.code()));
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"forebay\""));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
