//! `/volumes/{name}/limits`: limits, weight and tenant of a volume.

use forebay_api::VolumeLimits;
use forebay_text::quoted;

use super::run;
use crate::access::{Right, may};
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::route::Route;
use crate::limits::DEFAULT_WEIGHT;
use crate::operations::{Change, Changes, Client, Control, Disks, Failure, Operation, Reply, Result};
use crate::view::View;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/limits",
            "Show the limits, the weight and the tenant of a volume",
            Right::Read,
            |c: Caller, Param(volume)| run(c, ShowLimits { volume }),
        )
        .returns::<VolumeLimits>(),
        Route::put(
            "/volumes/{name}/limits",
            "Replace the limits, the weight and the tenant of a volume, effective at once",
            Right::Operate,
            |c: Caller, Param(volume), Body(new): Body<VolumeLimits>| run(c, SetLimits { volume, new }),
        )
        .takes::<VolumeLimits>()
        .returns::<VolumeLimits>(),
    ]
}

impl Reply for VolumeLimits {}

struct ShowLimits {
    volume: String,
}

impl Operation for ShowLimits {
    type Reply = VolumeLimits;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.volume.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<VolumeLimits> {
        limits_of(control, &self.volume)
    }
}

struct SetLimits {
    volume: String,
    new: VolumeLimits,
}

impl Operation for SetLimits {
    type Reply = VolumeLimits;
    const CHANGE: Changes<Self> = Some(|op| {
        let (volume, limits) = (quoted(&op.volume), op.new.limits);
        match op.new.tenant.as_deref().map(quoted) {
            None => Change::new("set", "set", format_args!("the limits of volume {volume} to {limits}")),
            Some(tenant) => {
                let object = format_args!("the limits of volume {volume} of tenant {tenant} to {limits}");
                Change::new("set", "set", object)
            }
        }
    });
    const EVENT: Option<&str> = Some("limited");
    const DISKS: Disks<Self> = |op| vec![op.volume.clone()];

    fn event_disk(&self) -> Option<String> {
        Some(self.volume.clone())
    }

    /// Only an administrator moves a volume to another tenant: a tenant is the scope of tokens and quotas.
    fn check(&self, client: &Client<'_>) -> Result<(), Failure> {
        let is_administrator = may(client.principal, Right::Administer, None);
        if !is_administrator && client.control.tenant_of(&self.volume) != self.new.tenant {
            let why = "only an administrator can change the tenant of a volume; send the present one";
            return Err(Failure::Forbidden(why.to_owned()));
        }
        if client.principal.scope.is_some() && self.new.tenant.is_none() {
            let present = client.control.pool().limits(&self.volume).ok();
            let present = present.and_then(|found| found.limits.weight).unwrap_or(DEFAULT_WEIGHT);
            if self.new.limits.weight.is_some_and(|weight| weight > DEFAULT_WEIGHT.max(present)) {
                let why = "only an administrator can raise the weight of a volume without a tenant above 100";
                return Err(Failure::Forbidden(why.to_owned()));
            }
        }
        Ok(())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<VolumeLimits> {
        let VolumeLimits { tenant, limits } = &self.new;
        control.limits().set_volume(&self.volume, tenant.clone(), *limits).await?;
        limits_of(control, &self.volume)
    }
}

fn limits_of(control: &Control, volume: &str) -> Result<VolumeLimits> {
    let found = control.pool().limits(volume)?;
    Ok(VolumeLimits { tenant: found.tenant, limits: found.limits.view() })
}
