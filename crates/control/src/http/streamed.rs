//! A JSON array that is produced while it is sent: the response to a list whose length is not bounded.
//!
//! The body holds the elements that were not sent yet, which are at most one stretch of the list. Other
//! requests of the thread are served before each stretch. If the list cannot be continued, the body ends with
//! an error, and the connection is closed before the end of the array.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use serde::Serialize;

use crate::operations::ControlError;

/// Bytes from which on a piece of the array is sent.
const PIECE: usize = 16 << 10;

/// The elements of the next stretch of a list, which may be none; `None` after the last element.
pub(crate) type Stretch<T> = Result<Option<Vec<T>>, ControlError>;

/// The text of an array, up to the last element that was added.
#[derive(Default)]
pub(crate) struct Elements {
    pub text: Vec<u8>,
    /// Number of elements, including elements that were removed from `text`.
    pub count: usize,
}

impl Elements {
    pub fn push(&mut self, one: &impl Serialize) -> Result<(), ControlError> {
        self.text.push(if self.count == 0 { b'[' } else { b',' });
        self.count += 1;
        serde_json::to_writer(&mut self.text, one).map_err(|e| ControlError::internal(e.to_string()))
    }

    /// Ends the JSON array.
    pub fn end(&mut self) {
        if self.count == 0 {
            self.text.push(b'[');
        }
        self.text.push(b']');
    }
}

/// Responds with the elements of all stretches.
pub(crate) fn respond<T: Serialize + 'static>(
    next: impl FnMut() -> Stretch<T> + Send + Unpin + 'static,
) -> Response {
    let array = Streamed { next, elements: Elements::default(), has_yielded: false, ended: false };
    ([(header::CONTENT_TYPE, "application/json")], Body::new(array)).into_response()
}

struct Streamed<F> {
    next: F,
    elements: Elements,
    /// Other requests were served since the last stretch.
    has_yielded: bool,
    ended: bool,
}

impl<F> Streamed<F> {
    /// Adds the next stretch of elements to the response.
    fn advance<T: Serialize>(&mut self) -> Result<(), ControlError>
    where
        F: FnMut() -> Stretch<T>,
    {
        match (self.next)()? {
            Some(stretch) => stretch.iter().try_for_each(|one| self.elements.push(one)),
            None => {
                self.elements.end();
                self.ended = true;
                Ok(())
            }
        }
    }
}

impl<T: Serialize, F: FnMut() -> Stretch<T> + Unpin> hyper::body::Body for Streamed<F> {
    type Data = Bytes;
    type Error = ControlError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ControlError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_yielded, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Err(error) = self.advance() {
            self.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        if !self.ended && self.elements.text.len() < PIECE {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_yielded = false;
        // A copy has no spare room; the buffer is used again.
        let piece = Bytes::copy_from_slice(&self.elements.text);
        self.elements.text.clear();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// A list of 1000 stretches with 100 numbers each.
    fn numbers() -> impl FnMut() -> Stretch<u64> + Send + Unpin + 'static {
        let mut stretches = 0..1000;
        move || Ok(stretches.next().map(|n| (100 * n..100 * n + 100).collect()))
    }

    #[tokio::test]
    async fn the_array_is_complete_and_a_piece_of_it_is_short() {
        let (mut body, mut text) = (respond(numbers()).into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() < 2 * PIECE, "a piece of {} bytes", piece.len());
            text.extend(piece);
        }
        let found: Vec<u64> = serde_json::from_slice(&text).unwrap();
        assert!(found.into_iter().eq(0..100_000));
        let empty = respond(|| Stretch::<u64>::Ok(None)).into_body().collect().await.unwrap();
        assert_eq!(empty.to_bytes(), "[]");
    }

    #[tokio::test]
    async fn a_list_that_cannot_be_continued_ends_with_an_error() {
        let mut stretches = numbers();
        let mut left = 500;
        let mut body = respond(move || {
            left -= 1;
            if left == 0 { Err(ControlError::not_owner()) } else { stretches() }
        })
        .into_body();
        let mut text = Vec::new();
        let error = loop {
            match body.frame().await.expect("the array seems to be complete") {
                Ok(frame) => text.extend(frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(serde_json::from_slice::<Vec<u64>>(&text).is_err());
        assert!(error.into_inner().downcast::<ControlError>().is_ok());
        assert!(body.frame().await.is_none());
    }
}
