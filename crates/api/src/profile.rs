//! Boot profiles in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `POST /images/{name}/profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"action": "record"}))]
pub struct ChangeProfile {
    /// The action.
    pub action: ProfileAction,
}

/// An action on a boot profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProfileAction {
    /// Record the next boot of a clone.
    Record,
    /// Stop recording; the blocks read so far become the profile.
    Stop,
    /// Read the blocks of the profile into the cache now.
    Prefetch,
}

/// A boot profile: the blocks that a boot of an image's clones reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Bytes of the disk that a boot reads; 0 without a profile.
    pub bytes: u64,
    /// Number of contiguous ranges of the disk.
    pub runs: u64,
    /// When the profile was recorded, in Unix milliseconds.
    pub recorded_ms: Option<u64>,
    /// A boot is being recorded.
    pub recording: bool,
    /// The next boot of a clone will be recorded.
    pub waiting: bool,
    /// Bytes of the profile in the read cache.
    pub cached_bytes: u64,
}

/// The result of a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PrefetchedView {
    /// Bytes of the disk that were read.
    pub bytes: u64,
    /// Store reads, without those of the block map.
    pub reads: u64,
    /// Bytes of the disk that were already in the cache.
    pub cached_bytes: u64,
}
