//! `/stats`: counters since the pool was opened, data reduction and space.

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
            about: "Show the counters, data reduction and space of the pool",
            handler: get(|s: State<Api>| run(s, Action::Stats)),
        },
        Route {
            method: Method::GET,
            path: "/activity",
            about: "Show the guest I/O of all disks, in one list",
            handler: get(|s: State<Api>| run(s, Action::ShowActivity)),
        },
        Route {
            method: Method::GET,
            path: "/stats/{name}",
            about: "Show the guest I/O and space of a volume, image or `volume@snapshot`",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::DiskStats { name })),
        },
    ]
}
