//! `/tenants`: limits of several volumes together.

use forebay_api::{LimitSet, TenantView, UsageView};
use forebay_engine::{Error as EngineError, TenantInfo};
use forebay_text::quoted;

use super::{list, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::list::{ListQuery, PAGE};
use crate::http::route::Route;
use crate::operations::{Change, Changes, Client, Control, Disks, Done, Failure, Operation, Reply, Result};
use crate::view::View;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/tenants",
            "List the tenants that have limits or disks",
            Right::Read,
            |c: Caller, q: ListQuery| list(c, q, ListTenants, |tenant| &tenant.name),
        )
        .lists::<TenantView>()
        .with_query(PAGE),
        Route::get("/tenants/{name}", "Show a tenant", Right::Read, |c: Caller, Param(name)| {
            run(c, ShowTenant { name })
        })
        .returns::<TenantView>(),
        Route::put(
            "/tenants/{name}",
            "Replace the limits of a tenant, effective at once",
            Right::Administer,
            |c: Caller, Param(name), Body(limits): Body<LimitSet>| run(c, SetTenant { name, limits }),
        )
        .takes::<LimitSet>()
        .returns::<TenantView>(),
        Route::delete(
            "/tenants/{name}",
            "Remove the limits of a tenant; its volumes keep their label",
            Right::Administer,
            |c: Caller, Param(name)| run(c, RemoveTenant { name }),
        ),
    ]
}

impl Reply for TenantView {}

struct ListTenants;

impl Operation for ListTenants {
    type Reply = Vec<TenantView>;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Vec<TenantView>> {
        Ok(tenants(control).collect())
    }
}

struct ShowTenant {
    name: String,
}

impl Operation for ShowTenant {
    type Reply = TenantView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    fn check(&self, client: &Client<'_>) -> Result<(), Failure> {
        match client.principal.sees_tenant(&self.name) {
            true => Ok(()),
            false => Err(Failure::hidden(&self.name)),
        }
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<TenantView> {
        tenant(control, &self.name)
    }
}

struct SetTenant {
    name: String,
    limits: LimitSet,
}

impl Operation for SetTenant {
    type Reply = TenantView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("the limits of tenant {} to {}", quoted(&op.name), op.limits);
        Change::new("set", "set", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<TenantView> {
        let SetTenant { name, limits } = self;
        control.limits().set_tenant(name, *limits).await?;
        let none = || TenantView { name: name.clone(), limits: *limits, disks: 0, usage: None };
        Ok(tenants(control).find(|tenant| tenant.name == *name).unwrap_or_else(none))
    }
}

struct RemoveTenant {
    name: String,
}

impl Operation for RemoveTenant {
    type Reply = Done;
    const CHANGE: Changes<Self> =
        Some(|op| Change::remove(format_args!("the limits of tenant {}", quoted(&op.name))));
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        tenant(control, &self.name)?;
        control.limits().set_tenant(&self.name, LimitSet::default()).await?;
        Ok(Done {})
    }
}

fn tenants(control: &Control) -> impl Iterator<Item = TenantView> {
    control.pool().tenants().into_iter().map(View::view)
}

fn tenant(control: &Control, name: &str) -> Result<TenantView> {
    let found = tenants(control).find(|tenant| tenant.name == name);
    Ok(found.ok_or_else(|| EngineError::NotFound(name.to_owned()))?)
}

impl View for TenantInfo {
    type View = TenantView;

    fn view(self) -> TenantView {
        let usage = self.usage.map(|u| UsageView {
            used_bytes: u.used_bytes,
            counting: u.counting,
            refused: u.refused,
        });
        TenantView { name: self.name, limits: self.limits.view(), disks: self.disks, usage }
    }
}
