//! `/targets`: iSCSI targets, their LUNs and initiator ACLs.

use forebay_api::{AllowInitiator, CreateTarget, LunView, MapLun, ReservationsView, TargetView};

use super::{create, list, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Force, Param};
use crate::http::list::{ListQuery, PAGE};
use crate::http::route::{QueryParameter, Route};
use crate::operations::Action;

/// The query of removals.
const FORCE: &[QueryParameter] = &[QueryParameter {
    name: "force",
    about: "Also if initiators are connected",
    schema: r#"{"type": "boolean", "default": false}"#,
}];

pub(super) fn routes() -> Vec<Route> {
    [target_routes(), lun_routes(), initiator_routes()].into_iter().flatten().collect()
}

fn target_routes() -> Vec<Route> {
    vec![
        Route::get("/targets", "List all targets", Right::ReadServer, |c: Caller, q: ListQuery| {
            list(c, q, Action::ListTargets)
        })
        .lists::<TargetView>()
        .with_query(PAGE),
        Route::post(
            "/targets",
            "Create a target; unless it is open, it admits only initiators with an ACL entry",
            Right::Administer,
            |c: Caller, Body(b): Body<CreateTarget>| create(c, Action::CreateTarget(b)),
        )
        .takes::<CreateTarget>()
        .returns::<TargetView>()
        .creates(),
        Route::delete(
            "/targets",
            "Remove all targets, even if the target table cannot be read",
            Right::Administer,
            |c: Caller, Force(force)| run(c, Action::RemoveTargets { force }),
        )
        .with_query(FORCE),
        Route::get(
            "/targets/{name}",
            "Show a target: LUNs, initiator ACL, sessions",
            Right::ReadServer,
            |c: Caller, Param(name)| run(c, Action::ShowTarget { name }),
        )
        .returns::<TargetView>(),
        Route::delete(
            "/targets/{name}",
            "Remove a target; with `?force=true` even if it has sessions",
            Right::Administer,
            |c: Caller, Param(name), Force(force)| run(c, Action::RemoveTarget { name, force }),
        )
        .with_query(FORCE),
        Route::delete(
            "/targets/{name}/sessions/{session}",
            "Disconnect an initiator: end one of its sessions",
            Right::Administer,
            |c: Caller, Param((target, session))| run(c, Action::DisconnectSession { target, session }),
        ),
    ]
}

fn lun_routes() -> Vec<Route> {
    vec![
        Route::post(
            "/targets/{name}/luns",
            "Map a disk to the lowest free LUN",
            Right::Administer,
            |c: Caller, Param(target), Body(map): Body<MapLun>| {
                create(c, Action::MapLun { target, lun: None, map })
            },
        )
        .takes::<MapLun>()
        .returns::<LunView>()
        .creates(),
        Route::put(
            "/targets/{name}/luns/{lun}",
            "Map a disk to this LUN, or change the options of a mapped LUN",
            Right::Administer,
            |c: Caller, Param((target, lun)), Body(map): Body<MapLun>| {
                run(c, Action::MapLun { target, lun: Some(lun), map })
            },
        )
        .takes::<MapLun>()
        .returns::<LunView>(),
        Route::delete(
            "/targets/{name}/luns/{lun}",
            "Unmap a LUN, also from initiators that are using it",
            Right::Administer,
            |c: Caller, Param((target, lun))| run(c, Action::UnmapLun { target, lun }),
        ),
        Route::get(
            "/targets/{name}/luns/{lun}/reservations",
            "Show the reservations and registrations of the disk of a LUN",
            Right::ReadServer,
            |c: Caller, Param((target, lun))| run(c, Action::ShowReservations { target, lun }),
        )
        .returns::<ReservationsView>(),
        Route::delete(
            "/targets/{name}/luns/{lun}/reservations",
            "Clear all reservations and registrations of the disk of a LUN",
            Right::Administer,
            |c: Caller, Param((target, lun))| run(c, Action::ClearReservations { target, lun }),
        ),
    ]
}

fn initiator_routes() -> Vec<Route> {
    vec![
        Route::put(
            "/targets/{name}/initiators/{initiator}",
            "Add or update an initiator's ACL entry",
            Right::Administer,
            |c: Caller, Param((target, initiator)), Body(allowed): Body<AllowInitiator>| {
                run(c, Action::AllowInitiator { target, initiator, allowed })
            },
        )
        .takes::<AllowInitiator>()
        .returns::<TargetView>(),
        Route::delete(
            "/targets/{name}/initiators/{initiator}",
            "Remove an initiator's ACL entry",
            Right::Administer,
            |c: Caller, Param((target, initiator))| run(c, Action::DenyInitiator { target, initiator }),
        )
        .returns::<TargetView>(),
    ]
}
