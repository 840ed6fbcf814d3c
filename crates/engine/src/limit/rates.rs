//! Limits and weights that an administrator sets.

use forebay_format::BLOCK;
use serde::{Deserialize, Serialize};

/// A rate, and how far it may be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Operations or bytes per second; at least 1.
    pub per_second: u64,
    /// Operations or bytes that may be made at once after a pause, beyond the rate; `None` for a tenth of a
    /// second's worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

/// Limits of one unit, on reads, on writes, and on both together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimits {
    /// Limit on reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Rate>,
    /// Limit on reads alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Rate>,
    /// Limit on writes alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Rate>,
}

/// The limits and the weight of a disk or of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Limits in operations per second. A request counts as one operation for each 256 KiB that it begins.
    #[serde(default)]
    pub iops: RateLimits,
    /// Limits in bytes per second.
    #[serde(default)]
    pub bandwidth: RateLimits,
    /// Weight compared with other disks that compete; `None` for the default, 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// For a tenant: bytes that its volumes may occupy; see [`crate::quota`]. A disk has no quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
}

impl RateLimits {
    /// Whether no limit of this unit is set.
    pub fn is_empty(&self) -> bool {
        *self == RateLimits::default()
    }
}

impl Limits {
    /// Range of valid weights.
    pub const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=10_000;
    /// Maximum of a rate and of a burst. It exceeds every device by far.
    pub const MOST: u64 = 1 << 50;

    /// Whether no request is limited by these limits.
    pub fn limits_nothing(&self) -> bool {
        self.iops.is_empty() && self.bandwidth.is_empty()
    }

    /// Whether all values are within their valid ranges.
    pub fn is_valid(&self) -> bool {
        let all = [&self.iops, &self.bandwidth].into_iter().flat_map(|l| [l.total, l.read, l.write]);
        let is_valid = |rate: Rate| {
            (1..=Limits::MOST).contains(&rate.per_second)
                && rate.burst.is_none_or(|burst| (1..=Limits::MOST).contains(&burst))
        };
        all.flatten().all(is_valid)
            && self.quota.is_none_or(|quota| quota >= BLOCK as u64)
            && self.weight.is_none_or(|weight| Limits::WEIGHTS.contains(&weight))
    }
}
