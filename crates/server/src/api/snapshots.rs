//! `/volumes/{name}/snapshots`: snapshots of a volume.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post};

use super::extract::{Body, Param};
use super::{Api, Route, create, run};
use crate::control::{Action, CreateSnapshot};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/volumes/{name}/snapshots",
            about: "List the snapshots of a volume",
            handler: get(|s: State<Api>, Param(volume)| run(s, Action::ListSnapshots { volume })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/snapshots",
            about: "Create a snapshot; it contains every write acknowledged before",
            handler: post(|s: State<Api>, Param(volume), Body(b): Body<CreateSnapshot>| {
                create(s, Action::CreateSnapshot { volume, name: b.name })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/volumes/{name}/snapshots/{snapshot}",
            about: "Remove a snapshot that has no clones",
            handler: delete(|s: State<Api>, Param((volume, name))| {
                run(s, Action::RemoveSnapshot { volume, name })
            }),
        },
    ]
}
