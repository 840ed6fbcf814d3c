//! `/volumes`: disks that can be written.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post};

use super::extract::{Body, Param};
use super::{Api, Route, create, run};
use crate::control::{Action, CreateVolume, Persist, Resets, Resize, Rollback};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/volumes",
            about: "All volumes.",
            handler: get(|s: State<Api>| run(s, Action::ListVolumes)),
        },
        Route {
            method: Method::POST,
            path: "/volumes",
            about: "Makes an empty volume.",
            handler: post(|s: State<Api>, Body(b): Body<CreateVolume>| create(s, Action::CreateVolume(b))),
        },
        Route {
            method: Method::GET,
            path: "/volumes/{name}",
            about: "One volume.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowVolume { name })),
        },
        Route {
            method: Method::DELETE,
            path: "/volumes/{name}",
            about: "Removes a volume that nobody uses and that has no snapshots.",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveVolume { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/resize",
            about: "Changes the size; what lies beyond a smaller one is discarded.",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Resize>| {
                run(s, Action::ResizeVolume { name, size_bytes: b.size_bytes })
            }),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/reset",
            about: "Sets a clone back to the image or snapshot it came from.",
            handler: post(|s: State<Api>, Param(name)| run(s, Action::ResetVolume { name })),
        },
        Route {
            method: Method::POST,
            path: "/resets",
            about: "Sets many clones back, all or none, as fast as one.",
            handler: post(|s: State<Api>, Body(b): Body<Resets>| {
                run(s, Action::Reset { volumes: b.volumes })
            }),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/persist",
            about: "Makes a desktop a persistent volume, with all that was written to it.",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Persist>| {
                run(s, Action::PersistVolume { name, sync: b.sync })
            }),
        },
        Route {
            method: Method::GET,
            path: "/volumes/{name}/classes",
            about: "What a guest's file systems say of the blocks of a volume, image or VOLUME@SNAPSHOT, and how they fare.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowClasses { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/classes",
            about: "Scans the disk for that now.",
            handler: post(|s: State<Api>, Param(name)| run(s, Action::LearnClasses { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/rollback",
            about: "Sets a volume back to one of its snapshots.",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Rollback>| {
                run(s, Action::RollbackVolume { name, snapshot: b.snapshot })
            }),
        },
    ]
}
