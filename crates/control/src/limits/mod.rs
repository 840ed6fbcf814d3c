//! Limits, weights and tenants of disks, as administrators set them.
//!
//! The engine applies them; this module keeps them as a document of the pool (`document`), by the UUID of
//! the disk, which never changes. A change is durable before it applies. Entries of disks that were removed
//! are dropped with the next change.
//!
//! **An unreadable document is kept.** If it is damaged, or of a later release, the server starts without
//! limits and refuses to change any, until an administrator starts the release that can read it: guests need
//! their disks more than their limits.

mod document;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use forebay_api::LimitSet;
use forebay_engine::{DiskLimits, Limits, Pool, Rate, RateLimits};
use forebay_text::{is_active, is_relative_path};

use crate::view::View;

/// The weight of a volume or tenant for which none is set.
pub const DEFAULT_WEIGHT: u16 = 100;

/// Maximum bytes of a tenant's name.
const MAX_TENANT_NAME: usize = 64;

/// The limits of the engine for limits of the API.
pub fn engine_limits(set: LimitSet) -> Limits {
    let rates = |total: Option<u64>, read: Option<u64>, write: Option<u64>, burst: Option<u64>| {
        let rate = |per_second| Rate { per_second, burst };
        RateLimits { total: total.map(rate), read: read.map(rate), write: write.map(rate) }
    };
    Limits {
        iops: rates(set.iops, set.iops_read, set.iops_write, set.iops_burst),
        bandwidth: rates(set.bandwidth, set.bandwidth_read, set.bandwidth_write, set.bandwidth_burst),
        weight: set.weight,
        quota: set.quota,
    }
}

impl View for Limits {
    type View = LimitSet;

    fn view(self) -> LimitSet {
        let per_second = |rate: Option<Rate>| rate.map(|rate| rate.per_second);
        let burst = |l: &RateLimits| [l.total, l.read, l.write].into_iter().flatten().find_map(|r| r.burst);
        LimitSet {
            iops: per_second(self.iops.total),
            iops_read: per_second(self.iops.read),
            iops_write: per_second(self.iops.write),
            iops_burst: burst(&self.iops),
            bandwidth: per_second(self.bandwidth.total),
            bandwidth_read: per_second(self.bandwidth.read),
            bandwidth_write: per_second(self.bandwidth.write),
            bandwidth_burst: burst(&self.bandwidth),
            weight: self.weight,
            quota: self.quota,
        }
    }
}

/// Why limits cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A value is outside of its bounds.
    #[error("{0}")]
    Bad(&'static str),
    /// The document of limits cannot be read.
    #[error(
        "the limits of this pool cannot be read: {0}; start the release that wrote them, or restore the pool"
    )]
    Unreadable(String),
    /// The pool returned an error when limits were changed.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
}

/// Result of a change of limits.
pub type Result<T> = std::result::Result<T, LimitError>;

/// The contents of the document of limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Table {
    /// Limits of volumes, by UUID of the volume.
    volumes: BTreeMap<[u8; 16], Entry>,
    tenants: BTreeMap<String, LimitSet>,
}

/// The limits of a disk in this document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    tenant: Option<String>,
    limits: LimitSet,
}

/// The limits of a pool; see the module documentation.
pub struct LimitTable {
    pool: Arc<Pool>,
    /// The contents of the document, or the reason why it cannot be read. The lock serialises changes.
    table: tokio::sync::Mutex<std::result::Result<Table, String>>,
}

impl LimitTable {
    /// Reads the limits of a pool, and applies them.
    pub async fn load(pool: Arc<Pool>) -> LimitTable {
        let table = forebay_frontend::document::load(&pool, document::NAME, document::decode).await;
        match &table {
            Ok(table) => apply_all(&pool, table),
            Err(why) => tracing::error!("{}", LimitError::Unreadable(why.clone())),
        }
        LimitTable { pool, table: tokio::sync::Mutex::new(table) }
    }

