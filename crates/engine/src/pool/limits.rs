//! Limits, weights and tenants of disks. The engine keeps them in memory; the server stores them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{BLOCK, Role};

use super::pool::Pool;
use crate::disk::Disk;
use crate::limit::{Limits, Tenant};
use crate::{Result, TenantUsage};

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
    apply_quota(pool, &disk);
    Ok(())
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantInfo {
    /// Its name.
    pub name: String,
    /// The limits of its disks together.
    pub limits: Limits,
    /// Number of its disks.
    pub disks: usize,
    /// The use of its quota, if it has one.
    pub usage: Option<TenantUsage>,
}

/// The tenants that have limits or disks, by name.
pub(super) fn tenants(pool: &Pool) -> Vec<TenantInfo> {
    // The disks of each tenant, and those of them that are being counted.
    let mut of_tenants = BTreeMap::<String, (usize, usize)>::new();
    for (disk, tenant) in disks_with_tenants(pool) {
        let (disks, counting) = of_tenants.entry(tenant.name.clone()).or_default();
        *disks += 1;
        *counting += usize::from(!disk.occupied.is_complete());
    }
    let tenants = pool.tenants.lock();
    let info = |tenant: &Arc<Tenant>| {
        let (disks, counting) = of_tenants.get(&tenant.name).copied().unwrap_or_default();
        let usage = tenant.usage.has_quota().then(|| TenantUsage {
            used_bytes: tenant.usage.used() * BLOCK as u64,
            counting,
            refused: tenant.usage.refused(),
        });
        TenantInfo { name: tenant.name.clone(), limits: tenant.scope.limits(), disks, usage }
    };
    let all = tenants.values().map(info);
    all.filter(|tenant| tenant.limits != Limits::default() || tenant.disks > 0).collect()
}

/// Replaces the limits of a tenant.
pub(super) fn set_tenant_limits(pool: &Pool, name: &str, limits: Limits) {
    let tenant = tenant(pool, name);
    tenant.scope.set(limits, pool.parts.cx.host.now());
    tenant.usage.set_quota(limits.quota);
    for (disk, of) in disks_with_tenants(pool) {
        if Arc::ptr_eq(&of, &tenant) {
            disk.limiter.update();
            update_weight(&disk);
            apply_quota(pool, &disk);
        }
    }
}

/// Lifts the limits of all disks, or puts them into effect again.
pub(super) fn lift_limits(pool: &Pool, lifted: bool) {
    for disk in pool.parts.catalogue.read().visible() {
        if lifted {
            disk.limiter.lift();
        } else {
            disk.limiter.update();
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

/// Applies the quota of its tenant to a disk, if it is a volume.
fn apply_quota(pool: &Pool, disk: &Arc<Disk>) {
    let tenant = disk.limiter.tenant().filter(|tenant| tenant.usage.has_quota());
    if disk.occupied.assign(tenant.filter(|_| disk.role() == Role::Volume)) {
        pool.parts.counter.request(disk.clone());
    }
}

/// Applies the weight of a disk and of its tenant to the resources that it shares.
fn update_weight(disk: &Disk) {
    let weight = disk.limiter.weight();
    disk.writes.set_weight(weight);
    disk.reads.set_weight(weight);
    disk.reads_ahead.set_weight(weight);
}
