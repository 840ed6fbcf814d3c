//! Limits of volumes and tenants: their representation in the API, and the actions on them.

use forebay_engine::{DiskInfo, Error as EngineError, TenantInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, Reply, Result};
use crate::limits::LimitSet;

/// Body of `PUT /volumes/{name}/limits`, and the reply: it replaces all limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant": "acme", "limits": {"iops": 2000, "weight": 50}}))]
pub struct VolumeLimits {
    /// The tenant to which the volume belongs.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Its own limits; those of its tenant apply as well.
    #[serde(default)]
    pub limits: LimitSet,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// Name.
    pub name: String,
    /// Limits of all its volumes together.
    pub limits: LimitSet,
    /// Number of volumes and images that belong to it.
    pub disks: usize,
    /// The use of its quota; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageView>,
}

/// The use of the quota of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageView {
    /// Bytes that its volumes occupy and their snapshots keep, as far as they were counted.
    pub used_bytes: u64,
    /// Number of volumes that are still being counted.
    pub counting: usize,
    /// Writes that were refused since the server was started.
    pub refused: u64,
}

impl From<TenantInfo> for TenantView {
    fn from(tenant: TenantInfo) -> TenantView {
        let usage = tenant.usage.map(|u| UsageView {
            used_bytes: u.used_bytes,
            counting: u.counting,
            refused: u.refused,
        });
        TenantView { name: tenant.name, limits: tenant.limits.into(), disks: tenant.disks, usage }
    }
}

/// Requests that waited for a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitedView {
    /// Requests.
    pub requests: u64,
    /// The sum of their waits in microseconds.
    pub waited_us: u64,
}

impl Control {
    pub(super) fn show_limits(&self, volume: &str) -> Result<Reply> {
        let found = self.pool().limits(volume)?;
        Ok(Reply::Limits(VolumeLimits { tenant: found.tenant, limits: found.limits.into() }))
    }

    pub(super) async fn set_limits(&self, volume: &str, new: &VolumeLimits) -> Result<Reply> {
        self.limits().set_volume(volume, new.tenant.clone(), new.limits).await?;
        self.show_limits(volume)
    }

    fn tenants(&self) -> impl Iterator<Item = TenantView> {
        self.pool().tenants().into_iter().map(TenantView::from)
    }

    pub(super) fn list_tenants(&self) -> Reply {
        Reply::Tenants(self.tenants().collect())
    }

    pub(super) fn show_tenant(&self, name: &str) -> Result<Reply> {
        let found = self.tenants().find(|tenant| tenant.name == name);
        Ok(Reply::Tenant(found.ok_or_else(|| EngineError::NotFound(name.to_owned()))?))
    }

    pub(super) async fn set_tenant(&self, name: &str, limits: LimitSet) -> Result<Reply> {
        self.limits().set_tenant(name, limits).await?;
        let found = self.tenants().find(|tenant| tenant.name == name);
        let none = || TenantView { name: name.to_owned(), limits, disks: 0, usage: None };
        Ok(Reply::Tenant(found.unwrap_or_else(none)))
    }

    /// Removes the limits of a tenant; volumes that belong to it keep their label.
    pub(super) async fn remove_tenant(&self, name: &str) -> Result<Reply> {
        self.show_tenant(name)?;
        self.limits().set_tenant(name, LimitSet::default()).await?;
        Ok(Reply::Done {})
    }

    /// Gives new disks the tenant of their source; returns their state afterwards.
    pub(super) async fn inherit_tenant(&self, source: &str, made: Vec<DiskInfo>) -> Result<Vec<DiskInfo>> {
        let uuids: Vec<_> = made.iter().map(|disk| disk.uuid).collect();
        self.limits().inherit(source, &uuids).await?;
        let names: Vec<&str> = made.iter().map(|disk| disk.name.as_str()).collect();
        let found = self.find_all(&names);
        Ok(made.into_iter().zip(found).map(|(made, found)| found.unwrap_or(made)).collect())
    }
}
