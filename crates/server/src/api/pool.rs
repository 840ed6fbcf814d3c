//! `/pool`: the server and its pool; reclaim and checkpoint on request.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};

use super::error::Result;
use super::{Api, Route, lines, run};
use crate::control::{Action, GcEvent};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/pool",
            about: "Show the server and its pool: release, data directory, addresses",
            handler: get(|s: State<Api>| run(s, Action::Server)),
        },
        Route {
            method: Method::POST,
            path: "/pool/gc",
            about: "Reclaim unused space; the response is a stream of progress events",
            handler: post(reclaim),
        },
        Route {
            method: Method::POST,
            path: "/pool/checkpoint",
            about: "Write a checkpoint, which bounds the log that a recovery reads",
            handler: post(|s: State<Api>| run(s, Action::Checkpoint)),
        },
    ]
}

async fn reclaim(State(api): State<Api>) -> Result<Response> {
    lines::respond(api.control.reclaim().await?, |error| GcEvent::Failed { error }).await
}
