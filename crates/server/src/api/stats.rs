//! `/stats`: the counters since the pool was opened, and where the space goes.

use axum::extract::State;
use axum::http::Method;
use axum::routing::get;

use super::extract::Param;
use super::{Api, Route, run};
use crate::control::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/stats",
            about: "Counters of the whole pool, what reduction did, and where the space goes.",
            handler: get(|s: State<Api>| run(s, Action::Stats)),
        },
        Route {
            method: Method::GET,
            path: "/stats/{name}",
            about: "What guests did to one volume, image or `volume@snapshot`, and what it holds.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::DiskStats { name })),
        },
    ]
}
