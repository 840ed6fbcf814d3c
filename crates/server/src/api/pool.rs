//! `/pool`: the server, its pool, and the work that an operator can ask it to do now.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};

use super::{Api, Route, lines, run};
use crate::control::{Action, ControlError, GcEvent};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/pool",
            about: "The server and its pool: release, place, addresses.",
            handler: get(|s: State<Api>| run(s, Action::Server)),
        },
        Route {
            method: Method::POST,
            path: "/pool/gc",
            about: "Frees the space that nothing needs; answers with progress, a line at a time.",
            handler: post(reclaim),
        },
        Route {
            method: Method::POST,
            path: "/pool/checkpoint",
            about: "Makes a checkpoint, so that a recovery need not read further back.",
            handler: post(|s: State<Api>| run(s, Action::Checkpoint)),
        },
    ]
}

async fn reclaim(State(api): State<Api>) -> Result<Response, ControlError> {
    lines::respond(api.control.reclaim().await?, |error| GcEvent::Failed { error }).await
}
