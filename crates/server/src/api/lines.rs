//! Answers that come while the work goes on: one JSON object a line.
//!
//! What fails before the first line has an HTTP status of its own, as everywhere else; what fails later is the
//! last line.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::control::{ControlError, ErrorDetail};

/// Answers with `events`, and with what `failed` makes of an error that comes among them.
pub(super) async fn respond<E: Serialize + Send + Unpin + 'static>(
    mut events: mpsc::Receiver<Result<E, ControlError>>,
    failed: fn(ErrorDetail) -> E,
) -> Result<Response, ControlError> {
    let first = events.recv().await.ok_or_else(ControlError::closed)??;
    let lines = Lines { first: Some(first), events, failed };
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], axum::body::Body::new(lines)).into_response())
}

struct Lines<E> {
    first: Option<E>,
    events: mpsc::Receiver<Result<E, ControlError>>,
    failed: fn(ErrorDetail) -> E,
}

impl<E: Serialize + Unpin> hyper::body::Body for Lines<E> {
    type Data = Bytes;
    type Error = serde_json::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, serde_json::Error>>> {
        let event = match self.first.take() {
            Some(event) => event,
            None => match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(event))) => event,
                Poll::Ready(Some(Err(e))) => (self.failed)(e.body().error),
            },
        };
        let line = serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            Frame::data(line.into())
        });
        Poll::Ready(Some(line))
    }
}
