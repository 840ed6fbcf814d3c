//! Entity tags: `If-None-Match` on responses to `GET`, and `If-Match` on requests that replace a resource.
//!
//! A tag is a hash of the representation, so a resource that returns to an earlier state has its tag again.
//! A replacement (`PUT`) holds a lock of its resource from the check of `If-Match` to its end, which excludes
//! other replacements.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tower::ServiceExt;

use super::Api;
use super::extract::buffer;
use super::problem::{ApiError, Refusal};
use super::response_memory::{self, Reservation, Waiting};
use crate::access::Principal;
use crate::operations::ControlError;

/// Maximum bytes of a response that gets a tag; larger responses are sent without a tag.
const MAX: usize = 4 << 20;

/// The state of [`conditions`].
#[derive(Clone)]
pub(super) struct Conditions {
    pub api: Api,
    /// The routes without layers, for the present representation of a resource.
    pub routes: Router,
}

/// Adds tags, and evaluates the conditions of requests (RFC 9110, section 13).
pub(super) async fn conditions(
    State(Conditions { api, routes }): State<Conditions>,
    mut request: Request,
    next: Next,
) -> Response {
    // Clients without credentials share one reservation; the routes refuse them.
    let owner = request.extensions().get().map_or_else(String::new, Principal::owner);
    let memory = api.memory.begin(owner);
    match *request.method() {
        Method::GET => {
            let none_match = request.headers().get(header::IF_NONE_MATCH).cloned();
            request.extensions_mut().insert(memory.clone());
            tag(next.run(request).await, none_match.as_ref(), memory).await
        }
        // The body is produced as for GET, and has been dropped here, so it has no tag.
        Method::HEAD => {
            request.extensions_mut().insert(memory);
            next.run(request).await
        }
        // Without a principal, the route refuses the request.
        Method::PUT if request.extensions().get::<Principal>().is_some() => {
            // The body is buffered first, so that a slow client does not make other clients wait.
            let request = match buffer(request).await {
                Ok((parts, bytes)) => Request::from_parts(parts, Body::from(bytes)),
                Err(refused) => return refused.into_response(),
            };
            // An address can write the same resource in several ways, so the path is decoded.
            let resource = percent_decode_str(request.uri().path()).decode_utf8_lossy().into_owned();
            let _order = api.control.replacing(&resource).await;
            if request.headers().contains_key(header::IF_MATCH) {
                let mut get = Request::new(Body::empty());
                *get.uri_mut() = request.uri().clone();
                request.extensions().get::<Principal>().cloned().map(|p| get.extensions_mut().insert(p));
                get.extensions_mut().insert(memory.clone());
                if let Err(refused) = check(get, request.headers().clone(), routes, memory).await {
                    return refused;
                }
            }
            next.run(request).await
        }
        _ => next.run(request).await,
    }
}

/// Adds a tag to a response that is short enough, for which memory is left. A longer list is sent while it is
/// produced; another response is refused if no memory is left for it.
async fn tag(response: Response, none_match: Option<&HeaderValue>, memory: Reservation) -> Response {
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t == "application/json");
    if response.status() != StatusCode::OK || !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Only a list that is produced while it is sent has an unknown length.
    if let Some(len) = hyper::body::Body::size_hint(&body).exact()
        && !memory.extend_to(usize::try_from(len).unwrap_or(usize::MAX))
    {
        return response_memory::refused().into_response();
    }
    let mut waiting = Waiting::new(memory);
    match waiting.fill(body, MAX).await {
        Ok(true) if waiting.len <= MAX => {
            let tag = tag_of(waiting.pieces());
            let matches = none_match.is_some_and(|header| lists(header, &tag, true));
            parts.headers.insert(header::ETAG, tag);
            parts.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
            if matches {
                parts.headers.remove(header::CONTENT_TYPE);
                parts.headers.remove(header::CONTENT_LENGTH);
                parts.status = StatusCode::NOT_MODIFIED;
                return Response::from_parts(parts, Body::empty());
            }
        }
        Ok(_) => {}
        Err(error) => return failed(error),
    }
    Response::from_parts(parts, Body::new(waiting))
}

/// The response to a request for a list that could not be continued, before its first part was sent.
fn failed(error: axum::Error) -> Response {
    match error.into_inner().downcast::<ControlError>() {
        Ok(error) => ApiError::from(*error).into_response(),
        Err(error) => ApiError::refused(Refusal::Panicked, error.to_string()).into_response(),
    }
}

/// Checks `If-Match` in `headers` against the present representation, which `get` requests.
async fn check(
    get: Request,
    headers: HeaderMap,
    routes: Router,
    memory: Reservation,
) -> Result<(), Response> {
    let present = routes.oneshot(get).await.unwrap_or_else(|never| match never {});
    let present = tag(present, None, memory).await;
    if present.status() == StatusCode::METHOD_NOT_ALLOWED {
        let detail = "this resource cannot be read alone, so it has no tag; omit If-Match";
        return Err(ApiError::refused(Refusal::Malformed, detail).into_response());
    }
    if !matches!(present.status(), StatusCode::OK | StatusCode::NOT_FOUND) {
        return Err(present);
    }
    let tag = present.headers().get(header::ETAG);
    let matches = tag.is_some_and(|tag| all(&headers, header::IF_MATCH.as_str(), tag));
    match matches {
        true => Ok(()),
        false => {
            let detail = "the resource has changed since it was read; read it again";
            Err(ApiError::refused(Refusal::Changed, detail).into_response())
        }
    }
}

fn tag_of<'a>(pieces: impl Iterator<Item = &'a Bytes>) -> HeaderValue {
    let digest = pieces.fold(Sha256::new(), Sha256::chain_update).finalize();
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).expect("hexadecimal digits are valid in a header")
}

fn all(headers: &HeaderMap, name: &str, tag: &HeaderValue) -> bool {
    headers.get_all(name).iter().any(|header| lists(header, tag, false))
}

/// Whether a header lists a tag, or is `*`. A weak tag never matches strongly.
fn lists(header: &HeaderValue, tag: &HeaderValue, weakly: bool) -> bool {
    let (Ok(header), Ok(tag)) = (header.to_str(), tag.to_str()) else { return false };
    let strip = |one: &str| if weakly { one.trim_start_matches("W/").to_owned() } else { one.to_owned() };
    header.split(',').map(str::trim).any(|one| one == "*" || strip(one) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_strongly_or_weakly() {
        let tag = tag_of([Bytes::from_static(b"{"), Bytes::from_static(b"}")].iter());
        let text = tag.to_str().unwrap().to_owned();
        let lists = |header: &str, weakly| lists(&HeaderValue::from_str(header).unwrap(), &tag, weakly);
        assert!(lists(&text, false) && lists("*", false) && lists(&format!("\"a\", {text}"), false));
        assert!(lists(&format!("W/{text}"), true) && !lists(&format!("W/{text}"), false));
        assert!(!lists("\"a\"", true) && !lists("", true));
        assert_eq!(tag, tag_of([Bytes::from_static(b"{}")].iter()));
        assert_ne!(tag, tag_of([Bytes::from_static(b"[]")].iter()));
    }
}
