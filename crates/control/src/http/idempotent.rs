//! Repeated requests: a `POST` with the header `Idempotency-Key` has its effect once. A repetition with the
//! same key, path and body gets the response of the first. A request with a key continues when its client
//! disconnects, because the client will ask for the result; an import ends with the stream of its progress.
//!
//! **Bounds.** Responses are kept for [`KEEP`], at most [`MAX_KEYS`] of them with [`MAX_BYTES`] in total, in
//! memory: a restart of the server forgets them. The first to be dropped is the oldest response of the client
//! with the most responses, or with the most bytes of them. Responses that are streams, or longer than
//! [`MAX_RESPONSE`], are not kept; such a key is answered as done. Failures of the server (5xx) are not kept:
//! a repetition tries again. A client has at most [`MAX_RUNNING`] such requests under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_api::PREFIX;
use forebay_frontend::shares::Shares;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::Instrument;

use super::Api;
use super::extract::buffer;
use super::problem::{ApiError, PROBLEM_JSON, Refusal};
use super::route::is_of_access;
use crate::access::Principal;

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Maximum bytes of an idempotency key.
const MAX_KEY: usize = 128;
const KEEP: Duration = Duration::from_secs(24 * 3600);
const MAX_KEYS: usize = 1024;
const MAX_RESPONSE: usize = 256 << 10;
const MAX_BYTES: usize = 8 << 20;
const MAX_RUNNING: usize = 32;

/// Client, by the id of its token if it has one, and key.
type Key = (String, String);

#[derive(Clone)]
enum Outcome {
    Running,
    /// Status, media type and body; `None` if the body was not kept.
    Done(StatusCode, HeaderValue, Option<Bytes>),
}

struct Entry {
    request: [u8; 32],
    begun: Instant,
    state: Outcome,
}

impl Entry {
    fn bytes(&self) -> usize {
        match &self.state {
            Outcome::Done(_, _, Some(body)) => body.len(),
            _ => 0,
        }
    }
}

/// The requests with keys that were received recently.
#[derive(Clone, Default)]
pub(super) struct Keys(Arc<Mutex<HashMap<Key, Entry>>>);

impl Keys {
    /// Begins a request, unless one with its key was made: then its response is returned.
    fn begin(&self, key: &Key, request: [u8; 32]) -> Option<Response> {
        let mut all = self.0.lock();
        all.retain(|_, entry| entry.begun.elapsed() < KEEP);
        if let Some(entry) = all.get(key) {
            return Some(if entry.request == request { replay(&entry.state) } else { other_request() });
        }
        let is_running = |((client, _), entry): &(&Key, &Entry)| {
            *client == key.0 && matches!(entry.state, Outcome::Running)
        };
        if all.iter().filter(is_running).count() >= MAX_RUNNING {
            let detail = format!("{MAX_RUNNING} requests of this client with an Idempotency-Key are running");
            return Some(ApiError::refused(Refusal::TooManyRequests, detail).retry_after(1).into_response());
        }
        while all.len() >= MAX_KEYS {
            if !drop_oldest(&mut all, |_| 1) {
                break;
            }
        }
        while all.values().map(Entry::bytes).sum::<usize>() > MAX_BYTES {
            if !drop_oldest(&mut all, Entry::bytes) {
                break;
            }
        }
        all.insert(key.clone(), Entry { request, begun: Instant::now(), state: Outcome::Running });
        None
    }

    fn end(&self, key: &Key, done: Outcome) {
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.state = done;
        }
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// Drops the oldest response of the client for which the sum of the weights is the largest. False if no
/// response is kept.
fn drop_oldest(all: &mut HashMap<Key, Entry>, weight: impl Fn(&Entry) -> usize) -> bool {
    let ended = || all.iter().filter(|(_, entry)| matches!(entry.state, Outcome::Done(..)));
    let shares: Shares<&str> = ended().map(|((client, _), entry)| (client.as_str(), weight(entry))).collect();
    let largest = shares.largest();
    let yielding = ended().filter(|((client, _), _)| shares.of(client.as_str()) == largest);
    let oldest = yielding.min_by_key(|(_, entry)| entry.begun).map(|(key, _)| key.clone());
    oldest.is_some_and(|key| all.remove(&key).is_some())
}

/// Forgets a request that ended without a response that is kept.
struct Begun {
    keys: Keys,
    key: Key,
    kept: bool,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.kept {
            self.keys.forget(&self.key);
        }
    }
}

fn replay(state: &Outcome) -> Response {
    match state {
        Outcome::Running => {
            let detail = "a request with this Idempotency-Key is running; repeat it in a moment";
            ApiError::refused(Refusal::KeyInUse, detail).retry_after(1).into_response()
        }
        Outcome::Done(_, _, None) => {
            let detail =
                "the request with this Idempotency-Key was done; its response is not available any more";
            ApiError::refused(Refusal::KeyInUse, detail).into_response()
        }
        Outcome::Done(status, media_type, Some(body)) => {
            let headers =
                [(header::CONTENT_TYPE, media_type.clone()), (REPLAYED, HeaderValue::from_static("true"))];
            (*status, headers, body.clone()).into_response()
        }
    }
}

fn other_request() -> Response {
    let detail = "another request was made with this Idempotency-Key; use a new key for each request";
    ApiError::refused(Refusal::KeyReused, detail).into_response()
}

