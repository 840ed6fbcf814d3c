//! The health of the server in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How urgent a condition is. The health of a server is that of its most urgent condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Nothing requires an administrator.
    #[default]
    Ok,
    /// All clients are served; an administrator should act soon.
    Warning,
    /// Some clients are not served, or data is damaged.
    Problem,
}

/// `GET /health`: the state of the server, with all conditions that require an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// The most urgent of the conditions.
    pub state: HealthState,
    /// The conditions, the most urgent first.
    pub conditions: Vec<ConditionView>,
}

/// A condition that requires an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"code": "full", "state": "problem", "message": "the store has no room for data: writes wait or fail",
    "remedy": "remove disks and run 'forebay gc', or add space", "since_ms": 1767225600123u64, "disks": []}))]
pub struct ConditionView {
    /// A stable name, such as `full`.
    pub code: String,
    /// How urgent it is.
    pub state: HealthState,
    /// What is wrong.
    pub message: String,
    /// What an administrator can do.
    pub remedy: String,
    /// When the server noticed it, in Unix milliseconds.
    pub since_ms: u64,
    /// Some of the disks that are affected; empty if it concerns the whole pool.
    pub disks: Vec<String>,
}
