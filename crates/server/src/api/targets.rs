//! `/targets`: iSCSI targets, their LUNs and initiator ACLs.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};

use super::extract::{Body, Force, Param};
use super::{Api, Route, create, run};
use crate::control::{Action, AllowInitiator, CreateTarget, MapLun};

pub(super) fn routes() -> Vec<Route> {
    [target_routes(), lun_routes(), initiator_routes()].into_iter().flatten().collect()
}

fn target_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/targets",
            about: "List all targets",
            handler: get(|s: State<Api>| run(s, Action::ListTargets)),
        },
        Route {
            method: Method::POST,
            path: "/targets",
            about: "Create a target; unless it is open, it admits only initiators with an ACL entry",
            handler: post(|s: State<Api>, Body(b): Body<CreateTarget>| create(s, Action::CreateTarget(b))),
        },
        Route {
            method: Method::DELETE,
            path: "/targets",
            about: "Remove all targets, even if the target table cannot be read",
            handler: delete(|s: State<Api>, Force(force)| run(s, Action::RemoveTargets { force })),
        },
        Route {
            method: Method::GET,
            path: "/targets/{name}",
            about: "Show a target: LUNs, initiator ACL, sessions",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowTarget { name })),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}",
            about: "Remove a target; with `?force=true` even if it has sessions",
            handler: delete(|s: State<Api>, Param(name), Force(force)| {
                run(s, Action::RemoveTarget { name, force })
            }),
        },
    ]
}

fn lun_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::POST,
            path: "/targets/{name}/luns",
            about: "Map a disk to the lowest free LUN",
            handler: post(|s: State<Api>, Param(target), Body(map): Body<MapLun>| {
                create(s, Action::MapLun { target, lun: None, map })
            }),
        },
        Route {
            method: Method::PUT,
            path: "/targets/{name}/luns/{lun}",
            about: "Map a disk to this LUN, or change the options of a mapped LUN",
            handler: put(|s: State<Api>, Param((target, lun)), Body(map): Body<MapLun>| {
                run(s, Action::MapLun { target, lun: Some(lun), map })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/luns/{lun}",
            about: "Unmap a LUN, also from initiators that are using it",
            handler: delete(|s: State<Api>, Param((target, lun))| run(s, Action::UnmapLun { target, lun })),
        },
        Route {
            method: Method::GET,
            path: "/targets/{name}/luns/{lun}/reservations",
            about: "Show the reservations and registrations of the disk of a LUN",
            handler: get(|s: State<Api>, Param((target, lun))| {
                run(s, Action::ShowReservations { target, lun })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/luns/{lun}/reservations",
            about: "Clear all reservations and registrations of the disk of a LUN",
            handler: delete(|s: State<Api>, Param((target, lun))| {
                run(s, Action::ClearReservations { target, lun })
            }),
        },
    ]
}

fn initiator_routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::PUT,
            path: "/targets/{name}/initiators/{initiator}",
            about: "Add or update an initiator's ACL entry",
            handler: put(|s: State<Api>, Param((target, initiator)), Body(allowed): Body<AllowInitiator>| {
                run(s, Action::AllowInitiator { target, initiator, allowed })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/targets/{name}/initiators/{initiator}",
            about: "Remove an initiator's ACL entry",
            handler: delete(|s: State<Api>, Param((target, initiator))| {
                run(s, Action::DenyInitiator { target, initiator })
            }),
        },
    ]
}
