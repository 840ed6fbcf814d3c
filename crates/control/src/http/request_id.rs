//! An id for each request, in the log and in the response.
//!
//! A client may choose it with the header `X-Request-Id`, to find its request in the log of the server;
//! otherwise the server does. It is a field of every event that is logged while the request is served.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use forebay_text::shorten;
use tracing::Instrument;

use crate::access::MAX_PATH;

/// The header that has the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of an id that a client sends.
const MAX_LEN: usize = 64;

/// Whether an id of a client is used. It is written to the log as it is.
fn is_plain(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(plain)
}

/// An id that no other request of this process has, nor probably of another.
fn new_id() -> String {
    static PROCESS: LazyLock<u32> = LazyLock::new(|| getrandom::u32().unwrap_or(std::process::id()));
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:08x}-{}", *PROCESS, NEXT.fetch_add(1, Relaxed))
}

/// Serves a request with an id, as a layer of the router.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = given.filter(|id| is_plain(id)).map_or_else(new_id, str::to_owned);
    let path = shorten(request.uri().path(), MAX_PATH);
    let span = tracing::info_span!("request", id, method = %request.method(), path = &*path);
    drop(path);
    let mut response = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), "request served");
        response
    }
    .instrument(span)
    .await;
    // Ids consist of characters that a header may have.
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_those_of_clients_are_checked() {
        assert_ne!(new_id(), new_id());
        assert!(is_plain(&new_id()) && is_plain("a-B_c.1:2"));
        assert!(!is_plain("") && !is_plain("a b") && !is_plain("\u{202e}") && !is_plain(&"x".repeat(65)));
    }
}
