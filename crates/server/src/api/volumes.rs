//! `/volumes`: writable disks.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};

use super::extract::{Body, Param};
use super::{Api, Route, create, run};
use crate::control::{Action, CreateVolume, Persist, Resets, Resize, Rollback, VolumeLimits};

pub(super) fn routes() -> Vec<Route> {
    [volume_routes(), reset_routes(), limit_routes(), class_routes()].into_iter().flatten().collect()
}

fn volume_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/volumes",
            about: "List all volumes",
            handler: get(|s: State<Api>| run(s, Action::ListVolumes)),
        },
        Route {
            method: Method::POST,
            path: "/volumes",
            about: "Create an empty volume",
            handler: post(|s: State<Api>, Body(b): Body<CreateVolume>| create(s, Action::CreateVolume(b))),
        },
        Route {
            method: Method::GET,
            path: "/volumes/{name}",
            about: "Show a volume",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowVolume { name })),
        },
        Route {
            method: Method::DELETE,
            path: "/volumes/{name}",
            about: "Remove a volume that has no clients and no snapshots",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveVolume { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/resize",
            about: "Resize a volume; shrinking discards the data beyond the new end",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Resize>| {
                run(s, Action::ResizeVolume { name, size_bytes: b.size_bytes })
            }),
        },
    ]
}

fn reset_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::POST,
            path: "/volumes/{name}/reset",
            about: "Reset a clone to the image or snapshot it was created from",
            handler: post(|s: State<Api>, Param(name)| run(s, Action::ResetVolume { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/resume",
            about: "Admit all clients again to a volume with lost writes; stop the clients that had them first",
            handler: post(|s: State<Api>, Param(name)| run(s, Action::ResumeVolume { name })),
        },
        Route {
            method: Method::POST,
            path: "/resets",
            about: "Reset several clones as fast as one; all or none",
            handler: post(|s: State<Api>, Body(b): Body<Resets>| {
                run(s, Action::Reset { volumes: b.volumes })
            }),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/persist",
            about: "Convert a desktop into a persistent volume, keeping its writes",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Persist>| {
                run(s, Action::PersistVolume { name, sync: b.sync })
            }),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/rollback",
            about: "Roll a volume back to one of its snapshots",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<Rollback>| {
                run(s, Action::RollbackVolume { name, snapshot: b.snapshot })
            }),
        },
    ]
}

fn limit_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/volumes/{name}/limits",
            about: "Show the limits, the weight and the tenant of a volume",
            handler: get(|s: State<Api>, Param(volume)| run(s, Action::ShowLimits { volume })),
        },
        Route {
            method: Method::PUT,
            path: "/volumes/{name}/limits",
            about: "Replace the limits, the weight and the tenant of a volume, effective at once",
            handler: put(|s: State<Api>, Param(volume), Body(new): Body<VolumeLimits>| {
                run(s, Action::SetLimits { volume, new })
            }),
        },
    ]
}

fn class_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/volumes/{name}/classes",
            about: "Show the block classes of a volume, image or VOLUME@SNAPSHOT, with I/O counters",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowClasses { name })),
        },
        Route {
            method: Method::POST,
            path: "/volumes/{name}/classes",
            about: "Scan the disk for block classes now",
            handler: post(|s: State<Api>, Param(name)| run(s, Action::LearnClasses { name })),
        },
    ]
}
