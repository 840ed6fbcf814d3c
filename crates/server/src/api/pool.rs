//! `/pool`: the server, its pool, and the work that an operator can ask it to do now.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{get, post};

use super::{Api, Route, run};
use crate::control::Action;

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
            about: "Frees segments in which nothing is live; answers when that is done.",
            handler: post(|s: State<Api>| run(s, Action::Reclaim)),
        },
        Route {
            method: Method::POST,
            path: "/pool/checkpoint",
            about: "Makes a checkpoint, so that a recovery need not read further back.",
            handler: post(|s: State<Api>| run(s, Action::Checkpoint)),
        },
    ]
}
