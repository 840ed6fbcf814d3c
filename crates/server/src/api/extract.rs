//! Request extractors: those of axum, with errors in the API's format.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Refusal};

/// A JSON body.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Json::from_request(request, state).await {
            Ok(Json(value)) => Ok(Body(value)),
            Err(e) => Err(ApiError::refused(json_refusal(&e), e.body_text())),
        }
    }
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

/// `?force=true`, the only query parameter of the API.
pub(super) struct Force(pub bool);

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match parts.uri.query() {
            None | Some("" | "force=false") => Ok(Force(false)),
            Some("force=true") => Ok(Force(true)),
            Some(_) => {
                let message = "unknown query; use 'force=true' or 'force=false'";
                Err(ApiError::refused(Refusal::Malformed, message))
            }
        }
    }
}

/// The parameters of the path, percent-decoded.
pub(super) struct Param<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Param<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Param(value)),
            Err(e) => Err(ApiError::refused(Refusal::Malformed, e.body_text())),
        }
    }
}
