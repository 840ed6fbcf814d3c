//! Reading requests: axum's extractors, with refusals in the API's own error body.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::control::ControlError;

/// A JSON body.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ControlError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ControlError> {
        match Json::from_request(request, state).await {
            Ok(Json(value)) => Ok(Body(value)),
            Err(e) => Err(ControlError::new(e.status(), "bad_request", e.body_text())),
        }
    }
}

/// `?force=true`, the only query that there is.
pub(super) struct Force(pub bool);

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ControlError> {
        match parts.uri.query() {
            None | Some("" | "force=false") => Ok(Force(false)),
            Some("force=true") => Ok(Force(true)),
            Some(_) => Err(ControlError::bad_request("the query can only be 'force=true' or 'force=false'")),
        }
    }
}

/// The parameters of the path, percent-decoded.
pub(super) struct Param<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Param<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Param(value)),
            Err(e) => Err(ControlError::bad_request(e.body_text())),
        }
    }
}
