//! `/targets`: who may see which disk over iSCSI.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};

use super::extract::{Body, Force, Param};
use super::{Api, Route, create, run};
use crate::control::{Action, AllowInitiator, CreateTarget, MapLun};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/targets",
            about: "All targets.",
            handler: get(|s: State<Api>| run(s, Action::ListTargets)),
        },
        Route {
            method: Method::POST,
            path: "/targets",
            about: "Makes a target. Unless it is open, it admits nobody until initiators are allowed.",
            handler: post(|s: State<Api>, Body(b): Body<CreateTarget>| create(s, Action::CreateTarget(b))),
        },
        Route {
            method: Method::DELETE,
            path: "/targets",
            about: "Removes all targets, also where the table of them cannot be read.",
            handler: delete(|s: State<Api>, Force(force)| run(s, Action::RemoveTargets { force })),
        },
        Route {
            method: Method::GET,
            path: "/targets/{name}",
            about: "One target: its LUNs, who may come, who is there.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowTarget { name })),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}",
            about: "Removes a target; with `?force=true` also one that has sessions.",
            handler: delete(|s: State<Api>, Param(name), Force(force)| {
                run(s, Action::RemoveTarget { name, force })
            }),
        },
        Route {
            method: Method::POST,
            path: "/targets/{name}/luns",
            about: "Maps a disk under the lowest number that is free.",
            handler: post(|s: State<Api>, Param(target), Body(map): Body<MapLun>| {
                create(s, Action::MapLun { target, lun: None, map })
            }),
        },
        Route {
            method: Method::PUT,
            path: "/targets/{name}/luns/{lun}",
            about: "Maps a disk under this number, or changes how it is mapped.",
            handler: put(|s: State<Api>, Param((target, lun)), Body(map): Body<MapLun>| {
                run(s, Action::MapLun { target, lun: Some(lun), map })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/luns/{lun}",
            about: "Takes a disk away from a target, and from the initiators that use it.",
            handler: delete(|s: State<Api>, Param((target, lun))| run(s, Action::UnmapLun { target, lun })),
        },
        Route {
            method: Method::GET,
            path: "/targets/{name}/luns/{lun}/reservations",
            about: "Reservations and registrations of the disk under a LUN.",
            handler: get(|s: State<Api>, Param((target, lun))| {
                run(s, Action::ShowReservations { target, lun })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/luns/{lun}/reservations",
            about: "Ends all reservations of the disk under a LUN and removes all registrations.",
            handler: delete(|s: State<Api>, Param((target, lun))| {
                run(s, Action::ClearReservations { target, lun })
            }),
        },
        Route {
            method: Method::PUT,
            path: "/targets/{name}/initiators/{initiator}",
            about: "Lets an initiator come, or changes what it may.",
            handler: put(|s: State<Api>, Param((target, initiator)), Body(allowed): Body<AllowInitiator>| {
                run(s, Action::AllowInitiator { target, initiator, allowed })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/initiators/{initiator}",
            about: "Takes back what was allowed to an initiator.",
            handler: delete(|s: State<Api>, Param((target, initiator))| {
                run(s, Action::DenyInitiator { target, initiator })
            }),
        },
    ]
}