/// Handles requests with a key; passes requests without a key on.
pub(super) async fn once(State(api): State<Api>, request: Request, next: Next) -> Response {
    // Responses with secrets are not kept, and keys have no effect.
    let has_secret = request.uri().path().strip_prefix(PREFIX).is_some_and(is_of_access);
    if request.method() != Method::POST || has_secret || !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    let key = request.headers().get(HEADER).and_then(|key| key.to_str().ok()).map(str::to_owned);
    let Some(key) = key.filter(|key| (1..=MAX_KEY).contains(&key.len())) else {
        let detail = "an Idempotency-Key has 1 to 128 printable characters";
        return ApiError::refused(Refusal::Malformed, detail).into_response();
    };
    // A client without a right has no keys; the route refuses it.
    let Some(principal) = request.extensions().get::<Principal>() else { return next.run(request).await };
    let key = (principal.owner(), key);
    let (parts, bytes) = match buffer(request).await {
        Ok(buffered) => buffered,
        Err(refused) => return refused.into_response(),
    };
    let digest = Sha256::new().chain_update(parts.uri.to_string()).chain_update([0]).chain_update(&bytes);
    if let Some(response) = api.keys.begin(&key, digest.finalize().into()) {
        return response;
    }
    let mut begun = Begun { keys: api.keys.clone(), key, kept: false };
    let run = async move {
        let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
        if response.status().is_server_error() {
            return response;
        }
        begun.kept = true;
        keep(&begun.keys, &begun.key, response).await
    };
    // The request runs in a separate task, because this future is dropped when the client disconnects.
    tokio::spawn(run.in_current_span())
        .await
        .unwrap_or_else(|e| ApiError::refused(Refusal::Panicked, e.to_string()).into_response())
}

/// Keeps a response that is short, and returns it.
async fn keep(keys: &Keys, key: &Key, response: Response) -> Response {
    let (status, media_type) = (response.status(), response.headers().get(header::CONTENT_TYPE).cloned());
    let media_type = media_type.unwrap_or(HeaderValue::from_static("application/json"));
    let is_json = media_type == "application/json" || media_type == PROBLEM_JSON;
    let length = hyper::body::Body::size_hint(response.body()).exact();
    if !is_json || length.is_none_or(|length| length > MAX_RESPONSE as u64) {
        keys.end(key, Outcome::Done(status, media_type, None));
        return response;
    }
    let (parts, body) = response.into_parts();
    match to_bytes(body, MAX_RESPONSE).await {
        Ok(bytes) => {
            keys.end(key, Outcome::Done(status, media_type, Some(bytes.clone())));
            Response::from_parts(parts, Body::from(bytes))
        }
        Err(e) => {
            keys.end(key, Outcome::Done(status, media_type, None));
            ApiError::refused(Refusal::Panicked, e.to_string()).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(len: usize) -> Outcome {
        Outcome::Done(
            StatusCode::CREATED,
            HeaderValue::from_static("application/json"),
            Some(vec![0; len].into()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_bounded_in_number_size_and_time() {
        let keys = Keys::default();
        for n in 0..2 * MAX_KEYS {
            let key = ("a".to_owned(), n.to_string());
            assert!(keys.begin(&key, [0; 32]).is_none());
            keys.end(&key, done(64 << 10));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let (len, bytes) = {
            let all = keys.0.lock();
            (all.len(), all.values().map(Entry::bytes).sum::<usize>())
        };
        assert!(len <= MAX_KEYS && bytes <= MAX_BYTES + (64 << 10), "{len} {bytes}");
        tokio::time::advance(KEEP).await;
        assert!(keys.begin(&("a".into(), "x".into()), [0; 32]).is_none());
        assert_eq!(keys.0.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_displaces_only_its_own_responses() {
        let many = |len: usize, number: usize| async move {
            let keys = Keys::default();
            let of_administrator = ("a".to_owned(), "k".to_owned());
            assert!(keys.begin(&of_administrator, [1; 32]).is_none());
            keys.end(&of_administrator, done(2));
            for n in 0..number {
                tokio::time::advance(Duration::from_millis(1)).await;
                let key = ("b".to_owned(), n.to_string());
                assert!(keys.begin(&key, [0; 32]).is_none());
                keys.end(&key, done(len));
            }
            let replayed = keys.begin(&of_administrator, [1; 32]).expect("the request would run again");
            assert_eq!(replayed.status(), StatusCode::CREATED);
        };
        many(2, 2 * MAX_KEYS).await;
        many(MAX_RESPONSE, 2 * MAX_BYTES / MAX_RESPONSE).await;
    }

    #[test]
    fn a_client_has_a_bounded_number_of_requests_under_way() {
        let keys = Keys::default();
        let begin = |client: &str, n: usize| keys.begin(&(client.to_owned(), n.to_string()), [0; 32]);
        assert!((0..MAX_RUNNING).all(|n| begin("a", n).is_none()));
        assert_eq!(begin("a", MAX_RUNNING).unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(begin("b", 0).is_none(), "another client is not affected");
        keys.end(&("a".to_owned(), "0".to_owned()), done(2));
        assert!(begin("a", MAX_RUNNING).is_none());
    }

    #[test]
    fn a_key_belongs_to_one_client_and_one_request() {
        let keys = Keys::default();
        let key = ("a".to_owned(), "k".to_owned());
        assert!(keys.begin(&key, [1; 32]).is_none());
        assert_eq!(keys.begin(&key, [1; 32]).unwrap().status(), StatusCode::CONFLICT);
        keys.end(&key, done(2));
        let replayed = keys.begin(&key, [1; 32]).unwrap();
        assert_eq!(
            (replayed.status(), &replayed.headers()[REPLAYED]),
            (StatusCode::CREATED, &"true".parse().unwrap())
        );
        assert_eq!(keys.begin(&key, [2; 32]).unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert!(keys.begin(&("b".into(), "k".into()), [2; 32]).is_none());
        keys.forget(&key);
        assert!(keys.begin(&key, [2; 32]).is_none());
    }
}
