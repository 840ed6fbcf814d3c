//! Limits of volumes and tenants: their representation in the API, and the actions on them.

use forebay_api::{LimitSet, TenantView, UsageView, VolumeLimits};
use forebay_engine::{DiskInfo, Error as EngineError, TenantInfo};

use super::{Control, Reply, Result};
use crate::view::View;

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

impl Control {
    pub(super) fn show_limits(&self, volume: &str) -> Result<Reply> {
        let found = self.pool().limits(volume)?;
        Ok(Reply::Limits(VolumeLimits { tenant: found.tenant, limits: found.limits.view() }))
    }

    pub(super) async fn set_limits(&self, volume: &str, new: &VolumeLimits) -> Result<Reply> {
        self.limits().set_volume(volume, new.tenant.clone(), new.limits).await?;
        self.show_limits(volume)
    }

    fn tenants(&self) -> impl Iterator<Item = TenantView> {
        self.pool().tenants().into_iter().map(View::view)
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
