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

/// Replaces the limits of a disk.
pub(super) fn set_limits(pool: &Pool, name: &str, new: &DiskLimits) -> Result<()> {
    let disk = pool.parts.catalogue.read().find(name)?;
    let tenant = new.tenant.as_deref().map(|name| tenant(pool, name));
    disk.limiter.set(new.limits, tenant, pool.parts.cx.host.now());
    update_weight(&disk);
    Ok(())
}

/// The tenants that have limits or disks, by name, with their limits and number of disks.
pub(super) fn tenants(pool: &Pool) -> Vec<(String, Limits, usize)> {
    let disks = disks_with_tenants(pool);
    let tenants = pool.tenants.lock();
    let count = |name: &String| disks.iter().filter(|(_, tenant)| tenant.name == *name).count();
    let all = tenants.iter().map(|(name, tenant)| (name.clone(), tenant.scope.limits(), count(name)));
    all.filter(|(_, limits, disks)| *limits != Limits::default() || *disks > 0).collect()
}

/// Replaces the limits of a tenant.
pub(super) fn set_tenant_limits(pool: &Pool, name: &str, limits: Limits) {
    let tenant = tenant(pool, name);
    tenant.scope.set(limits, pool.parts.cx.host.now());
    for (disk, of) in disks_with_tenants(pool) {
        if Arc::ptr_eq(&of, &tenant) {
            disk.limiter.update();
            update_weight(&disk);
        }
    }
}

fn disks_with_tenants(pool: &Pool) -> Vec<(Arc<Disk>, Arc<Tenant>)> {
    let catalogue = pool.parts.catalogue.read();
    catalogue.visible().filter_map(|disk| Some((disk.clone(), disk.limiter.tenant()?))).collect()
}

/// The tenant of this name, which is created if necessary.
fn tenant(pool: &Pool, name: &str) -> Arc<Tenant> {
    let mut tenants = pool.tenants.lock();
    tenants.entry(name.to_owned()).or_insert_with(|| Arc::new(Tenant::new(name))).clone()
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
    disk.reads_ahead.set_weight(weight);
}
