//! `/images`: golden images.
//!
//! An import is answered with one JSON object a line, as it goes on; it lasts as long as the connection. What
//! fails before the first line has an HTTP status of its own, as everywhere else.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use hyper::body::{Bytes, Frame};
use tokio::sync::mpsc;

use super::extract::{Body, Param};
use super::{Api, Origin, Route, run};
use crate::control::{Action, ControlError};
use crate::import::{self, Event, Source, Told};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/images",
            about: "All images.",
            handler: get(|s: State<Api>| run(s, Action::ListImages)),
        },
        Route {
            method: Method::POST,
            path: "/images",
            about: "Imports an image from a file or URL; answers with progress, a line at a time.",
            handler: post(import_image),
        },
        Route {
            method: Method::GET,
            path: "/images/{name}",
            about: "One image.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowImage { name })),
        },
        Route {
            method: Method::DELETE,
            path: "/images/{name}",
            about: "Removes an image that has no clones.",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveImage { name })),
        },
    ]
}

async fn import_image(
    State(api): State<Api>,
    Body(request): Body<import::Request>,
) -> Result<Response, ControlError> {
    if api.origin != Origin::Socket && matches!(request.source, Source::File(_)) {
        return Err(ControlError::new(
            StatusCode::FORBIDDEN,
            "not_here",
            "files of the server can be imported only over its control socket; give a URL instead",
        ));
    }
    let mut events = import::start(&api.control, request).await?;
    let first = events.recv().await.ok_or_else(ControlError::closed)??;
    let lines = Lines { first: Some(first), events };
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], axum::body::Body::new(lines)).into_response())
}

/// Events as lines of JSON.
struct Lines {
    first: Option<Event>,
    events: mpsc::Receiver<Told>,
}

impl hyper::body::Body for Lines {
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
                Poll::Ready(Some(Err(e))) => Event::Failed { error: e.body().error },
            },
        };
        let line = serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            Frame::data(line.into())
        });
        Poll::Ready(Some(line))
    }
}
