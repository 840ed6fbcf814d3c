//! Jobs in the API: long work with progress and a result.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::ErrorDetail;

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Import of an image.
    Import,
    /// Export of a disk.
    Export,
    /// Reclaim of space.
    Gc,
    /// Scan of a disk for block classes.
    Scan,
    /// Recording of a boot profile.
    Record,
    /// Reading a boot profile into the cache.
    Prefetch,
    /// Handover to another process.
    Upgrade,
    /// Handover of the pool to a standby.
    Handover,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It runs.
    Running,
    /// It was cancelled, and has not ended yet.
    Cancelling,
    /// It has ended with a result.
    Done,
    /// It has failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = JobProgress)]
pub struct ProgressView {
    /// The phase, such as `download`.
    pub phase: Option<String>,
    /// What is done: bytes or steps.
    pub done: u64,
    /// The total, if it is known.
    pub total: Option<u64>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Job, example = json!({"id": 1767225600000u64, "kind": "import", "disk": "debian", "owner": "admin",
    "state": "running", "started_ms": 1767225600000u64, "ended_ms": null,
    "progress": {"phase": "import", "done": 268435456, "total": 3221225472u64}, "cancellable": true,
    "result": null, "error": null}))]
pub struct JobView {
    /// Identifier, increasing.
    pub id: u64,
    /// Kind.
    pub kind: JobKind,
    /// The disk that it concerns.
    pub disk: Option<String>,
    /// Name of the principal that began it.
    pub owner: String,
    /// State.
    pub state: JobState,
    /// When it began, in Unix milliseconds.
    pub started_ms: u64,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// Progress.
    pub progress: ProgressView,
    /// Whether `DELETE` cancels it.
    pub cancellable: bool,
    /// The result, if it is done.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// The error, if it has failed.
    pub error: Option<ErrorDetail>,
}

impl JobView {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_ms.is_some()
    }
}
