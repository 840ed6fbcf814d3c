//! Desktops in the API: request bodies and statistics.

use forebay_engine::DesktopStats;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{CountView, SyncPolicy};

/// Body of `POST /volumes/{name}/persist`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"sync": "flush"}))]
pub struct Persist {
    /// Durability of writes from then on.
    #[serde(default)]
    pub sync: SyncPolicy,
}

/// Body of `POST /resets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"volumes": ["web-001", "web-002"]}))]
pub struct Resets {
    /// Names of clones.
    pub volumes: Vec<String>,
}

/// Desktops and their write caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct DesktopsView {
    /// Number of desktops.
    pub count: u64,
    /// Bytes in all write caches.
    pub cached_bytes: u64,
    /// Budget of all write caches together.
    pub budget_bytes: u64,
    /// Overflows to the store, and the RAM that their data occupied.
    pub overflow: CountView,
}

impl From<DesktopStats> for DesktopsView {
    fn from(s: DesktopStats) -> DesktopsView {
        DesktopsView {
            count: s.count,
            cached_bytes: s.cached_bytes,
            budget_bytes: s.budget,
            overflow: s.overflow.into(),
        }
    }
}
