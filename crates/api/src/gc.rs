//! Reclaims of space in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ErrorDetail;

/// The result of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// Bytes freed in the store.
    pub freed_bytes: u64,
    /// Bytes of live data that were rewritten to free the segments that contained them.
    pub moved_bytes: u64,
}

/// An event of a reclaim. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum GcEvent {
    /// Progress.
    Progress {
        /// The current phase.
        phase: GcPhaseView,
        /// Steps done: map nodes read by the mark, or segments cleaned.
        done: u64,
        /// Total steps of this phase; 0 for the mark, which does not know them.
        total: u64,
        /// The result so far.
        #[serde(flatten)]
        so_far: Reclaimed,
    },
    /// The reclaim has finished.
    Done(Reclaimed),
    /// The reclaim failed; space that was freed before stays free.
    Failed {
        /// The error.
        error: ErrorDetail,
    },
}

/// A phase of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GcPhaseView {
    /// Finding live blocks.
    Mark,
    /// Moving live blocks out of segments that contain few of them.
    Clean,
    /// Finished.
    Done,
}
