//! Limits, weights and tenants of disks. The engine keeps them in memory; the server stores them.

use std::sync::Arc;

use super::pool::Pool;
use crate::Result;
use crate::disk::Disk;
use crate::limit::{Limits, Tenant};

/// The limits of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// The tenant to which the disk belongs.
    pub tenant: Option<String>,
    /// Its own limits.
    pub limits: Limits,
}

impl Pool {
    /// The limits of a disk.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound).
    pub fn limits(&self, name: &str) -> Result<DiskLimits> {
        let disk = self.parts.catalogue.read().find(name)?;
        Ok(limits_of(&disk))
    }

    /// Replaces the limits of a disk, also for requests of connected clients that wait. The caller has checked
    /// them ([`Limits::is_valid`]).
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound).
    pub fn set_limits(&self, name: &str, new: &DiskLimits) -> Result<()> {
        let disk = self.parts.catalogue.read().find(name)?;
        let tenant = new.tenant.as_deref().map(|name| self.tenant(name));
        disk.limiter.set(new.limits, tenant, self.parts.cx.host.now());
        update_weight(&disk);
        Ok(())
    }

    /// The tenants that have limits or disks, by name, with their limits and number of disks.
    pub fn tenants(&self) -> Vec<(String, Limits, usize)> {
        let disks: Vec<_> = self.disks_with_tenants();
        let tenants = self.tenants.lock();
        let count = |name: &String| disks.iter().filter(|(_, tenant)| tenant.name == *name).count();
        let all = tenants.iter().map(|(name, tenant)| (name.clone(), tenant.scope.limits(), count(name)));
        all.filter(|(_, limits, disks)| *limits != Limits::default() || *disks > 0).collect()
    }

    /// Replaces the limits of a tenant, also for requests that wait. The caller has checked them.
    pub fn set_tenant_limits(&self, name: &str, limits: Limits) {
        let tenant = self.tenant(name);
        tenant.scope.set(limits, self.parts.cx.host.now());
        for (disk, of) in self.disks_with_tenants() {
            if Arc::ptr_eq(&of, &tenant) {
                disk.limiter.update();
                update_weight(&disk);
            }
        }
    }

    fn disks_with_tenants(&self) -> Vec<(Arc<Disk>, Arc<Tenant>)> {
        let catalogue = self.parts.catalogue.read();
        catalogue.visible().filter_map(|disk| Some((disk.clone(), disk.limiter.tenant()?))).collect()
    }

    /// The tenant of this name, which is created if necessary.
    fn tenant(&self, name: &str) -> Arc<Tenant> {
        let mut tenants = self.tenants.lock();
        tenants.entry(name.to_owned()).or_insert_with(|| Arc::new(Tenant::new(name))).clone()
    }
}

/// The limits of a disk.
pub(super) fn limits_of(disk: &Disk) -> DiskLimits {
    let tenant = disk.limiter.tenant().map(|tenant| tenant.name.clone());
    DiskLimits { tenant, limits: disk.limiter.limits() }
}

/// Applies the weight of a disk and of its tenant to the resources that it shares.
fn update_weight(disk: &Disk) {
    let weight = disk.limiter.weight();
    disk.writes.set_weight(weight);
    disk.reads.set_weight(weight);
}
