//! `/images`: golden images.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get};

use super::extract::Param;
use super::{Api, Route, run};
use crate::control::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/images",
            about: "All images.",
            handler: get(|s: State<Api>| run(s, Action::ListImages)),
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
