//! What an administrator is told when something fails: the one table of codes and HTTP statuses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_engine::Error as EngineError;
use serde::{Deserialize, Serialize};

use crate::targets::TargetError;

const IN_USE: &str = "in_use";
const RESETTING: &str = "resetting";

/// Result of a control-plane action.
pub type Result<T> = std::result::Result<T, ControlError>;

/// Why an action failed. `message` says in one line what happened and what to do; `code` is for programs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code, such as `not_found`.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// The body of an error: `{"error": {"code": …, "message": …}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// Code and message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// Stable code, such as `not_found`.
    pub code: String,
    /// For people.
    pub message: String,
}

impl ControlError {
    /// An error of the given status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ControlError {
        ControlError { status, code, message: message.into() }
    }

    /// A request that makes no sense.
    pub fn bad_request(message: impl Into<String>) -> ControlError {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// A defect of the server itself.
    pub fn internal(message: impl Into<String>) -> ControlError {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The server is on its way down.
    pub fn closed() -> ControlError {
        EngineError::Closed.into()
    }

    /// Whether clients that are connected, or that have just left, are in the way.
    pub fn is_in_use(&self) -> bool {
        self.code == IN_USE || self.code == RESETTING
    }

    /// The JSON body.
    pub fn body(&self) -> ErrorBody {
        ErrorBody { error: ErrorDetail { code: self.code.to_owned(), message: self.message.clone() } }
    }
}

impl From<EngineError> for ControlError {
    fn from(e: EngineError) -> ControlError {
        use EngineError as E;
        let (status, code) = match &e {
            E::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            E::Exists(_) => (StatusCode::CONFLICT, "exists"),
            E::InUse { .. } => (StatusCode::CONFLICT, IN_USE),
            E::Resetting(_) => (StatusCode::CONFLICT, RESETTING),
            E::HasClones { .. } => (StatusCode::CONFLICT, "has_clones"),
            E::HasSnapshots { .. } => (StatusCode::CONFLICT, "has_snapshots"),
            E::WrongKind { .. } => (StatusCode::CONFLICT, "wrong_kind"),
            E::ReadOnly(_) => (StatusCode::CONFLICT, "read_only"),
            E::BadName { .. } => (StatusCode::BAD_REQUEST, "bad_name"),
            E::BadSize { .. } => (StatusCode::BAD_REQUEST, "bad_size"),
            E::OutOfRange => (StatusCode::BAD_REQUEST, "out_of_range"),
            E::Overlap => (StatusCode::BAD_REQUEST, "overlap"),
            E::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
            E::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closed"),
            E::Latched(_) => (StatusCode::SERVICE_UNAVAILABLE, "latched"),
            E::MapDamaged(_) => (StatusCode::CONFLICT, "map_damaged"),
            E::Damaged(_) | E::MapsDamaged { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "damaged"),
            E::NoPool(_) | E::Format(_) | E::LogDamaged(_) | E::OtherLoss(_) | E::Store(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "store")
            }
        };
        ControlError::new(status, code, e.to_string())
    }
}

impl From<TargetError> for ControlError {
    fn from(e: TargetError) -> ControlError {
        use TargetError as E;
        let (status, code) = match e {
            E::Pool(e) => return e.into(),
            E::NoTarget(_) | E::NoLun { .. } | E::NoInitiator { .. } => (StatusCode::NOT_FOUND, "not_found"),
            E::Exists(_) | E::LunTaken { .. } | E::InitiatorTwice(_) => (StatusCode::CONFLICT, "exists"),
            E::InUse { .. } => (StatusCode::CONFLICT, IN_USE),
            E::Mapped { .. } => (StatusCode::CONFLICT, "mapped"),
            E::Volatile(_) => (StatusCode::CONFLICT, "volatile"),
            E::NoNumber | E::Full(_) => (StatusCode::CONFLICT, "full"),
            E::Name(_) => (StatusCode::BAD_REQUEST, "bad_name"),
            E::HighLun(_) => (StatusCode::BAD_REQUEST, "bad_lun"),
            E::Chap { .. } | E::SameSecret => (StatusCode::BAD_REQUEST, "bad_chap"),
            E::Unreadable(_) => (StatusCode::INTERNAL_SERVER_ERROR, "unreadable"),
        };
        ControlError::new(status, code, e.to_string())
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
