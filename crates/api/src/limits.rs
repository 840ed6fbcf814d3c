//! Limits, weights and tenants in the API.

use std::fmt;

use forebay_text::Size;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Limits and weight, of a disk or of a tenant. Rates are per second; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"iops": 10000, "bandwidth": 419430400}))]
pub struct LimitSet {
    /// Operations; a request counts one for each 256 KiB that it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_read: Option<u64>,
    /// Writes and discards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_write: Option<u64>,
    /// Operations at once after a pause, for each of these limits; if absent, a tenth of a second's worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_burst: Option<u64>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_read: Option<u64>,
    /// Bytes written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_write: Option<u64>,
    /// Bytes at once after a pause, for each of these limits; if absent, a tenth of a second's worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<u64>,
    /// Weight from 1 to 10000 where volumes compete; if absent, 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Of a tenant only: bytes that its volumes may occupy, and their snapshots keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
}

/// The limits in words: "5000 IOPS, 100 MiB/s".
impl fmt::Display for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let iops = [("", self.iops), (" reads", self.iops_read), (" writes", self.iops_write)];
        for (of, value) in iops {
            parts.extend(value.map(|n| format!("{n} IOPS{of}")));
        }
        parts.extend(self.iops_burst.map(|n| format!("burst {n} operations")));
        let bandwidth =
            [("", self.bandwidth), (" reads", self.bandwidth_read), (" writes", self.bandwidth_write)];
        for (of, value) in bandwidth {
            parts.extend(value.map(|n| format!("{}/s{of}", Size(n))));
        }
        parts.extend(self.bandwidth_burst.map(|n| format!("burst {}", Size(n))));
        parts.extend(self.weight.map(|n| format!("weight {n}")));
        parts.extend(self.quota.map(|n| format!("quota {}", Size(n))));
        if parts.is_empty() { f.write_str("no limits") } else { f.write_str(&parts.join(", ")) }
    }
}

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

/// Requests that waited for a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitedView {
    /// Requests.
    pub requests: u64,
    /// The sum of their waits in microseconds.
    pub waited_us: u64,
}
