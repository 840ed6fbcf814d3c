//! `/events`: events as they happen (server-sent events, WHATWG HTML, section 9.2).
//!
//! A stream holds a position in the ring of events and one event on its way to the client. A client that
//! reads slowly gets an event `missed` in place of events that are no longer in the ring. A stream ends when
//! the session or the token of its client is not valid any more, when the client does not read for
//! [`KEEP_ALIVE`], after [`LIFETIME`], and when another client needs its place ([`Streams`]). Browsers
//! connect again automatically, and continue after the last event that they received.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::RawQuery;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use hyper::body::{Bytes, Frame};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::access::{DiskRef, Right, may};
use crate::http::auth::Caller;
use crate::http::problem::{ApiError, Refusal, Result};
use crate::http::route::{Answer, QueryParameter, Route};
use crate::http::streams::Place;
use crate::operations::{Delivery, Event, Subscription, Topic};

/// Duration after which a stream of events ends.
const LIFETIME: Duration = Duration::from_secs(900);
/// Interval of comments that keep the connection open, and that reveal a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

const QUERY: &[QueryParameter] = &[QueryParameter {
    name: "topics",
    about: "Only these topics, separated by commas: volume, job, capacity, error, security",
    schema: r#"{"type": "string", "pattern": "^(volume|job|capacity|error|security)$", "example": "volume"}"#,
}];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/events",
            "Events as they happen: volumes, jobs, capacity, errors, security",
            Right::Read,
            events,
        )
        .follows::<Event>()
        .with_query(QUERY),
    ]
}

/// The topics that a query names; all without a query.
fn topics(query: Option<&str>) -> Result<Vec<Topic>> {
    let malformed = |why: &str| ApiError::refused(Refusal::Malformed, why);
    let names = match query {
        None | Some("") => return Ok(Topic::ALL.to_vec()),
        Some(query) => query.strip_prefix("topics=").filter(|names| !names.contains('&')),
    };
    let names = names.ok_or_else(|| malformed("unknown parameter; events have only topics"))?;
    let topic = |name: &str| {
        let found = Topic::ALL.into_iter().find(|topic| topic.name() == name);
        found.ok_or_else(|| malformed("unknown topic; there are volume, job, capacity, error and security"))
    };
    names.replace("%2C", ",").split(',').map(topic).collect()
}

async fn events(caller: Caller, headers: HeaderMap, RawQuery(query): RawQuery) -> Answer {
    let topics = topics(query.as_deref())?;
    let Some(place) = caller.api.streams.begin(caller.principal.owner()) else {
        let why = "too many clients follow the events; close one of them";
        return Err(ApiError::refused(Refusal::TooManyStreams, why));
    };
    let after = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let subscription = caller.api.control.events().subscribe(after);
    // The channel holds one event; the ring holds the others.
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(follow(caller, topics, subscription, sender, place));
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], axum::body::Body::new(Stream(receiver)))
        .into_response())
}

/// Sends events until the client disconnects, loses its rights, or the server stops.
async fn follow(
    caller: Caller,
    topics: Vec<Topic>,
    mut subscription: Subscription,
    sender: mpsc::Sender<Bytes>,
    place: Place,
) {
    let begun = Instant::now();
    let mut text = Some("retry: 2000\n\n".to_owned());
    while begun.elapsed() < LIFETIME && caller.api.access.is_valid(&caller.principal) {
        if let Some(text) = text.take() {
            let sent = tokio::select! {
                sent = sender.send(text.into()) => sent.is_ok(),
                // A client that does not read does not keep its place.
                () = tokio::time::sleep(KEEP_ALIVE) => false,
                () = place.displaced() => false,
                () = caller.api.control.stopped() => false,
            };
            if !sent {
                return;
            }
        }
        text = tokio::select! {
            delivery = subscription.next() => encode(&caller, &topics, delivery),
            () = tokio::time::sleep(KEEP_ALIVE) => Some(":\n\n".to_owned()),
            () = sender.closed() => return,
            () = place.displaced() => return,
            () = caller.api.control.stopped() => return,
        };
    }
}

/// The text of an event that the client may see.
fn encode(caller: &Caller, topics: &[Topic], delivery: Delivery) -> Option<String> {
    match delivery {
        Delivery::Missed(count, last) => {
            Some(format!("id: {last}\nevent: missed\ndata: {}\n\n", json!({"count": count})))
        }
        Delivery::Event(event) if topics.contains(&event.topic) && sees(caller, &event) => {
            // Line ends are escaped in JSON, so an event is one line.
            Some(format!("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.topic.name(), json!(*event)))
        }
        Delivery::Event(_) => None,
    }
}

fn sees(caller: &Caller, event: &Arc<Event>) -> bool {
    let principal = &caller.principal;
    match event.topic {
        Topic::Security => may(principal, Right::Administer, None),
        _ if principal.scope.is_none() => true,
        // All disks of the event are in the scope. An event without disks concerns the server.
        _ => {
            let in_scope = |disk: &crate::operations::EventDisk| {
                let disk = DiskRef { name: &disk.name, tenant: disk.tenant.as_deref() };
                may(principal, Right::Read, Some(&disk))
            };
            !event.disks.is_empty() && event.disks.iter().all(in_scope)
        }
    }
}

struct Stream(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}
