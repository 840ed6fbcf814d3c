//! Limits, weights and tenants of disks. The engine keeps them in memory; the server stores them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{BLOCK, Role};

use super::pool::Pool;
use crate::catalogue::snapshots_of;
use crate::disk::Disk;
use crate::limit::{Limits, Tenant};
use crate::{Result, TenantUsage};

/// The limits of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// The tenant to which the disk belongs.
    pub tenant: Option<String>,
    /// Limits of the disk itself.
    pub limits: Limits,
}

/// Replaces the limits of a disk.
pub(super) fn set_limits(pool: &Pool, name: &str, new: &DiskLimits) -> Result<()> {
    let disk = pool.components.catalogue.read().find(name)?;
    let tenant = new.tenant.as_deref().map(|name| tenant(pool, name));
    let before = disk.limiter.tenant();
    disk.limiter.set(new.limits, tenant, pool.components.cx.host.now());
    update_weight(&disk);
    for tenant in before.into_iter().chain(disk.limiter.tenant()) {
        update_weights(pool, &tenant);
    }
    apply_quota(pool, &disk);
    Ok(())
}

/// A tenant, its limits and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantInfo {
    /// Name of the tenant.
    pub name: String,
    /// Limits on all disks of the tenant together.
    pub limits: Limits,
    /// Number of disks of the tenant.
    pub disks: usize,
    /// The use of the tenant's quota, if it has a quota.
    pub usage: Option<TenantUsage>,
}

/// The tenants that have limits or disks, ordered by name.
pub(super) fn tenants(pool: &Pool) -> Vec<TenantInfo> {
    // The number of disks of each tenant, and how many of them are being counted.
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
    tenant.scope.set(limits, pool.components.cx.host.now());
    tenant.usage.set_quota(limits.quota);
    for (disk, of) in disks_with_tenants(pool) {
        if Arc::ptr_eq(&of, &tenant) {
            disk.limiter.update();
            update_weight(&disk);
            apply_quota(pool, &disk);
        }
    }
}

/// Suspends the limits of all disks, or puts them into effect again.
pub(super) fn lift_limits(pool: &Pool, lifted: bool) {
    for disk in pool.components.catalogue.read().visible() {
        if lifted {
            disk.limiter.lift();
        } else {
            disk.limiter.update();
        }
    }
}

fn disks_with_tenants(pool: &Pool) -> Vec<(Arc<Disk>, Arc<Tenant>)> {
    let catalogue = pool.components.catalogue.read();
    catalogue.visible().filter_map(|disk| Some((disk.clone(), disk.limiter.tenant()?))).collect()
}

/// Returns the tenant of this name; creates it if necessary.
fn tenant(pool: &Pool, name: &str) -> Arc<Tenant> {
    let mut tenants = pool.tenants.lock();
    tenants.entry(name.to_owned()).or_insert_with(|| Arc::new(Tenant::new(name))).clone()
}

/// The limits of a disk.
pub(super) fn limits_of(disk: &Disk) -> DiskLimits {
    let tenant = disk.limiter.tenant().map(|tenant| tenant.name.clone());
    DiskLimits { tenant, limits: disk.limiter.limits() }
}

/// Applies the quota of a volume's tenant to the volume and its snapshots.
fn apply_quota(pool: &Pool, disk: &Arc<Disk>) {
    if disk.role() != Role::Volume {
        return;
    }
    let tenant = disk.limiter.tenant().filter(|tenant| tenant.usage.has_quota());
    for snapshot in snapshots_of(&pool.components.catalogue, disk.id()) {
        snapshot.occupied.assign(tenant.clone());
    }
    if disk.occupied.assign(tenant) {
        count_again(pool, disk);
    }
}

/// Requests that a volume and its snapshots be counted, if a quota applies to the volume: they were assigned
/// to a tenant, or one of the snapshots was removed.
pub(super) fn count_again(pool: &Pool, volume: &Arc<Disk>) {
    if volume.occupied.has_quota() {
        let newest = snapshots_of(&pool.components.catalogue, volume.id()).pop();
        volume.occupied.set_newest(newest.map(|snapshot| snapshot.occupied.clone()));
        pool.components.counter.request(volume.clone());
    }
}

/// Applies the weights of the disks of a tenant, if the largest weight has changed.
fn update_weights(pool: &Pool, tenant: &Arc<Tenant>) {
    if tenant.has_other_weights() {
        let disks = disks_with_tenants(pool).into_iter();
        disks.filter(|(_, of)| Arc::ptr_eq(of, tenant)).for_each(|(disk, _)| update_weight(&disk));
    }
}

/// Removes a deleted disk from its tenant.
pub(super) fn leave_tenant(pool: &Pool, disk: &Disk) {
    if let Some(tenant) = disk.limiter.leave_tenant() {
        update_weights(pool, &tenant);
    }
}

/// Applies the weight of a disk and of its tenant to the resources that it shares.
fn update_weight(disk: &Disk) {
    let weight = disk.limiter.weight();
    disk.set_weight(weight);
}