    /// Replaces the limits of a disk and its tenant.
    pub async fn set_volume(&self, name: &str, tenant: Option<String>, limits: LimitSet) -> Result<()> {
        check_volume(&limits)?;
        tenant.as_deref().map(check_tenant).transpose()?;
        let uuid = self.pool.disk(name)?.uuid;
        self.change(|table| {
            table.volumes.insert(uuid, Entry { tenant, limits });
        })
        .await
    }

    /// Replaces the limits of a tenant; without any, the tenant is forgotten unless disks belong to it.
    pub async fn set_tenant(&self, name: &str, limits: LimitSet) -> Result<()> {
        check(&limits)?;
        check_tenant(name)?;
        self.change(|table| {
            table.tenants.insert(name.to_owned(), limits);
        })
        .await
    }

    /// Gives new disks the tenant of the disk from which they were made, or of its volume. Returns that
    /// tenant.
    pub async fn inherit(&self, source: &str, made: &[[u8; 16]]) -> Result<Option<String>> {
        let volume = source.split_once('@').map_or(source, |(volume, _)| volume);
        let Some(tenant) = self.pool.limits(volume)?.tenant else { return Ok(None) };
        self.change(|table| {
            for uuid in made {
                table.volumes.entry(*uuid).or_default().tenant = Some(tenant.clone());
            }
        })
        .await?;
        Ok(Some(tenant))
    }

    /// Changes the table: durably, then in the engine.
    async fn change(&self, change: impl FnOnce(&mut Table)) -> Result<()> {
        let mut table = self.table.lock().await;
        let mut new = table.as_ref().map_err(|why| LimitError::Unreadable(why.clone()))?.clone();
        change(&mut new);
        let disks: HashSet<_> = self.pool.disks().into_iter().map(|disk| disk.uuid).collect();
        new.volumes.retain(|uuid, entry| *entry != Entry::default() && disks.contains(uuid));
        let before = new.tenants.clone();
        new.tenants.retain(|_, limits| *limits != LimitSet::default());
        self.pool.set_document(document::NAME, Some(&document::encode(&new))).await?;
        for name in before.keys().filter(|name| !new.tenants.contains_key(*name)) {
            self.pool.set_tenant_limits(name, Limits::default());
        }
        apply_all(&self.pool, &new);
        *table = Ok(new);
        Ok(())
    }
}

/// Sets those limits in the engine that differ from the table.
fn apply_all(pool: &Pool, table: &Table) {
    let tenants: BTreeMap<_, _> = pool.tenants().into_iter().map(|t| (t.name, t.limits)).collect();
    for (name, limits) in &table.tenants {
        let limits = engine_limits(*limits);
        if tenants.get(name) != Some(&limits) {
            pool.set_tenant_limits(name, limits);
        }
    }
    for disk in pool.disks() {
        let entry = table.volumes.get(&disk.uuid).cloned().unwrap_or_default();
        let new = DiskLimits { tenant: entry.tenant, limits: engine_limits(entry.limits) };
        // A disk may have been removed since it was listed.
        if pool.limits(&disk.name).is_ok_and(|old| old != new) {
            let _ = pool.set_limits(&disk.name, &new);
        }
    }
}

fn check(limits: &LimitSet) -> Result<()> {
    match engine_limits(*limits).is_valid() {
        true => Ok(()),
        false => Err(LimitError::Bad(
            "a limit and its burst must be at least 1, a quota at least 4096 bytes, a weight from 1 to 10000",
        )),
    }
}

fn check_volume(limits: &LimitSet) -> Result<()> {
    match limits.quota {
        None => check(limits),
        Some(_) => Err(LimitError::Bad("a quota is for a tenant; a volume has its size")),
    }
}

fn check_tenant(name: &str) -> Result<()> {
    let bad = |why| Err(LimitError::Bad(why));
    if !(1..=MAX_TENANT_NAME).contains(&name.len()) || name.chars().any(is_active) {
        return bad("the name of a tenant must have 1 to 64 bytes, without control or invisible characters");
    }
    if is_relative_path(name) {
        return bad("a tenant cannot be named '.' or '..', which have another meaning in an address");
    }
    Ok(())
}
