//! A panic in a handler becomes an error response, if the process survives it.
//!
//! The binary aborts on a panic in the API, because the state that the API shares may be half updated
//! (`plane/contain.rs`). Where the library is used otherwise, the client gets an answer.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{ApiError, Refusal};

pub(crate) async fn answer_panics(request: Request, next: Next) -> Response {
    let mut handling = pin!(next.run(request));
    poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(_) => {
            tracing::error!("a handler of the API panicked; this is a bug, please report it");
            let refused = ApiError::refused(Refusal::Panicked, "the request failed; see the server's log");
            Poll::Ready(refused.into_response())
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn fail() -> Response {
        panic!("expected by the test")
    }

    #[tokio::test]
    async fn a_panic_is_answered_as_a_problem() {
        let router = Router::new().route("/", get(fail)).layer(from_fn(answer_panics));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["content-type"], super::super::problem::PROBLEM_JSON);
    }
}
