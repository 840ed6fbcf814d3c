//! Streamed responses: one JSON object per line, sent while the work is running.
//!
//! A failure before the first line is an ordinary error response; a later failure is the last line.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use forebay_api::ErrorDetail;
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tokio::sync::mpsc;

use super::problem;
use crate::operations::ControlError;

/// Streams `events` as the response; `failed` converts an error after the first event to the last event.
pub(crate) async fn respond<E: Serialize + Send + Unpin + 'static>(
    mut events: mpsc::Receiver<Result<E, ControlError>>,
    failed: fn(ErrorDetail) -> E,
) -> problem::Result<Response> {
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
                Poll::Ready(Some(Err(e))) => (self.failed)(e.into()),
            },
        };
        let line = serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            Frame::data(line.into())
        });
        Poll::Ready(Some(line))
    }
}
