//! What the API says of boot profiles, and what is asked for them.

use forebay_engine::{Prefetched, ProfileInfo};
use serde::{Deserialize, Serialize};

/// Body of `POST /images/{name}/profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeProfile {
    /// What is to be done.
    pub action: ProfileAction,
}

/// What can be done with a boot profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileAction {
    /// Record the next boot of a clone.
    Record,
    /// End a recording; what was read so far is the profile.
    Stop,
    /// Read it into the cache now.
    Prefetch,
}

/// What is known of the boot of an image's clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileView {
    /// Bytes of the disk that a boot reads; 0 without a profile.
    pub bytes: u64,
    /// Pieces in which they lie on the disk.
    pub runs: u64,
    /// When it was recorded, in Unix milliseconds.
    pub recorded_ms: Option<u64>,
    /// A boot is being recorded.
    pub recording: bool,
    /// The next boot will be recorded.
    pub waiting: bool,
    /// Bytes of it that are in the read cache.
    pub cached_bytes: u64,
}

impl From<ProfileInfo> for ProfileView {
    fn from(p: ProfileInfo) -> ProfileView {
        let ProfileInfo { bytes, runs, recorded_ms, recording, waiting, cached_bytes } = p;
        ProfileView { bytes, runs, recorded_ms, recording, waiting, cached_bytes }
    }
}

/// What a prefetch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PrefetchedView {
    /// Bytes of the disk that were read.
    pub bytes: u64,
    /// Reads of the store that this took, but for those of the block map.
    pub reads: u64,
    /// Bytes of the disk that were in the cache already.
    pub cached_bytes: u64,
}

impl From<Prefetched> for PrefetchedView {
    fn from(Prefetched { bytes, reads, cached_bytes }: Prefetched) -> PrefetchedView {
        PrefetchedView { bytes, reads, cached_bytes }
    }
}
