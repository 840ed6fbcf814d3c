//! `/tenants`: limits of several volumes together.

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, put};

use super::extract::{Body, Param};
use super::{Api, Route, run};
use crate::control::Action;
use crate::limits::LimitSet;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/tenants",
            about: "List the tenants that have limits or disks",
            handler: get(|s: State<Api>| run(s, Action::ListTenants)),
        },
        Route {
            method: Method::GET,
            path: "/tenants/{name}",
            about: "Show a tenant",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowTenant { name })),
        },
        Route {
            method: Method::PUT,
            path: "/tenants/{name}",
            about: "Replace the limits of a tenant, effective at once",
            handler: put(|s: State<Api>, Param(name), Body(limits): Body<LimitSet>| {
                run(s, Action::SetTenant { name, limits })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/tenants/{name}",
            about: "Remove the limits of a tenant; its volumes keep their label",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveTenant { name })),
        },
    ]
}
