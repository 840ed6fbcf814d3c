//! The state of a connection that is handed over to another process, in addition to its listener and its
//! bytes.

use serde::{Deserialize, Serialize};

/// The state of a connection in the transmission phase.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandedOver {
    pub export: String,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The metadata context `base:allocation` was selected.
    pub block_status: bool,
    /// The export name of the disk in the metadata context `forebay:changed-since=…`, if it was selected;
    /// absent from earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_since: Option<String>,
    /// When the client opened the disk, in Unix milliseconds; absent from earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}
