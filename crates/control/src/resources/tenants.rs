//! `/tenants`: limits of several volumes together.

use forebay_api::{LimitSet, TenantView};

use super::{list, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::list::{ListQuery, PAGE};
use crate::http::route::Route;
use crate::operations::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/tenants",
            "List the tenants that have limits or disks",
            Right::Read,
            |c: Caller, q: ListQuery| list(c, q, Action::ListTenants),
        )
        .lists::<TenantView>()
        .with_query(PAGE),
        Route::get("/tenants/{name}", "Show a tenant", Right::Read, |c: Caller, Param(name)| {
            run(c, Action::ShowTenant { name })
        })
        .returns::<TenantView>(),
        Route::put(
            "/tenants/{name}",
            "Replace the limits of a tenant, effective at once",
            Right::Administer,
            |c: Caller, Param(name), Body(limits): Body<LimitSet>| run(c, Action::SetTenant { name, limits }),
        )
        .takes::<LimitSet>()
        .returns::<TenantView>(),
        Route::delete(
            "/tenants/{name}",
            "Remove the limits of a tenant; its volumes keep their label",
            Right::Administer,
            |c: Caller, Param(name)| run(c, Action::RemoveTenant { name }),
        ),
    ]
}
