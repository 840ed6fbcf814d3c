//! What the API says of desktops, and what is asked for them.

use forebay_engine::DesktopStats;
use serde::{Deserialize, Serialize};

use super::{CountView, Sync};

/// Body of `POST /volumes/{name}/persist`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Persist {
    /// When its writes are durable from then on.
    #[serde(default)]
    pub sync: Sync,
}

/// Body of `POST /resets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resets {
    /// Names of clones.
    pub volumes: Vec<String>,
}

/// Desktops, and what of their writes is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DesktopsView {
    /// How many there are.
    pub count: u64,
    /// Bytes in their write caches.
    pub cached_bytes: u64,
    /// Most bytes that may be in there.
    pub budget_bytes: u64,
    /// Times that one let something overflow to the store, and the bytes that it had taken in RAM.
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
